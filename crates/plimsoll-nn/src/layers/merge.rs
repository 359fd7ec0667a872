//! `Add`, `Subtract`, `Multiply` and `Concatenate`: several tensors become one.

use plimsoll_tensor::{Error, Nested, Result, Shape, Tensor};

use crate::layer::{BuiltLayer, Layer};

/// Declares a layer that goes through its inputs from left to right.
macro_rules! elementwise {
    ($(#[$doc:meta])* $layer:ident, $name:literal, $combine:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $layer {
            _private: (),
        }

        impl $layer {
            /// A layer of any number of tensors.
            pub fn new() -> $layer {
                $layer::default()
            }
        }

        impl Layer for $layer {
            fn name(&self) -> &str {
                $name
            }

            fn is_pure(&self) -> bool {
                true
            }

            fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
                let output = broadcast($name, inputs)?;
                BuiltLayer::nested(output, |inputs: Nested<Tensor>, _| -> Result<Tensor> {
                    let mut inputs = inputs.into_leaves().into_iter();
                    let first = inputs.next().ok_or_else(|| too_few($name, 0))?;
                    inputs.try_fold(first, $combine)
                })
            }
        }
    };
}

elementwise! {
    /// The sum of any number of tensors, Keras's `Add`: `Add::new().apply((&a, &b))`. Their examples have one shape, or shapes that
    /// broadcast.
    Add, "add", |sum: Tensor, next: Tensor| sum.add(&next)
}

elementwise! {
    /// The first tensor less the others, Keras's `Subtract`.
    Subtract, "subtract", |rest: Tensor, next: Tensor| rest.sub(&next)
}

elementwise! {
    /// The product of any number of tensors, element by element, Keras's `Multiply`.
    Multiply, "multiply", |product: Tensor, next: Tensor| product.mul(&next)
}

/// The shape that examples of these shapes broadcast to. Ranks must agree, as the batch comes first.
fn broadcast(layer: &'static str, inputs: &Nested<Shape>) -> Result<Shape> {
    let shapes = inputs.leaves();
    let [first, rest @ ..] = &*shapes else { return Err(too_few(layer, 0)) };
    let mut dims = first.dims().to_vec();
    for shape in rest {
        let fits = shape.rank() == dims.len();
        for (dim, &other) in dims.iter_mut().zip(shape.dims()) {
            match (*dim, other) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *dim = b,
                _ => return Err(do_not_fit(layer, inputs, "be equal, or one of them 1, in every axis")),
            }
        }
        if !fits {
            return Err(do_not_fit(layer, inputs, "have the same number of axes"));
        }
    }
    Shape::new(&dims)
}

fn too_few(layer: &'static str, n: usize) -> Error {
    Error::shape(layer, format!("it takes at least one tensor, and was given {n}"))
}

fn do_not_fit(layer: &'static str, inputs: &Nested<Shape>, must: &str) -> Error {
    Error::shape(layer, format!("examples of {inputs}; they must {must}"))
}

/// Tensors one after the other along an axis of an example, Keras's `Concatenate`; -1 is the last axis, 0 the first after the
/// batch.
#[doc(alias("cat", "concat"))]
#[derive(Clone, Copy, Debug)]
pub struct Concatenate {
    axis: isize,
}

impl Concatenate {
    /// A layer that puts examples together along that axis of theirs.
    pub fn new(axis: isize) -> Concatenate {
        Concatenate { axis }
    }
}

impl Layer for Concatenate {
    fn name(&self) -> &str {
        "concatenate"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        let shapes = inputs.leaves();
        let first = shapes.first().ok_or_else(|| too_few("concatenate", 0))?;
        let rank = first.rank();
        let axis = if self.axis < 0 { self.axis + rank as isize } else { self.axis };
        let Some(axis) = usize::try_from(axis).ok().filter(|&axis| axis < rank) else {
            let detail = format!("axis {} of examples of {inputs}, which have {rank} axes", self.axis);
            return Err(Error::shape("concatenate", detail));
        };
        let others = |shape: &Shape| {
            shape
                .dims()
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != axis)
                .map(|(_, &dim)| dim)
                .collect::<Vec<_>>()
        };
        if shapes.iter().any(|shape| shape.rank() != rank || others(shape) != others(first)) {
            return Err(do_not_fit("concatenate", inputs, &format!("agree in all axes but {axis}")));
        }
        let extent = shapes.iter().fold(0usize, |sum, shape| sum.saturating_add(shape.dims()[axis]));
        let output = first.with_dim(axis, extent)?;
        BuiltLayer::nested(output, move |inputs: Nested<Tensor>, _| {
            Tensor::concat(&inputs.leaves(), axis as isize + 1)
        })
    }
}
