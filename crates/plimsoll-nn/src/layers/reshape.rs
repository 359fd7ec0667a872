//! `Reshape`: the elements of an example in another shape.

use plimsoll_tensor::{Error, IntoShape, Result, Shape};

use crate::layer::{BuiltLayer, Layer};
use crate::model::batch_of;

/// Each example in another shape of as many elements: `[batch, ..]` to `[batch, shape]`.
#[derive(Clone, Copy, Debug)]
pub struct Reshape(Shape);

impl Reshape {
    /// A layer that gives examples that shape.
    ///
    /// # Errors
    /// Too many dimensions.
    pub fn new(shape: impl IntoShape) -> Result<Reshape> {
        Ok(Reshape(shape.into_shape()?))
    }
}

impl Layer for Reshape {
    fn name(&self) -> &str {
        "reshape"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let output = self.0;
        if input.n_elems() != output.n_elems() {
            return Err(Error::shape(
                "reshape",
                format!(
                    "an example {input} has {} elements, but {output} has {}",
                    input.n_elems(),
                    output.n_elems()
                ),
            ));
        }
        BuiltLayer::new(output, move |x, _| {
            x.reshape(batch_of(x.shape().first().copied().unwrap_or(1), &output)?)
        })
    }
}
