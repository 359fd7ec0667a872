//! What a model gives to a loss: values, or the last linear function that would make them.
//!
//! The logits of many classes are the largest tensor of a model, and a loss is often their only consumer. A model that ends
//! in a plain linear function can hand that function over instead of its result; a loss that knows how computes with it a
//! few rows at a time (see [`Tensor::linear_cross_entropy`]), and any other loss asks for the values.

use plimsoll_tensor::{Activation, Device, Error, Nested, Result, Tensor};

/// The output of a model, computed or not yet.
pub enum Prediction {
    /// The values.
    Values(Tensor),
    /// The values of several outputs.
    Nested(Nested<Tensor>),
    /// The linear function `rows · weights`, with rows `[.., k]` and weights `[k, n]`.
    Linear {
        /// What goes into the function.
        rows: Tensor,
        /// What it is multiplied by.
        weights: Tensor,
    },
}

impl From<Tensor> for Prediction {
    fn from(values: Tensor) -> Prediction {
        Prediction::Values(values)
    }
}

impl From<Nested<Tensor>> for Prediction {
    fn from(values: Nested<Tensor>) -> Prediction {
        match values {
            Nested::One(values) => Prediction::Values(values),
            several => Prediction::Nested(several),
        }
    }
}

impl Prediction {
    /// The device that it is on, or will be; of several outputs, the first one's.
    pub(crate) fn device(&self) -> Option<Device> {
        match self {
            Prediction::Values(values) => Some(values.device()),
            Prediction::Nested(values) => values.first().map(Tensor::device),
            Prediction::Linear { weights, .. } => Some(weights.device()),
        }
    }

    /// The same without a gradient.
    pub(crate) fn stop_gradient(&self) -> Prediction {
        match self {
            Prediction::Values(values) => Prediction::Values(values.stop_gradient()),
            Prediction::Nested(values) => Prediction::Nested(values.map(Tensor::stop_gradient)),
            Prediction::Linear { rows, weights } => {
                Prediction::Linear { rows: rows.stop_gradient(), weights: weights.stop_gradient() }
            }
        }
    }

    /// The values of one output or of several, computed if they are not there yet.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn nested(self) -> Result<Nested<Tensor>> {
        match self {
            Prediction::Nested(values) => Ok(values),
            one => one.values().map(Nested::One),
        }
    }

    /// The values, computed if they are not there yet.
    ///
    /// # Errors
    /// Several outputs; memory that is full.
    #[track_caller]
    pub fn values(self) -> Result<Tensor> {
        match self {
            Prediction::Values(values) => Ok(values),
            Prediction::Nested(values) => Err(Error::shape(
                "loss",
                format!(
                    "one output is taken, and the model gives {}; `Losses` has a loss for each",
                    values.map(|values| *values.shape())
                ),
            )),
            Prediction::Linear { rows, weights } => rows.linear(&weights, None, Activation::None),
        }
    }
}
