//! `MeanSquaredError`: the squares of the differences.

use plimsoll_tensor::{Result, Tensor};

use super::{Loss, dense_labels, per_example};

/// The mean over the last axis of `(label - prediction)²`.
#[doc(alias = "MSELoss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanSquaredError;

impl Loss for MeanSquaredError {
    fn name(&self) -> &str {
        "mean_squared_error"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let (labels, predictions) = dense_labels("mean_squared_error", labels, predictions)?;
        per_example(&predictions.sub(&labels)?.square()?)
    }
}
