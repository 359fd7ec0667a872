//! `CategoricalCrossentropy`: against a number for every class.

use plimsoll_tensor::{Error, Result, Tensor};

use super::probabilities::Look;
use super::{Loss, check_smoothing, wide};

/// The cross entropy of labels `[.., classes]` and predictions of the same shape: `-Σ label ln(prediction)`.
///
/// Labels are usually a distribution, one-hot or soft, but may be any numbers. Predictions are probabilities unless
/// [`from_logits`](CategoricalCrossentropy::from_logits) says that they are logits, which is more exact and needs less
/// memory. As in Keras, probabilities are divided by their sum and clipped at 1e-7 from 0 and 1; if the first ones are no
/// probabilities, there is one warning in the log.
#[doc(alias = "CrossEntropyLoss")]
#[derive(Clone, Debug, Default)]
pub struct CategoricalCrossentropy {
    from_logits: bool,
    label_smoothing: f64,
    look: Look,
}

const NAME: &str = "categorical_crossentropy";

impl CategoricalCrossentropy {
    /// The loss of probabilities.
    pub fn new() -> CategoricalCrossentropy {
        CategoricalCrossentropy::default()
    }

    /// This loss, of logits.
    pub fn from_logits(self, from_logits: bool) -> CategoricalCrossentropy {
        CategoricalCrossentropy { from_logits, ..self }
    }

    /// This loss, with a part of each label spread evenly over all classes.
    pub fn label_smoothing(self, label_smoothing: f64) -> CategoricalCrossentropy {
        CategoricalCrossentropy { label_smoothing, ..self }
    }
}

impl Loss for CategoricalCrossentropy {
    fn name(&self) -> &str {
        NAME
    }

    fn is_pure(&self) -> bool {
        self.from_logits || self.look.is_over()
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        check_smoothing(NAME, self.label_smoothing)?;
        let predictions = wide(NAME, predictions)?;
        let Some(&n_classes) =
            predictions.shape().dims().last().filter(|_| labels.shape() == predictions.shape())
        else {
            return Err(Error::shape(
                NAME,
                format!(
                    "labels of shape {} for predictions of shape {}; there must be one for each class (class indices go \
                     with `SparseCategoricalCrossentropy`)",
                    labels.shape(),
                    predictions.shape()
                ),
            ));
        };
        let mut labels = labels.cast(predictions.dtype())?;
        if self.label_smoothing > 0.0 {
            labels = labels.affine(1.0 - self.label_smoothing, self.label_smoothing / n_classes as f64)?;
        }
        match self.from_logits {
            true => predictions.cross_entropy(&labels),
            false => self.look.log(NAME, &predictions)?.mul(&labels)?.sum(-1)?.neg(),
        }
    }
}
