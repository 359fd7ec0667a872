//! `tf.data`: pipelines that need no Python, and their batches.
//!
//! A function or generator of Python's has no place in here: `python/plimsoll/data.py` owns it and goes on from there. So the
//! threads of a pipeline never want the GIL, and it is given up while a batch is waited for. Ctrl-C ends the wait.

use std::sync::{Mutex, PoisonError};

use plimsoll::data::{AUTOTUNE, Batches, Prefetch, stop_waiting_when};
use plimsoll::{Nested, Tensor as Array};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::edge::outside_graphs;
use crate::interrupt;
use crate::tensor::{Tensor, Value};

/// A pipeline that needs no Python.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Dataset(pub plimsoll::data::Dataset);

/// The elements of one epoch.
#[pyclass(frozen, module = "plimsoll._core")]
struct Elements(Mutex<Option<Batches>>);

/// Tuples and dicts of tensors, in their arrangement; the keys of a dict in order.
struct Slices(Nested<Array>);

impl<'a, 'py> FromPyObject<'a, 'py> for Slices {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Slices> {
        let part = |object: &Bound<'_, PyAny>| Ok::<_, PyErr>(object.extract::<Slices>()?.0);
        if let Ok(parts) = object.cast::<PyTuple>() {
            return Ok(Slices(Nested::Tuple(parts.iter().map(|one| part(&one)).collect::<PyResult<_>>()?)));
        }
        if let Ok(fields) = object.cast::<PyDict>() {
            let keys: Bound<'_, PyList> = fields.keys();
            keys.sort()?;
            let field = |key: Bound<'py, PyAny>| {
                let value = fields.as_any().get_item(&key)?;
                Ok((key.str()?.to_string(), part(&value)?))
            };
            return Ok(Slices(Nested::Named(keys.iter().map(field).collect::<PyResult<_>>()?)));
        }
        let value: Value = object.extract()?;
        Ok(Slices(Nested::One(Array::clone(&value))))
    }
}

impl Dataset {
    /// The dataset that `f` makes of this one, at the user's line.
    fn then(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&plimsoll::data::Dataset) -> plimsoll::Result<plimsoll::data::Dataset> + Send,
    ) -> PyResult<Dataset> {
        outside_graphs(py, || f(&self.0)).map(Dataset)
    }
}

#[pymethods]
impl Dataset {
    /// The slices of tensors along their first axis.
    #[staticmethod]
    fn from_tensor_slices(py: Python<'_>, tensors: Slices) -> PyResult<Dataset> {
        outside_graphs(py, || plimsoll::data::Dataset::from_tensor_slices(tensors.0)).map(Dataset)
    }

    fn batch(&self, py: Python<'_>, size: usize, drop_remainder: bool) -> PyResult<Dataset> {
        self.then(
            py,
            |dataset| {
                if drop_remainder { dataset.batch_exactly(size) } else { dataset.batch(size) }
            },
        )
    }

    fn shuffle(&self, py: Python<'_>, buffer: usize, seed: u64, anew: bool) -> PyResult<Dataset> {
        self.then(py, |dataset| {
            Ok(if anew { dataset.shuffle(buffer, seed) } else { dataset.shuffle_once(buffer, seed) })
        })
    }

    /// So many times, or for ever.
    fn repeat(&self, py: Python<'_>, n: Option<usize>) -> PyResult<Dataset> {
        self.then(py, |dataset| Ok(n.map_or_else(|| dataset.repeat_forever(), |n| dataset.repeat(n))))
    }

    fn take(&self, py: Python<'_>, n: usize) -> PyResult<Dataset> {
        self.then(py, |dataset| Ok(dataset.take(n)))
    }

    fn skip(&self, py: Python<'_>, n: usize) -> PyResult<Dataset> {
        self.then(py, |dataset| Ok(dataset.skip(n)))
    }

    fn shard(&self, py: Python<'_>, n: usize, idx: usize) -> PyResult<Dataset> {
        self.then(py, |dataset| dataset.shard(n, idx))
    }

    fn cache(&self, py: Python<'_>) -> PyResult<Dataset> {
        self.then(py, plimsoll::data::Dataset::cache)
    }

    fn enumerate(&self, py: Python<'_>) -> PyResult<Dataset> {
        self.then(py, plimsoll::data::Dataset::enumerate)
    }

    /// So many batches ahead, or as many as help.
    fn prefetch(&self, py: Python<'_>, depth: Option<usize>) -> PyResult<Dataset> {
        let depth = depth.map_or(AUTOTUNE, Prefetch::Depth);
        self.then(py, |dataset| Ok(dataset.clone().prefetch(depth)))
    }

    /// The most bytes that the pipeline may take.
    fn allowance(&self, py: Python<'_>, bytes: u64) -> PyResult<Dataset> {
        self.then(py, |dataset| Ok(dataset.clone().allowance(plimsoll::Bytes::new(bytes))))
    }

    /// How many elements an epoch has, if that can be known.
    fn len(&self) -> Option<usize> {
        self.0.len()
    }

    /// Dtype and shape of each field, and how many of its first extents may be smaller.
    fn fields(&self) -> Vec<(&'static str, Vec<usize>, usize)> {
        let fields = self.0.spec().fields().iter();
        fields.map(|field| (field.dtype().name(), field.shape().dims().to_vec(), field.n_varying())).collect()
    }

    /// Begins an epoch.
    fn elements(&self, py: Python<'_>) -> PyResult<Elements> {
        let batches = outside_graphs(py, || Ok(self.0.iter()))?;
        Ok(Elements(Mutex::new(Some(batches))))
    }
}

#[pymethods]
impl Elements {
    /// The tensors of the next element, in order; `StopIteration` when there is none.
    fn next(&self, py: Python<'_>) -> PyResult<Vec<Tensor>> {
        let next = outside_graphs(py, || {
            let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let next = batches.as_mut().and_then(Iterator::next).transpose();
            if !matches!(next, Ok(Some(_))) {
                *batches = None;
            }
            next
        })?;
        let batch = next.ok_or_else(|| PyStopIteration::new_err(()))?;
        Ok(batch.nested().into_leaves().into_iter().map(Tensor).collect())
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    stop_waiting_when(interrupt::is_asked);
    module.add_class::<Dataset>()?;
    module.add_class::<Elements>()
}
