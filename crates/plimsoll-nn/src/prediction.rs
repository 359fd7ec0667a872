//! What a model gives to a loss: values, or the last linear function that would make them.
//!
//! The logits of many classes are the largest tensor of a model, and a loss is often their only reader. A model that ends
//! in a plain linear function can hand that function over instead of its result; a loss that knows how computes with it a
//! few rows at a time (see [`Tensor::linear_cross_entropy`]), and any other loss asks for the values.

use plimsoll_tensor::{Activation, Result, Tensor};

/// The output of a model, computed or not yet.
pub enum Prediction {
    /// The values.
    Values(Tensor),
    /// The linear function `rows · weights`, with rows `[.., k]` and weights `[k, n]`.
    Linear {
        /// What goes into the function.
        rows: Tensor,
        /// What it is multiplied by.
        weights: Tensor,
    },
}

impl Prediction {
    /// The values, computed if they are not there yet.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn values(self) -> Result<Tensor> {
        match self {
            Prediction::Values(values) => Ok(values),
            Prediction::Linear { rows, weights } => rows.linear(&weights, None, Activation::None),
        }
    }
}
