//! Where the batches of a run come from: arrays, read natively, or an iterable of Python's.
//!
//! This is the one place that turns an object of Python's into the framework's `Examples`; a further native source is one more
//! case of [`RunData`].

use plimsoll::data::Dataset;
use plimsoll::nn::train::{Batch, Epoch, Examples};
use plimsoll::{Error, Owner, Result};
use pyo3::prelude::*;

use super::nested::Tensors;
use super::raised;
use crate::exits;
use crate::interrupt;

/// Examples in tensors, shuffled anew in every epoch where there is a seed, in batches.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Arrays(pub Dataset);

#[pymethods]
impl Arrays {
    /// The examples from `start` on, `len` of them, of tensors in parts: inputs, labels, and weights where there are any.
    #[new]
    fn new(
        py: Python<'_>,
        tensors: Tensors,
        start: usize,
        len: usize,
        batch: usize,
        seed: Option<u64>,
    ) -> PyResult<Arrays> {
        raised::call(py, || {
            let data = Dataset::from_tensor_slices(tensors.0)?;
            let data = if data.len() == Some(len) { data } else { data.skip(start).take(len) };
            let data = seed.map_or_else(|| data.clone(), |seed| data.shuffle(len, seed));
            data.batch(batch)
        })
        .map(Arrays)
    }

    /// The first batches of an epoch, and no more.
    fn take(&self, n_batches: usize) -> Arrays {
        Arrays(self.0.take(n_batches))
    }
}

/// What a run is trained on, or evaluated with.
pub enum RunData {
    Native(Dataset),
    /// An object with `epoch(number)`, an iterator of batches, and `n_batches`.
    Python {
        source: Py<PyAny>,
        n_batches: Option<u64>,
    },
}

impl<'a, 'py> FromPyObject<'a, 'py> for RunData {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<RunData> {
        if let Ok(arrays) = object.cast::<Arrays>() {
            return Ok(RunData::Native(arrays.get().0.clone()));
        }
        if let Ok(dataset) = object.cast::<crate::data::Dataset>() {
            return Ok(RunData::Native(dataset.get().0.clone()));
        }
        let n_batches = object.getattr("n_batches")?.extract()?;
        Ok(RunData::Python { source: object.to_owned().unbind(), n_batches })
    }
}

impl Examples for RunData {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        match self {
            RunData::Native(data) => data.epoch(epoch, batch),
            RunData::Python { source, .. } => exits::attached(|py| {
                let iterator = source.bind(py).call_method1("epoch", (epoch,));
                let iterator = iterator.map_err(|error| raised::error(py, error))?.unbind();
                Ok(Box::new(PythonBatches(iterator).skip(batch as usize)) as Epoch<'_>)
            }),
        }
    }

    fn n_batches(&self) -> Option<u64> {
        match self {
            RunData::Native(data) => data.n_batches(),
            RunData::Python { n_batches, .. } => *n_batches,
        }
    }

    fn n_alike(&self) -> u64 {
        match self {
            RunData::Native(data) => Examples::n_alike(data),
            RunData::Python { .. } => 0,
        }
    }

    fn batch_size(&self) -> Option<u64> {
        match self {
            RunData::Native(data) => data.batch_size(),
            RunData::Python { .. } => None,
        }
    }

    fn start_threads(&self) -> Result<Option<plimsoll::data::Threads>> {
        match self {
            RunData::Native(data) => Examples::start_threads(data),
            RunData::Python { .. } => Ok(None),
        }
    }

    fn names(&self) -> Vec<String> {
        match self {
            RunData::Native(data) => data.names(),
            RunData::Python { .. } => Vec::new(),
        }
    }
}

/// Examples between the batches of which Ctrl-C is looked for. A run of `fit` looks itself, after each step.
pub struct Interruptible(pub RunData);

impl Examples for Interruptible {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        let batches = self.0.epoch(epoch, batch)?;
        let look = |batch| if interrupt::is_asked() { Err(Error::interrupted("a batch")) } else { batch };
        Ok(Box::new(batches.map(look)))
    }

    fn n_batches(&self) -> Option<u64> {
        self.0.n_batches()
    }

    fn batch_size(&self) -> Option<u64> {
        self.0.batch_size()
    }

    fn start_threads(&self) -> Result<Option<plimsoll::data::Threads>> {
        self.0.start_threads()
    }

    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

/// Batches that an iterator of Python's gives: (inputs, labels) or (inputs, labels, weights).
struct PythonBatches(Py<PyAny>);

impl Iterator for PythonBatches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        exits::attached(|py| {
            let next = self.0.bind(py).try_iter().map(|mut batches| batches.next());
            let batch = match next {
                Ok(None) => return None,
                Ok(Some(batch)) => batch.and_then(|batch| batch.extract()),
                Err(error) => Err(error),
            };
            Some(batch.map(with_owner).map_err(|error| raised::error(py, error)))
        })
    }
}

fn with_owner((inputs, labels, weights): (Tensors, Tensors, Option<Tensors>)) -> Batch {
    let of_data = |tensors: Tensors| tensors.0.map(|tensor| tensor.clone().owned_by(Owner::Data));
    let batch = Batch::new(of_data(inputs), of_data(labels));
    match weights {
        Some(weights) => batch.weighted(of_data(weights)),
        None => batch,
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Arrays>()
}
