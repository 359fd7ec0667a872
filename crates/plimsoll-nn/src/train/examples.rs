//! Where a run's batches come from.

use plimsoll_data::{Batches, Dataset, Threads};
use plimsoll_tensor::{Error, Result, Tensor};

/// One batch: inputs and what the model should say to them, example by example along the first axis.
#[derive(Clone)]
pub struct Pair {
    /// What goes into the model.
    pub inputs: Tensor,
    /// What the loss compares its output with.
    pub labels: Tensor,
}

impl Pair {
    /// The number of examples, which both must have.
    pub(super) fn n_examples(&self) -> Result<usize> {
        let first = |tensor: &Tensor| tensor.shape().dims().first().copied();
        match (first(&self.inputs), first(&self.labels)) {
            (Some(inputs), Some(labels)) if inputs == labels && inputs > 0 => Ok(inputs),
            _ => Err(Error::shape(
                "fit",
                format!(
                    "inputs of {} and labels of {}; both must have the examples of the batch along their first axis, at \
                     least one",
                    self.inputs.shape(),
                    self.labels.shape()
                ),
            )),
        }
    }

    /// Some examples of the batch, without copying them.
    pub(super) fn part(&self, start: usize, len: usize) -> Result<Pair> {
        Ok(Pair { inputs: self.inputs.narrow(0, start, len)?, labels: self.labels.narrow(0, start, len)? })
    }
}

/// The batches of an epoch, in order.
pub type Epoch<'a> = Box<dyn Iterator<Item = Result<Pair>> + 'a>;

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

    /// What inputs and labels are called in the data, for errors.
    fn names(&self) -> [String; 2] {
        ["inputs", "labels"].map(str::to_owned)
    }
}

/// The same batches in every epoch.
impl Examples for Vec<Pair> {
    fn epoch(&self, _epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        Ok(Box::new(self.iter().skip(batch as usize).cloned().map(Ok)))
    }

    fn n_batches(&self) -> Option<u64> {
        Some(self.len() as u64)
    }

    fn n_alike(&self) -> u64 {
        let kind = |pair: &Pair| [&pair.inputs, &pair.labels].map(|tensor| (*tensor.shape(), tensor.dtype()));
        let first = self.first().map(kind);
        self.iter().take_while(|pair| Some(kind(pair)) == first).count() as u64
    }

    fn batch_size(&self) -> Option<u64> {
        self.iter().filter_map(|pair| pair.n_examples().ok()).max().map(|n| n as u64)
    }
}

/// Batches of two fields: the inputs, then the labels.
impl Examples for Dataset {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        let fields = self.spec().fields();
        if fields.len() != 2 {
            return Err(Error::argument(
                "fit",
                format!(
                    "the dataset has {} fields: {}; there must be two, the inputs and the labels",
                    fields.len(),
                    self.spec()
                ),
            ));
        }
        Ok(Box::new(Pairs(self.iterate_from(epoch, batch))))
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

    fn names(&self) -> [String; 2] {
        match self.spec().fields() {
            [inputs, labels] => [inputs.name().to_owned(), labels.name().to_owned()],
            _ => ["inputs", "labels"].map(str::to_owned),
        }
    }
}

/// Batches of two fields as pairs.
struct Pairs(Batches);

impl Iterator for Pairs {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Result<Pair>> {
        self.nth(0)
    }

    /// Batches that are passed over are not brought to the device.
    fn nth(&mut self, n: usize) -> Option<Result<Pair>> {
        self.0.nth(n).map(|batch| {
            let [inputs, labels] = batch?.tensors()?;
            Ok(Pair { inputs, labels })
        })
    }
}
