//! Metrics: what is told of a model's predictions, averaged over batches. One per file, with Keras's names.
//!
//! A metric adds up on the device, in a variable of two numbers, so that a step reads nothing back and one that fails
//! leaves the metric as it was. [`Metric::result`] reads it, and [`Metric::reset`] begins anew, once per epoch.

mod accuracy;
mod auc;
mod errors;
mod mean;
mod on_output;
mod precision;
mod top_k;

pub use accuracy::{Accuracy, BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy};
pub use auc::{AUC, Curve};
pub use errors::{MeanAbsoluteError, MeanSquaredError};
pub use mean::Mean;
pub use on_output::{OnOutput, Weighted};
pub use precision::{Precision, Recall};
pub use top_k::{SparseTopKCategoricalAccuracy, TopKCategoricalAccuracy};

use plimsoll_tensor::{DType, Device, Error, Nested, Result, Tensor, Variable, at_callers_line};

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

    /// Takes in a batch of which not all count the same, as [`Loss::weighted`](crate::Loss::weighted) has it.
    ///
    /// # Errors
    /// A metric that does not know weights, which is what one is unless it says otherwise; labels or weights that do not
    /// fit the predictions; memory that is full.
    fn update_weighted(&mut self, _labels: &Tensor, _predictions: &Tensor, _weights: &Tensor) -> Result<()> {
        Err(Error::argument("metric", format!("{} does not take sample weights", self.name())))
    }

    /// Takes in a batch as a run has it. A metric of one output takes one tensor of each; [`OnOutput`] picks it out of
    /// several.
    ///
    /// # Errors
    /// Several outputs; labels that do not fit the predictions; memory that is full.
    fn update_batch(
        &mut self,
        labels: &Nested<Tensor>,
        predictions: &Nested<Tensor>,
        weights: Option<&Nested<Tensor>>,
    ) -> Result<()> {
        let (Some(labels), Some(predictions), weights) =
            (labels.one(), predictions.one(), weights.map(Nested::one))
        else {
            let shapes = predictions.map(|tensor| *tensor.shape());
            let detail =
                format!("{} takes one output, and there are {shapes}; `OnOutput` says which", self.name());
            return Err(Error::shape("metric", detail));
        };
        match weights {
            Some(Some(weights)) => self.update_weighted(labels, predictions, weights),
            Some(None) => Err(Error::shape("metric", format!("{} takes one tensor of weights", self.name()))),
            None => self.update(labels, predictions),
        }
    }

    /// Whether a run gives it the sample weights of a batch. As in Keras, a metric is not given them unless it is
    /// [`Weighted`].
    fn takes_weights(&self) -> bool {
        false
    }

    /// Makes what it keeps on the device now instead of at the first batch.
    ///
    /// # Errors
    /// Memory that is full.
    fn prepare(&mut self, _device: &Device) -> Result<()> {
        Ok(())
    }

    /// The metric so far as a number on the device, if it can be had without reading anything back: what steps tell.
    ///
    /// # Errors
    /// Memory that is full.
    fn result_on_device(&self) -> Result<Option<Tensor>> {
        Ok(None)
    }

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

/// A metric of a kind that is known when the program runs.
impl Metric for Box<dyn Metric> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn update(&mut self, labels: &Tensor, predictions: &Tensor) -> Result<()> {
        (**self).update(labels, predictions)
    }

    fn update_weighted(&mut self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<()> {
        (**self).update_weighted(labels, predictions, weights)
    }

    fn update_batch(
        &mut self,
        labels: &Nested<Tensor>,
        predictions: &Nested<Tensor>,
        weights: Option<&Nested<Tensor>>,
    ) -> Result<()> {
        (**self).update_batch(labels, predictions, weights)
    }

    fn takes_weights(&self) -> bool {
        (**self).takes_weights()
    }

    fn prepare(&mut self, device: &Device) -> Result<()> {
        (**self).prepare(device)
    }

    fn result_on_device(&self) -> Result<Option<Tensor>> {
        (**self).result_on_device()
    }

    fn result(&self) -> f64 {
        (**self).result()
    }

    fn reset(&mut self) {
        (**self).reset();
    }

    fn is_pure(&self) -> bool {
        (**self).is_pure()
    }

    fn variables(&self) -> Vec<Variable> {
        (**self).variables()
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

    #[track_caller]
    fn update_weighted(&mut self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<()> {
        let _line = at_callers_line();
        let values = self.values(&labels.stop_gradient(), &predictions.stop_gradient())?;
        self.mean_mut().add_weighted(&values, weights)
    }

    fn prepare(&mut self, device: &Device) -> Result<()> {
        self.mean_mut().prepare(device)
    }

    fn result_on_device(&self) -> Result<Option<Tensor>> {
        self.mean().result_on_device()
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
