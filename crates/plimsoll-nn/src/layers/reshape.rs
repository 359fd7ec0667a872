//! `Reshape`: the elements of an example in another shape.

use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{IntoReshape, Result, Shape};

use crate::layer::{BuiltLayer, Layer};
use crate::model::batch_of;

/// Each example in another shape of as many elements: `[batch, ..]` to `[batch, shape]`. One extent may be `-1`: it is what the
/// others leave of an example.
#[doc(alias("View", "Unflatten"))]
#[derive(Clone)]
pub struct Reshape {
    /// The shape for examples of a given one, which is known when the layer is built.
    shape: Arc<Reshaped>,
}

/// The shape of an example of that shape.
type Reshaped = dyn Fn(&Shape) -> Result<Shape> + Send + Sync;

impl Reshape {
    /// A layer that gives examples that shape, such as `[4, -1]`.
    pub fn new(shape: impl IntoReshape + Clone + Send + Sync + 'static) -> Reshape {
        Reshape { shape: Arc::new(move |example| shape.clone().into_reshape(example)) }
    }
}

impl fmt::Debug for Reshape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reshape")
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
        let output = (self.shape)(input)?;
        BuiltLayer::new(output, move |x, _| {
            x.reshape(batch_of(x.shape().first().copied().unwrap_or(1), &output)?)
        })
    }
}
