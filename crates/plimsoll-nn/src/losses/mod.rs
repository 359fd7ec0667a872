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
mod per_output;
mod probabilities;
mod regularized;
mod sparse_categorical_crossentropy;

pub use binary_crossentropy::BinaryCrossentropy;
pub use categorical_crossentropy::CategoricalCrossentropy;
pub use huber::Huber;
pub use mean_absolute_error::MeanAbsoluteError;
pub use mean_squared_error::MeanSquaredError;
pub use per_output::Losses;
pub use regularized::Regularized;
pub use sparse_categorical_crossentropy::SparseCategoricalCrossentropy;
pub(crate) use sparse_categorical_crossentropy::class_indices;

use std::sync::Arc;

use plimsoll_tensor::{DType, Error, Nested, Result, Tensor, at_callers_line};

use crate::model::Model;
use crate::prediction::Prediction;

/// What a loss may look at, besides what the model said.
#[derive(Clone, Copy)]
pub struct LossContext<'a> {
    /// What went into the model.
    pub inputs: &'a Nested<Tensor>,
    /// What the model should have said.
    pub labels: &'a Nested<Tensor>,
    /// How much each example counts: see [`Batch::sample_weights`](crate::train::Batch::sample_weights).
    pub sample_weights: Option<&'a Nested<Tensor>>,
    /// The model.
    pub model: &'a Model,
}

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

    /// The loss of a batch, with all that a run knows of it: what steps and evaluations call. Unless a loss says otherwise,
    /// it is [`of`](Loss::of) one output, or [`weighted`](Loss::weighted) where there are sample weights.
    ///
    /// # Errors
    /// Labels or weights that do not fit the predictions; several outputs, for which there is [`Losses`]; memory that is
    /// full.
    fn of_batch(&self, context: &LossContext<'_>, prediction: Prediction) -> Result<Tensor> {
        let labels = one_of(self.name(), "labels", context.labels)?;
        match context.sample_weights {
            None => self.of(labels, prediction),
            Some(weights) => {
                let weights = one_of(self.name(), "sample weights", weights)?;
                self.weighted(labels, &prediction.values()?, weights)
            }
        }
    }

    /// Whether what the loss does depends on nothing but shapes and its description, as for [layers](crate::Layer::is_pure):
    /// then a step that was recorded once may be repeated without calling it.
    fn is_pure(&self) -> bool {
        false
    }

    /// The sum of [`losses`](Loss::losses), each times its weight, over their number, as Keras has it. Weights that are
    /// bools are a mask: the mean is that of the losses where they are true, NaN if there are none. A weight for each
    /// example holds for all losses that it has.
    ///
    /// # Errors
    /// Labels that do not fit the predictions, weights that do not fit the losses; memory that is full.
    #[track_caller]
    fn weighted(&self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        let losses = self.losses(labels, predictions)?;
        let is_mask = weights.dtype() == DType::Bool;
        let weights = weights_like("sample_weight", weights, &losses)?;
        let sum = losses.mul(&weights)?;
        if is_mask { sum.sum(..)?.div(&weights.sum(..)?) } else { sum.mean(..) }
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

    fn of_batch(&self, context: &LossContext<'_>, prediction: Prediction) -> Result<Tensor> {
        (**self).of_batch(context, prediction)
    }

    fn is_pure(&self) -> bool {
        (**self).is_pure()
    }

    fn weighted(&self, labels: &Tensor, predictions: &Tensor, weights: &Tensor) -> Result<Tensor> {
        (**self).weighted(labels, predictions, weights)
    }
}

/// The only tensor of a structure.
fn one_of<'a>(loss: &str, what: &str, tensors: &'a Nested<Tensor>) -> Result<&'a Tensor> {
    tensors.one().ok_or_else(|| {
        let shapes = tensors.map(|tensor| *tensor.shape());
        Error::shape("loss", format!("{loss} takes one tensor of {what}, and there are {shapes}; `Losses` has a loss for each output"))
    })
}

/// Weights of the dtype and shape of values: one for each, or one for each example, or for any of the first axes, which then
/// holds for all that is inside it.
pub(crate) fn weights_like(op: &'static str, weights: &Tensor, values: &Tensor) -> Result<Tensor> {
    let (given, dims) = (weights.shape().dims(), values.shape().dims());
    let is_squeezable = given.len() == dims.len() + 1 && given.last() == Some(&1);
    let given = if is_squeezable { &given[..dims.len()] } else { given };
    if given.len() > dims.len() || given != &dims[..given.len()] {
        return Err(Error::shape(
            op,
            format!(
                "weights of shape {} for losses of shape {}; one for each, or one for each example",
                weights.shape(),
                values.shape()
            ),
        ));
    }
    let weights = weights.cast(values.dtype())?;
    if weights.shape() == values.shape() {
        return Ok(weights);
    }
    let with_ones: Vec<usize> = (0..dims.len()).map(|axis| given.get(axis).copied().unwrap_or(1)).collect();
    weights.reshape(with_ones)?.broadcast_to(*values.shape())
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
