//! `MultiHeadAttention`: each position takes from those that matter to it.

use plimsoll_tensor::{Activation, AttentionConfig, DType, Error, Nested, Result, Shape, Tensor, Variable};

use super::{last_extent, product};
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// Attention over sequences: `[batch, time, width]` to the same shape. The width is divided among the heads.
///
/// Given one tensor, each position takes from all of the sequence: self-attention. Given two, `(query, value)`, the positions
/// of the first take from those of the second: cross-attention, as a decoder does from an encoder. A third tensor is a mask,
/// bools or numbers of which zero hides: `[keys]` for each example, or `[queries, keys]`. By name they are `query`, `value`
/// and `mask`, of which the last two may be left out.
///
/// Variables: `qkv.kernel` `[width, 3 width]` for queries, keys and values, side by side, or, of two sequences, `q.kernel`
/// `[width, width]` and `kv.kernel` `[value width, 2 width]`; and `output.kernel` `[width, width]`; all Glorot uniform, each
/// with a bias unless told otherwise. The scores never lie in memory as a whole: what is kept grows with the length of the
/// sequence, not with its square.
#[doc(alias("MultiheadAttention", "Attention"))]
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    causal: bool,
    bias: bool,
    kernel: Initializer,
}

impl MultiHeadAttention {
    /// A layer with so many heads.
    pub fn new(heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { heads, causal: false, bias: true, kernel: Initializer::GlorotUniform }
    }

    /// This layer with each position seeing itself and earlier ones only.
    #[doc(alias("use_causal_mask", "is_causal"))]
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// This layer without biases.
    #[doc(alias = "use_bias")]
    pub fn no_bias(self) -> MultiHeadAttention {
        MultiHeadAttention { bias: false, ..self }
    }

    /// This layer with kernels that start otherwise.
    pub fn kernel_initializer(self, kernel: Initializer) -> MultiHeadAttention {
        MultiHeadAttention { kernel, ..self }
    }

    fn projection(&self, name: &str, inputs: usize, outputs: usize) -> Result<Projection> {
        let fans = Fans { inputs, outputs };
        let kernel = variable(&format!("{name}.kernel"), [inputs, outputs], self.kernel, fans)?;
        let bias = match self.bias {
            true => Some(variable(&format!("{name}.bias"), outputs, Initializer::Zeros, fans)?),
            false => None,
        };
        Ok(Projection { kernel, bias })
    }
}

/// A linear map of the last dimension.
struct Projection {
    kernel: Variable,
    bias: Option<Variable>,
}

impl Projection {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.kernel, self.bias.as_deref(), Activation::None)
    }
}

impl Layer for MultiHeadAttention {
    fn name(&self) -> &str {
        "attention"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_nested(&Nested::One(*input))
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        let places = Places::of(inputs)?;
        let shapes = inputs.leaves();
        let query = shapes[places.query];
        let (heads, width) = (self.heads, last_extent("attention", query)?);
        for shape in [query, shapes[places.value]] {
            if shape.rank() != 2 {
                let detail = format!("an example is {shape}; it must be [time, width]");
                return Err(Error::shape("attention", detail));
            }
        }
        if heads == 0 || width % heads != 0 {
            return Err(Error::argument(
                "attention",
                format!("a width of {width} cannot be divided evenly among {heads} heads"),
            ));
        }
        let projections = match places.query == places.value {
            true => Projections::Together(self.projection("qkv", width, product([3, width]))?),
            false => {
                let value_width = last_extent("attention", shapes[places.value])?;
                let query = self.projection("q", width, width)?;
                Projections::Apart { query, value: self.projection("kv", value_width, product([2, width]))? }
            }
        };
        let output = self.projection("output", width, width)?;
        let causal = self.causal;
        let mut takes = vec![None; shapes.len()];
        places.mask.iter().for_each(|&mask| takes[mask] = Some(DType::Bool));
        let forward = BuiltLayer::nested(*query, move |inputs: Nested<Tensor>, _| {
            let inputs = inputs.into_leaves();
            let x = &inputs[places.query];
            let [q, k, v] = projections.apply(x, &inputs[places.value], heads)?;
            let mask = places.mask.map(|mask| for_heads(&inputs[mask])).transpose()?;
            let config = AttentionConfig { causal, mask: mask.as_ref(), ..AttentionConfig::default() };
            let attended = q.attention(&k, &v, &config)?;
            output.apply(&attended.transpose(1, 2)?.reshape(*x.shape())?)
        })?;
        Ok(BuiltLayer { takes, ..forward })
    }
}

/// Which of the inputs is what.
struct Places {
    query: usize,
    /// What keys and values are made of; the queries' input where each position takes from its own sequence.
    value: usize,
    mask: Option<usize>,
}

impl Places {
    fn of(inputs: &Nested<Shape>) -> Result<Places> {
        let are_single = inputs.parts().iter().all(|part| part.one().is_some());
        let found = match inputs {
            _ if !are_single => None,
            Nested::One(_) => Some(Places { query: 0, value: 0, mask: None }),
            Nested::Tuple(parts) => match parts.len() {
                2 => Some(Places { query: 0, value: 1, mask: None }),
                3 => Some(Places { query: 0, value: 1, mask: Some(2) }),
                _ => None,
            },
            Nested::Named(fields) => {
                let place = |name: &str| fields.iter().position(|(known, _)| known == name);
                let query = place("query");
                let is_known = |(name, _): &(String, _)| ["query", "value", "mask"].contains(&name.as_str());
                query.filter(|_| fields.iter().all(is_known)).map(|query| Places {
                    query,
                    value: place("value").unwrap_or(query),
                    mask: place("mask"),
                })
            }
        };
        found.ok_or_else(|| {
            let detail = format!(
                "it takes a sequence, or (query, value) or (query, value, mask), or fields of these names, and was given \
                 {inputs}"
            );
            Error::shape("attention", detail)
        })
    }
}

/// How queries, keys and values are made.
enum Projections {
    /// Of one sequence, side by side.
    Together(Projection),
    /// Of two.
    Apart { query: Projection, value: Projection },
}

impl Projections {
    /// Queries, keys and values `[batch, heads, time, depth]`: views of what comes out side by side.
    fn apply(&self, query: &Tensor, value: &Tensor, heads: usize) -> Result<[Tensor; 3]> {
        match self {
            Projections::Together(qkv) => split::<3>(&qkv.apply(query)?, heads),
            Projections::Apart { query: q, value: kv } => {
                let [q] = split::<1>(&q.apply(query)?, heads)?;
                let [k, v] = split::<2>(&kv.apply(value)?, heads)?;
                Ok([q, k, v])
            }
        }
    }
}

/// The `N` parts of `[batch, time, N heads depth]` as views `[batch, heads, time, depth]`.
fn split<const N: usize>(x: &Tensor, heads: usize) -> Result<[Tensor; N]> {
    let &[batch, time, width] = x.shape().dims() else {
        return Err(Error::shape(
            "attention",
            format!("the input is {}; it must be [batch, time, width]", x.shape()),
        ));
    };
    let parts = x.reshape([batch, time, N, heads, width / (N * heads)])?.chunk(2, N)?;
    let view = |part: &Tensor| part.squeeze(2)?.transpose(1, 2);
    let views: Vec<Tensor> = parts.iter().map(view).collect::<Result<_>>()?;
    views.try_into().map_err(|_| Error::shape("attention", format!("{} has no {N} parts", x.shape())))
}

/// A mask `[batch, keys]` or `[batch, queries, keys]` as one that all heads, and all queries, share.
fn for_heads(mask: &Tensor) -> Result<Tensor> {
    let mask = if mask.dtype() == DType::Bool { mask.clone() } else { mask.ne(0.0)? };
    match *mask.shape().dims() {
        [batch, keys] => mask.reshape([batch, 1, 1, keys]),
        [batch, queries, keys] => mask.reshape([batch, 1, queries, keys]),
        _ => Err(Error::shape(
            "attention",
            format!("the mask is {}; it must be [batch, keys] or [batch, queries, keys]", mask.shape()),
        )),
    }
}
