//! `SparseCategoricalCrossentropy`: against the index of a class.

use plimsoll_tensor::{DType, Result, Tensor};

use super::probabilities::Look;
use super::{Loss, wide};
use crate::prediction::Prediction;

/// The cross entropy of class indices `[..]` and predictions `[.., classes]`: `-ln(prediction of the class)`.
///
/// Labels are whole numbers; one that is no class is an error that names it and its place. An axis of extent one at the
/// end of the labels does not count. Predictions are as for
/// [`CategoricalCrossentropy`](super::CategoricalCrossentropy).
#[derive(Clone, Debug, Default)]
pub struct SparseCategoricalCrossentropy {
    from_logits: bool,
    look: Look,
}

const NAME: &str = "sparse_categorical_crossentropy";

impl SparseCategoricalCrossentropy {
    /// The loss of probabilities.
    pub fn new() -> SparseCategoricalCrossentropy {
        SparseCategoricalCrossentropy::default()
    }

    /// This loss, of logits.
    pub fn from_logits(self, from_logits: bool) -> SparseCategoricalCrossentropy {
        SparseCategoricalCrossentropy { from_logits, ..self }
    }
}

impl Loss for SparseCategoricalCrossentropy {
    fn name(&self) -> &str {
        NAME
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let predictions = wide(NAME, predictions)?;
        let labels = class_indices(labels, &predictions)?;
        if self.from_logits {
            return predictions.sparse_cross_entropy(&labels);
        }
        // The loss of logits takes the log-sum-exp away from each; after clipping that is not quite zero.
        let logs = self.look.log(NAME, &predictions)?;
        logs.sparse_cross_entropy(&labels)?.sub(&logs.logsumexp(-1)?)
    }

    fn of(&self, labels: &Tensor, prediction: Prediction) -> Result<Tensor> {
        match prediction {
            Prediction::Linear { rows, weights } if self.from_logits => {
                let labels = class_indices(labels, &rows)?;
                rows.linear_cross_entropy(&weights, &labels, None)
            }
            other => self.call(labels, &other.values()?),
        }
    }
}

/// Labels as the op takes them: bytes as int64, without an axis of extent one at the end.
pub(crate) fn class_indices(labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
    let labels = if labels.dtype() == DType::U8 { labels.cast(DType::I64)? } else { labels.clone() };
    match labels.rank() == predictions.rank() && labels.shape().dims().last() == Some(&1) {
        true => labels.squeeze(-1),
        false => Ok(labels),
    }
}
