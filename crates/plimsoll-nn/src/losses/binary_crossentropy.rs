//! `BinaryCrossentropy`: each prediction is a yes or a no by itself.

use plimsoll_tensor::{Result, Tensor};

use super::{Loss, check_smoothing, dense_labels, per_example};

/// The mean over the last axis of `-label ln(p) - (1 - label) ln(1 - p)`, for labels and predictions of one shape.
///
/// Predictions are probabilities unless [`from_logits`](BinaryCrossentropy::from_logits) says that they are logits, which
/// is more exact. As in Keras, probabilities are clipped at 1e-7 from 0 and 1.
#[doc(alias("BCELoss", "BCEWithLogitsLoss"))]
#[derive(Clone, Debug)]
pub struct BinaryCrossentropy {
    from_logits: bool,
    label_smoothing: f64,
    positive_weight: f64,
}

const NAME: &str = "binary_crossentropy";

impl BinaryCrossentropy {
    /// The loss of probabilities.
    #[expect(clippy::new_without_default, reason = "losses are made by `new`")]
    pub fn new() -> BinaryCrossentropy {
        BinaryCrossentropy { from_logits: false, label_smoothing: 0.0, positive_weight: 1.0 }
    }

    /// This loss, of logits.
    pub fn from_logits(self, from_logits: bool) -> BinaryCrossentropy {
        BinaryCrossentropy { from_logits, ..self }
    }

    /// This loss, with labels moved towards one half.
    pub fn label_smoothing(self, label_smoothing: f64) -> BinaryCrossentropy {
        BinaryCrossentropy { label_smoothing, ..self }
    }

    /// This loss, with positive labels counting so many times.
    #[doc(alias = "pos_weight")]
    pub fn positive_weight(self, positive_weight: f64) -> BinaryCrossentropy {
        BinaryCrossentropy { positive_weight, ..self }
    }
}

impl Loss for BinaryCrossentropy {
    fn name(&self) -> &str {
        NAME
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        check_smoothing(NAME, self.label_smoothing)?;
        let (mut labels, predictions) = dense_labels(NAME, labels, predictions)?;
        if self.label_smoothing > 0.0 {
            labels = labels.affine(1.0 - self.label_smoothing, 0.5 * self.label_smoothing)?;
        }
        per_example(&match self.from_logits {
            true => predictions.binary_cross_entropy(&labels, self.positive_weight)?,
            false => predictions.binary_cross_entropy_of_probabilities(&labels, self.positive_weight)?,
        })
    }
}
