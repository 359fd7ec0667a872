//! Where a run's batches come from.

use std::borrow::Cow;

use plimsoll_data::{Batches, Dataset, Threads};
use plimsoll_tensor::{DType, Device, Error, Nested, Result, Shape, Structure, Tensor};

use crate::model::{Model, join};

/// One batch: inputs and what the model should say to them, example by example along the first axis. Each is a tensor, or a
/// tuple or named fields of tensors, as the model takes and gives them.
#[derive(Clone)]
pub struct Batch {
    /// What goes into the model.
    pub inputs: Nested<Tensor>,
    /// What the loss compares its output with.
    pub labels: Nested<Tensor>,
    /// How much each example counts, or each of its parts, such as words: numbers that losses are multiplied by, or bools,
    /// of which the mean is that of those that are true. One tensor, or one for each output.
    pub sample_weights: Option<Nested<Tensor>>,
}

impl Batch {
    /// A batch in which all examples count the same: `Batch::new(x, y)`, `Batch::new((image, text), y)`.
    pub fn new(inputs: impl Into<Nested<Tensor>>, labels: impl Into<Nested<Tensor>>) -> Batch {
        Batch { inputs: inputs.into(), labels: labels.into(), sample_weights: None }
    }

    /// This batch with weights for its examples.
    #[must_use]
    pub fn weighted(self, sample_weights: impl Into<Nested<Tensor>>) -> Batch {
        Batch { sample_weights: Some(sample_weights.into()), ..self }
    }

    /// The input and the label of a batch that has one of each: `let (x, y) = batch.input_and_label()?`.
    ///
    /// # Errors
    /// Several inputs or labels.
    pub fn input_and_label(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.inputs.clone().try_into()?, self.labels.clone().try_into()?))
    }

    /// All tensors, in order: inputs, labels, weights.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let weights = self.sample_weights.iter().flat_map(Nested::leaves);
        self.inputs.leaves().into_iter().chain(self.labels.leaves()).chain(weights)
    }

    /// The same arrangement of other tensors.
    pub(super) fn rebuilt(&self, tensors: Vec<Tensor>) -> Result<Batch> {
        let mut tensors = tensors.into_iter();
        Ok(Batch {
            inputs: self.inputs.rebuild(&mut tensors)?,
            labels: self.labels.rebuild(&mut tensors)?,
            sample_weights: self.sample_weights.rebuild(&mut tensors)?,
        })
    }

    /// How inputs, labels and weights are arranged.
    pub(super) fn arrangement(&self) -> [Nested<()>; 3] {
        let weights = self.sample_weights.as_ref();
        let none = Nested::Tuple(Vec::new());
        [
            self.inputs.map(|_| ()),
            self.labels.map(|_| ()),
            weights.map_or(none, |weights| weights.map(|_| ())),
        ]
    }

    /// What the tensors are called, in order, unless the data have names for them.
    pub(super) fn names(&self, of_data: Vec<String>) -> Vec<String> {
        if of_data.len() == self.tensors().count() {
            return of_data;
        }
        let parts = [("inputs", Some(&self.inputs)), ("labels", Some(&self.labels))];
        let parts = parts.into_iter().chain([("sample_weights", self.sample_weights.as_ref())]);
        let named = parts.filter_map(|(name, part)| Some((name, part?.paths())));
        named.flat_map(|(name, paths)| paths.into_iter().map(move |path| join(name, &path))).collect()
    }

    /// The device of its tensors.
    pub fn device(&self) -> Device {
        self.inputs.first().map_or_else(Device::current, Tensor::device)
    }

    /// The number of examples, which all its tensors must have.
    pub(super) fn n_examples(&self) -> Result<usize> {
        let first = |tensor: &Tensor| tensor.shape().dims().first().copied();
        let n = self.inputs.first().and_then(first).filter(|&n| n > 0 && self.labels.n_leaves() > 0);
        match n {
            Some(n) if self.tensors().all(|tensor| first(tensor) == Some(n)) => Ok(n),
            _ => {
                let shapes = |tensors: &Nested<Tensor>| tensors.map(|tensor| *tensor.shape());
                let weights = self.sample_weights.as_ref();
                let weights =
                    weights.map_or_else(String::new, |weights| format!(", weights of {}", shapes(weights)));
                Err(Error::shape(
                    "fit",
                    format!(
                        "inputs of {} and labels of {}{weights}; all must have the examples of the batch along their \
                         first axis, at least one",
                        shapes(&self.inputs),
                        shapes(&self.labels)
                    ),
                ))
            }
        }
    }

    /// This batch with labels and weights on the device of what a model said, where the model is spread over several.
    pub(super) fn beside(&self, model: &Model, said: Option<Device>) -> Result<Cow<'_, Batch>> {
        let Some(device) = said.filter(|_| model.is_spread()) else { return Ok(Cow::Borrowed(self)) };
        let to_device =
            |tensors: &Nested<Tensor>| tensors.try_map(&mut |tensor: &Tensor| tensor.to_device(&device));
        Ok(Cow::Owned(Batch {
            inputs: self.inputs.clone(),
            labels: to_device(&self.labels)?,
            sample_weights: self.sample_weights.as_ref().map(to_device).transpose()?,
        }))
    }

    /// Some examples of the batch, without copying them.
    pub(super) fn part(&self, start: usize, len: usize) -> Result<Batch> {
        self.rebuilt(self.tensors().map(|tensor| tensor.narrow(0, start, len)).collect::<Result<_>>()?)
    }
}

/// The batches of an epoch, in order.
pub type Epoch<'a> = Box<dyn Iterator<Item = Result<Batch>> + 'a>;

/// Data to train on: any number of epochs, each a run of batches that depends on its number alone, so that a run can
/// be resumed in the middle of one.
pub trait Examples: Send {
    /// The batches of an epoch from one of them on; both are counted from zero.
    ///
    /// # Errors
    /// Data that cannot be read; memory that is full.
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>>;

    /// The batches of an epoch, if that is known.
    fn n_batches(&self) -> Option<u64>;

    /// How many batches at the beginning of every epoch are sure to have one shape. A plan, which knows shapes alone, need
    /// not go through all of them; those after them, and whatever nobody is sure of, it does.
    fn n_alike(&self) -> u64 {
        0
    }

    /// The examples of a whole batch, if that is known: the place of a run in its data depends on it.
    fn batch_size(&self) -> Option<u64> {
        None
    }

    /// Starts the threads that the epochs need, and keeps them until what this returns is dropped, so that no later
    /// epoch fails for want of one.
    ///
    /// # Errors
    /// A system that does not start them.
    fn start_threads(&self) -> Result<Option<Threads>> {
        Ok(None)
    }

    /// What the tensors of a batch are called in the data, for errors: those of the inputs, the labels and the weights, in
    /// order. Without such names they are called by their places.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The same batches in every epoch.
impl Examples for Vec<Batch> {
    fn epoch(&self, _epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        Ok(Box::new(self.iter().skip(batch as usize).cloned().map(Ok)))
    }

    fn n_batches(&self) -> Option<u64> {
        Some(self.len() as u64)
    }

    fn n_alike(&self) -> u64 {
        let kind = |batch: &Batch| {
            batch.tensors().map(|tensor| (*tensor.shape(), tensor.dtype())).collect::<Vec<(Shape, DType)>>()
        };
        let first = self.first().map(kind);
        self.iter().take_while(|batch| Some(kind(batch)) == first).count() as u64
    }

    fn batch_size(&self) -> Option<u64> {
        self.iter().filter_map(|batch| batch.n_examples().ok()).max().map(|n| n as u64)
    }
}

/// Batches of two parts, the inputs and the labels, or of three, with weights for the examples.
impl Examples for Dataset {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        if !matches!(self.spec().structure().parts().len(), 2 | 3) {
            return Err(Error::argument(
                "fit",
                format!(
                    "the dataset has {} fields: {}; there must be two parts, the inputs and the labels, or three, with \
                     sample weights; `Dataset::arrange` puts fields together",
                    self.spec().fields().len(),
                    self.spec()
                ),
            ));
        }
        Ok(Box::new(InputsAndLabels(self.iterate_from(epoch, batch))))
    }

    fn n_batches(&self) -> Option<u64> {
        self.len().map(|n| n as u64)
    }

    fn n_alike(&self) -> u64 {
        Dataset::n_alike(self)
    }

    fn batch_size(&self) -> Option<u64> {
        let first = self.spec().fields().first()?;
        first.shape().dims().first().map(|&n| n as u64)
    }

    fn start_threads(&self) -> Result<Option<Threads>> {
        Dataset::start_threads(self).map(Some)
    }

    fn names(&self) -> Vec<String> {
        let positions = self.spec().structure().leaves();
        positions.into_iter().map(|&position| self.spec().fields()[position].name().to_owned()).collect()
    }
}

/// Batches of a dataset as a run takes them.
struct InputsAndLabels(Batches);

impl Iterator for InputsAndLabels {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        self.nth(0)
    }

    /// Batches that are passed over are not brought to the device.
    fn nth(&mut self, n: usize) -> Option<Result<Batch>> {
        self.0.nth(n).map(|batch| {
            let nested = batch?.nested();
            match *nested.parts() {
                [inputs, labels] => Ok(Batch::new(inputs, labels)),
                [inputs, labels, weights] => Ok(Batch::new(inputs, labels).weighted(weights)),
                _ => Err(Error::argument("fit", "a batch has inputs and labels")),
            }
        })
    }
}
