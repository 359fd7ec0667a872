//! `MeanAbsoluteError`: the magnitudes of the differences.

use plimsoll_tensor::{Result, Tensor};

use super::{Loss, dense_labels, per_example};

/// The mean over the last axis of `|label - prediction|`.
#[doc(alias = "L1Loss")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MeanAbsoluteError;

impl Loss for MeanAbsoluteError {
    fn name(&self) -> &str {
        "mean_absolute_error"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let (labels, predictions) = dense_labels("mean_absolute_error", labels, predictions)?;
        per_example(&predictions.sub(&labels)?.abs()?)
    }
}
