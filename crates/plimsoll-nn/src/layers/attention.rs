//! `MultiHeadAttention`: each position takes from those that matter to it.

use plimsoll_tensor::{Activation, AttentionConfig, Error, Result, Shape, Tensor, Variable};

use super::{last_extent, product};
use crate::initializer::{Fans, Initializer};
use crate::layer::{Forward, Layer, variable};

/// Self-attention over a sequence: `[batch, time, width]` to the same shape. The width is divided among the heads.
///
/// Variables: `qkv.kernel` `[width, 3 width]` for queries, keys and values, side by side, and `output.kernel`
/// `[width, width]`, both Glorot uniform, each with a bias unless told otherwise. The scores never lie in memory as a
/// whole: what is kept grows with the length of the sequence, not with its square.
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
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// This layer without biases.
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

    fn make(&self, input: &Shape) -> Result<Forward> {
        let width = last_extent("attention", input)?;
        let heads = self.heads;
        if input.rank() != 2 {
            return Err(Error::shape(
                "attention",
                format!("an example is {input}; it must be [time, width]"),
            ));
        }
        if heads == 0 || width % heads != 0 {
            return Err(Error::argument(
                "attention",
                format!("a width of {width} cannot be divided evenly among {heads} heads"),
            ));
        }
        let qkv = self.projection("qkv", width, product([3, width]))?;
        let output = self.projection("output", width, width)?;
        let config = AttentionConfig { causal: self.causal, ..AttentionConfig::default() };
        Forward::new(input, move |x, _| {
            let &[batch, time, _] = x.shape().dims() else {
                return Err(Error::shape(
                    "attention",
                    format!("the input is {}; it must be [batch, time, width]", x.shape()),
                ));
            };
            // Views [batch, heads, time, depth] of one tensor; what comes back is put together by one copy.
            let parts = qkv.apply(x)?.reshape([batch, time, 3, heads, width / heads])?.chunk(2, 3)?;
            let view = |part: &Tensor| part.squeeze(2)?.transpose(1, 2);
            let [q, k, v] = [view(&parts[0])?, view(&parts[1])?, view(&parts[2])?];
            let attended = q.attention(&k, &v, &config)?;
            output.apply(&attended.transpose(1, 2)?.reshape([batch, time, width])?)
        })
    }
}
