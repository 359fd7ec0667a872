//! Top-k accuracies: how often the right class is among the `k` greatest predictions.
//!
//! As in Keras, a class is among them if fewer than `k` predictions are greater than its own, so equal ones all count.

use plimsoll_tensor::{DType, Result, Tensor};

use super::{Averaged, Mean, check_same_shape, class_indices};

/// How often the class that a label names is among the `k` greatest predictions.
#[derive(Debug)]
pub struct SparseTopKCategoricalAccuracy {
    k: usize,
    mean: Mean,
}

impl SparseTopKCategoricalAccuracy {
    /// The accuracy of the `k` greatest; Keras's default is 5.
    pub fn new(k: usize) -> SparseTopKCategoricalAccuracy {
        SparseTopKCategoricalAccuracy { k, mean: Mean::new() }
    }
}

impl Averaged for SparseTopKCategoricalAccuracy {
    const NAME: &'static str = "sparse_top_k_categorical_accuracy";

    fn values(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        hits(&class_indices(Self::NAME, labels, predictions)?, predictions, self.k)
    }

    fn mean(&self) -> &Mean {
        &self.mean
    }

    fn mean_mut(&mut self) -> &mut Mean {
        &mut self.mean
    }
}

/// How often the class of the greatest label is among the `k` greatest predictions.
#[derive(Debug)]
pub struct TopKCategoricalAccuracy {
    k: usize,
    mean: Mean,
}

impl TopKCategoricalAccuracy {
    /// The accuracy of the `k` greatest; Keras's default is 5.
    pub fn new(k: usize) -> TopKCategoricalAccuracy {
        TopKCategoricalAccuracy { k, mean: Mean::new() }
    }
}

impl Averaged for TopKCategoricalAccuracy {
    const NAME: &'static str = "top_k_categorical_accuracy";

    fn values(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        check_same_shape(Self::NAME, labels, predictions)?;
        hits(&labels.argmax(-1)?, predictions, self.k)
    }

    fn mean(&self) -> &Mean {
        &self.mean
    }

    fn mean_mut(&mut self) -> &mut Mean {
        &mut self.mean
    }
}

/// One where fewer than `k` predictions are greater than that of the class, else zero.
fn hits(classes: &Tensor, predictions: &Tensor, k: usize) -> Result<Tensor> {
    let own = predictions.gather(-1, &classes.unsqueeze(-1)?)?;
    let n_greater = predictions.gt(&own)?.cast(DType::I64)?.sum(-1)?;
    n_greater.lt(k)?.cast(DType::F32)
}
