//! `Residual`: a layer whose input is added to its output.

use plimsoll_tensor::{Error, Result, Shape};

use crate::layer::{Forward, Layer, build};

/// `x + layer(x)`; the layer must give what it takes.
#[derive(Clone, Debug)]
pub struct Residual<L>(pub L);

impl<L: Layer> Layer for Residual<L> {
    fn name(&self) -> &str {
        "residual"
    }

    fn make(&self, input: &Shape) -> Result<Forward> {
        let inner = build(&self.0, input)?;
        if inner.output_shape() != input {
            return Err(Error::shape(
                "residual",
                format!(
                    "the layer makes {} of {input}; its output is added to its input, so both must be equal",
                    inner.output_shape()
                ),
            ));
        }
        Forward::new(input, move |x, mode| inner.forward(x, mode)?.into_add(x.clone()))
    }
}
