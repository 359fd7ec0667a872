//! Accuracies: how often a prediction is right.

use plimsoll_tensor::{DType, Result, Tensor};

use super::{Averaged, Mean, averaged, check_same_shape, class_indices};

averaged! {
    /// How often a label and a prediction of the same place are equal.
    Accuracy, "accuracy", |labels: &Tensor, predictions: &Tensor| {
        check_same_shape("accuracy", labels, predictions)?;
        labels.cast(predictions.dtype())?.eq(predictions)?.cast(DType::F32)
    }
}

averaged! {
    /// How often the greatest of the predictions `[.., classes]` is that of the class that a label of `[..]` names.
    SparseCategoricalAccuracy, "sparse_categorical_accuracy", |labels: &Tensor, predictions: &Tensor| {
        let labels = class_indices("sparse_categorical_accuracy", labels, predictions)?;
        predictions.argmax(-1)?.eq(&labels)?.cast(DType::F32)
    }
}

averaged! {
    /// How often the greatest of the predictions `[.., classes]` is where the greatest of the labels is.
    CategoricalAccuracy, "categorical_accuracy", |labels: &Tensor, predictions: &Tensor| {
        check_same_shape("categorical_accuracy", labels, predictions)?;
        predictions.argmax(-1)?.eq(&labels.argmax(-1)?)?.cast(DType::F32)
    }
}

/// How often a prediction is above a threshold where its label is one, and not where it is zero.
#[derive(Debug)]
pub struct BinaryAccuracy {
    threshold: f64,
    mean: Mean,
}

impl BinaryAccuracy {
    /// The accuracy at a threshold: 0.5 for probabilities, 0 for logits.
    pub fn new(threshold: f64) -> BinaryAccuracy {
        BinaryAccuracy { threshold, mean: Mean::new() }
    }
}

impl Averaged for BinaryAccuracy {
    const NAME: &'static str = "binary_accuracy";

    fn values(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        check_same_shape(Self::NAME, labels, predictions)?;
        let said = predictions.gt(self.threshold)?.cast(DType::F32)?;
        said.eq(&labels.cast(DType::F32)?)?.cast(DType::F32)
    }

    fn mean(&self) -> &Mean {
        &self.mean
    }

    fn mean_mut(&mut self) -> &mut Mean {
        &mut self.mean
    }
}
