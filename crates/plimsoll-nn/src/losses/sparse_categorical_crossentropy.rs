//! `SparseCategoricalCrossentropy`: against the index of a class.

use plimsoll_tensor::{DType, Result, Tensor, at_callers_line};

use super::probabilities::Look;
use super::{Loss, check_smoothing, wide};
use crate::prediction::Prediction;

/// The cross entropy of class indices `[..]` and predictions `[.., classes]`: `-ln(prediction of the class)`.
///
/// Labels are whole numbers; one that is no class is an error that names it and its place. An axis of extent one at the
/// end of the labels does not count. Predictions are as for
/// [`CategoricalCrossentropy`](super::CategoricalCrossentropy).
#[doc(alias("CrossEntropyLoss", "NLLLoss"))]
#[derive(Clone, Debug, Default)]
pub struct SparseCategoricalCrossentropy {
    from_logits: bool,
    label_smoothing: f64,
    ignored: Option<i64>,
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

    /// This loss, with a part of each label spread evenly over all classes.
    pub fn label_smoothing(self, label_smoothing: f64) -> SparseCategoricalCrossentropy {
        SparseCategoricalCrossentropy { label_smoothing, ..self }
    }

    /// This loss, without the labels that are `class`, which need not be one of the classes: their loss and gradient are
    /// zero, and the mean is that of the others; NaN if there are none. Where a batch is worked through in parts, each
    /// part still counts by its examples.
    #[doc(alias = "ignore_index")]
    pub fn ignore_class(self, class: i64) -> SparseCategoricalCrossentropy {
        SparseCategoricalCrossentropy { ignored: Some(class), ..self }
    }
}

impl Loss for SparseCategoricalCrossentropy {
    fn name(&self) -> &str {
        NAME
    }

    fn is_pure(&self) -> bool {
        self.from_logits || self.look.is_over()
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        check_smoothing(NAME, self.label_smoothing)?;
        let predictions = wide(NAME, predictions)?;
        let labels = class_indices(labels, &predictions)?;
        let logs = if self.from_logits { predictions } else { self.look.log(NAME, &predictions)? };
        let mut losses = match self.ignored {
            None => logs.sparse_cross_entropy(&labels)?,
            Some(ignored) => logs.sparse_cross_entropy_ignoring(&labels, ignored)?,
        };
        if self.label_smoothing > 0.0 {
            // What an even label would lose: the mean over the classes instead of one of them.
            let even = logs.logsumexp(-1)?.sub(&logs.mean(-1)?)?;
            losses = losses
                .affine(1.0 - self.label_smoothing, 0.0)?
                .add(&even.affine(self.label_smoothing, 0.0)?)?;
        }
        if !self.from_logits {
            // The loss of logits takes the log-sum-exp away from each; after clipping that is not quite zero.
            losses = losses.sub(&logs.logsumexp(-1)?)?;
        }
        match self.ignored {
            Some(ignored) => labels.ne(ignored)?.where_(&losses, &Tensor::zeros_like(&losses)?),
            None => Ok(losses),
        }
    }

    fn call(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        let losses = self.losses(labels, predictions)?;
        match self.ignored {
            None => losses.mean(..),
            Some(ignored) => losses.sum(..)?.div(&labels.ne(ignored)?.cast(losses.dtype())?.sum(..)?),
        }
    }

    fn of(&self, labels: &Tensor, prediction: Prediction) -> Result<Tensor> {
        match prediction {
            Prediction::Linear { rows, weights } if self.is_plain() => {
                let labels = class_indices(labels, &rows)?;
                rows.linear_cross_entropy(&weights, &labels, None)
            }
            other => self.call(labels, &other.values()?),
        }
    }
}

impl SparseCategoricalCrossentropy {
    /// Whether it is the mean cross entropy of logits and nothing else.
    fn is_plain(&self) -> bool {
        self.from_logits && self.label_smoothing == 0.0 && self.ignored.is_none()
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
