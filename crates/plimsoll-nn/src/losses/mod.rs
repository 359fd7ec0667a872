//! Losses: how far predictions are from labels, as one number. One per file, with Keras's names.
//!
//! Labels come first. Predictions of 16-bit floats are taken in f32, so that the loss and what is summed for it are; labels
//! of another dtype are converted. Nothing is read back from the device, but for one look at the first predictions of a
//! loss that takes probabilities (see [`CategoricalCrossentropy`]).

mod binary_crossentropy;
mod categorical_crossentropy;
mod huber;
mod mean_absolute_error;
mod mean_squared_error;
mod probabilities;
mod sparse_categorical_crossentropy;

pub use binary_crossentropy::BinaryCrossentropy;
pub use categorical_crossentropy::CategoricalCrossentropy;
pub use huber::Huber;
pub use mean_absolute_error::MeanAbsoluteError;
pub use mean_squared_error::MeanSquaredError;
pub use sparse_categorical_crossentropy::SparseCategoricalCrossentropy;
pub(crate) use sparse_categorical_crossentropy::class_indices;

use std::sync::Arc;

use plimsoll_tensor::{DType, Error, Result, Tensor, at_callers_line};

use crate::prediction::Prediction;

/// How far predictions are from labels.
pub trait Loss: Send + Sync {
    /// The name, as logs show it.
    fn name(&self) -> &str;

    /// The loss of each example; where there are several per example, such as one per word, each of them.
    ///
    /// # Errors
    /// Labels that do not fit the predictions; memory that is full.
    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor>;

    /// The mean of [`losses`](Loss::losses): a scalar in f32, in f64 for predictions of f64.
    ///
    /// # Errors
    /// Labels that do not fit the predictions; memory that is full.
    #[track_caller]
    fn call(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        self.losses(labels, predictions)?.mean(..)
    }

    /// The same as [`call`](Loss::call), for a prediction that may not be computed yet.
    ///
    /// # Errors
    /// Labels that do not fit the predictions; memory that is full.
    #[track_caller]
    fn of(&self, labels: &Tensor, prediction: Prediction) -> Result<Tensor> {
        let _line = at_callers_line();
        self.call(labels, &prediction.values()?)
    }

    /// Whether what the loss does depends on nothing but shapes and its description, as for [layers](crate::Layer::is_pure):
    /// then a step that was recorded once may be repeated without calling it.
    fn is_pure(&self) -> bool {
        false
    }

    /// The sum of [`losses`](Loss::losses), each times its weight, over their number, as Keras has it.
    ///
    /// # Errors
    /// Labels that do not fit the predictions, weights that do not fit the losses; memory that is full.
    #[track_caller]
    fn weighted(&self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        let losses = self.losses(labels, predictions)?;
        if weights.shape() != losses.shape() {
            return Err(Error::shape(
                "sample_weight",
                format!(
                    "weights of shape {} for losses of shape {}; one for each",
                    weights.shape(),
                    losses.shape()
                ),
            ));
        }
        losses.mul(&weights.cast(losses.dtype())?)?.mean(..)
    }
}

/// A loss that is shared.
impl<L: Loss + ?Sized> Loss for Arc<L> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        (**self).losses(labels, predictions)
    }

    fn call(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        (**self).call(labels, predictions)
    }

    fn of(&self, labels: &Tensor, prediction: Prediction) -> Result<Tensor> {
        (**self).of(labels, prediction)
    }

    fn is_pure(&self) -> bool {
        (**self).is_pure()
    }

    fn weighted(&self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<Tensor> {
        (**self).weighted(labels, predictions, weights)
    }
}

/// Predictions as losses take them: floats, 16-bit ones in f32.
fn wide(loss: &'static str, predictions: &Tensor) -> Result<Tensor> {
    match predictions.dtype() {
        DType::F16 | DType::BF16 => predictions.cast(DType::F32),
        float if float.is_float() => Ok(predictions.clone()),
        other => Err(Error::dtype(loss, format!("predictions are {other}; they must be floats"))),
    }
}

/// Labels of the dtype and the shape of predictions, with one number for each; an axis of extent one at the end of
/// either does not count.
fn dense_labels(loss: &'static str, labels: &Tensor, predictions: &Tensor) -> Result<(Tensor, Tensor)> {
    let predictions = wide(loss, predictions)?;
    let labels = labels.cast(predictions.dtype())?;
    let (label_dims, dims) = (labels.shape().dims().to_vec(), predictions.shape().dims().to_vec());
    if label_dims == dims {
        return Ok((labels, predictions));
    }
    if [dims.as_slice(), &[1]].concat() == label_dims {
        return Ok((labels.reshape(dims)?, predictions));
    }
    if [label_dims.as_slice(), &[1]].concat() == dims {
        return Ok((labels, predictions.reshape(label_dims)?));
    }
    Err(Error::shape(
        loss,
        format!(
            "labels of shape {label_dims:?} for predictions of shape {dims:?}; there must be one for each"
        ),
    ))
}

/// The mean over what one example consists of: its last axis.
fn per_example(losses: &Tensor) -> Result<Tensor> {
    match losses.rank() {
        0 | 1 => Ok(losses.clone()),
        _ => losses.mean(-1),
    }
}

/// Refuses a smoothing that is no part of a whole.
fn check_smoothing(loss: &'static str, smoothing: f64) -> Result<()> {
    match (0.0..=1.0).contains(&smoothing) {
        true => Ok(()),
        false => Err(Error::argument(loss, format!("a label smoothing of {smoothing}; it goes from 0 to 1"))),
    }
}
