//! `Residual`: a layer whose input is added to its output.

use plimsoll_tensor::{Error, Nested, Result, Shape, Site};

use crate::deferred::Consumer;
use crate::layer::{BuiltLayer, Layer, build};

/// `x + layer(x)`; the layer must give what it takes.
///
/// If what comes next in a [`Sequential`](super::Sequential) begins with a layer norm or an RMS norm, sum and norm are made
/// by one op, and with them dropout that the layer ends in; the numbers are the same.
#[derive(Clone, Debug)]
pub struct Residual<L> {
    layer: L,
}

impl<L: Layer> Residual<L> {
    /// The sum of a layer's input and its output.
    pub fn new(layer: L) -> Residual<L> {
        Residual { layer }
    }
}

impl<L: Layer> Layer for Residual<L> {
    fn name(&self) -> &str {
        "residual"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        // A field has no line of its own: that of the sum says where the layer is.
        let inner = build(&self.layer, &Nested::One(*input), Site::UNKNOWN)?;
        if inner.output_shapes().one() != Some(input) {
            return Err(Error::shape(
                "residual",
                format!(
                    "the layer makes {} of {input}; its output is added to its input, so both must be equal",
                    inner.output_shapes()
                ),
            ));
        }
        let begins_with_norm = inner.begins_with_norm();
        let forward = BuiltLayer::deferring(input, move |x, mode, _| {
            let branch = inner.forward_deferred(x, mode, Consumer::Residual)?;
            branch.added_to(x.values()?)
        })?;
        Ok(forward.begins_with_norm(begins_with_norm))
    }
}
