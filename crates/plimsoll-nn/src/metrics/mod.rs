//! Metrics: what is told of a model's predictions, averaged over batches. One per file, with Keras's names.
//!
//! A metric adds up on the device, in a variable of two numbers, so that a step reads nothing back and one that fails
//! leaves the metric as it was. [`Metric::result`] reads it, and [`Metric::reset`] begins anew, once per epoch.

mod accuracy;
mod errors;
mod mean;
mod top_k;

pub use accuracy::{Accuracy, BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy};
pub use errors::{MeanAbsoluteError, MeanSquaredError};
pub use mean::Mean;
pub use top_k::{SparseTopKCategoricalAccuracy, TopKCategoricalAccuracy};

use plimsoll_tensor::{DType, Error, Result, Tensor, Variable, at_callers_line};

use crate::losses;

/// A number that is told of predictions.
pub trait Metric: Send {
    /// The name, as logs show it.
    fn name(&self) -> &str;

    /// Takes in a batch.
    ///
    /// # Errors
    /// Labels that do not fit the predictions; memory that is full.
    fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()>;

    /// The metric over all batches since the last reset; NaN if there was none, or on a ghost.
    fn result(&self) -> f64;

    /// Forgets all batches.
    fn reset(&mut self);

    /// Whether it takes all batches that are alike in by the same ops, and keeps nothing but variables: then evaluations
    /// are recorded with it, and it is not called for each batch.
    fn is_pure(&self) -> bool {
        false
    }

    /// What it keeps on the device; nothing before the first batch.
    fn variables(&self) -> Vec<Variable> {
        Vec::new()
    }
}

/// A metric that is the mean of a number per example: which one, and the mean so far.
trait Averaged {
    const NAME: &'static str;

    /// The numbers of a batch, of which the mean is taken.
    fn values(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor>;

    fn mean(&self) -> &Mean;

    fn mean_mut(&mut self) -> &mut Mean;
}

impl<A: Averaged + Send> Metric for A {
    fn name(&self) -> &str {
        A::NAME
    }

    #[track_caller]
    fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        // No tape follows what a metric does.
        let values = self.values(&labels.stop_gradient(), &predictions.stop_gradient())?;
        self.mean_mut().add(&values)
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn result(&self) -> f64 {
        self.mean().result()
    }

    fn reset(&mut self) {
        self.mean_mut().reset();
    }

    fn variables(&self) -> Vec<Variable> {
        self.mean().variables()
    }
}

/// Declares a metric without attributes.
macro_rules! averaged {
    ($(#[$doc:meta])* $name:ident, $text:literal, $values:expr) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            mean: super::Mean,
        }

        impl $name {
            /// The metric, before any batch.
            pub fn new() -> $name {
                $name::default()
            }
        }

        impl super::Averaged for $name {
            const NAME: &'static str = $text;

            fn values(
                &self,
                labels: &plimsoll_tensor::Tensor,
                predictions: &plimsoll_tensor::Tensor,
            ) -> plimsoll_tensor::Result<plimsoll_tensor::Tensor> {
                $values(labels, predictions)
            }

            fn mean(&self) -> &super::Mean {
                &self.mean
            }

            fn mean_mut(&mut self) -> &mut super::Mean {
                &mut self.mean
            }
        }
    };
}

use averaged;

/// Class indices as int64, one for each row of predictions.
fn class_indices(metric: &'static str, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
    let labels = losses::class_indices(labels, predictions)?;
    match predictions.shape().dims().split_last() {
        Some((_, rows)) if labels.shape().dims() == rows => labels.cast(DType::I64),
        _ => Err(Error::shape(
            metric,
            format!(
                "labels of shape {} for predictions of shape {}; one for each row",
                labels.shape(),
                predictions.shape()
            ),
        )),
    }
}

/// Refuses labels of another shape than the predictions'.
fn check_same_shape(metric: &'static str, labels: &Tensor, predictions: &Tensor) -> Result<()> {
    match labels.shape() == predictions.shape() {
        true => Ok(()),
        false => Err(Error::shape(
            metric,
            format!(
                "labels of shape {} for predictions of shape {}; they must agree",
                labels.shape(),
                predictions.shape()
            ),
        )),
    }
}
