//! `model.plan`: what a run will need, from a dry run on a ghost of an empty device.
//!
//! Python builds the model again there, and its data and its optimizer are made anew, so the plan is that of a run in a process of its
//! own: what else the present one holds does not count. The device may be a GPU of a model that is not there.

use std::fmt;

use plimsoll::data::Dataset;
use plimsoll::hardware::Profile;
use plimsoll::nn;
use plimsoll::nn::plan::{Plan, RunError, plan};
use plimsoll::nn::train::{Trainer, Until};
use plimsoll::{Bytes, Device, Error, Nested, Result, Tensor};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::losses::{RunLoss, regularized};
use super::metrics::RunMetric;
use super::model::Model;
use super::nested::Shapes;
use super::optimizers::Optimizer;
use super::raised;
use crate::exits;
use crate::tensor::dtype_of;

/// What a plan needs, as a dictionary of Python's.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PlannedRun {
    /// A function that builds the model on the current device.
    build: Py<PyAny>,
    optimizer: Py<Optimizer>,
    loss: RunLoss,
    penalties: Vec<(String, f64, f64)>,
    metrics: Vec<RunMetric>,
    data: PlannedData,
    held_out: Option<PlannedData>,
    epochs: u64,
    /// The model of a GPU to plan for instead of this machine's CPU,
    as_device: Option<String>,
    /// and a limit for it instead of that of the current device, or of all its memory.
    limit: Option<u64>,
}

/// Arrays by shape and dtype: of all examples, of which some are meant.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PlannedData {
    shapes: Shapes,
    dtypes: Vec<String>,
    start: usize,
    len: usize,
    batch: usize,
    is_shuffled: bool,
}

impl PlannedData {
    fn tensors(&self) -> PyResult<impl Fn() -> Result<Nested<Tensor>> + Send + use<>> {
        let shapes = self.shapes.0.clone();
        let dtypes = self.dtypes.iter().map(|dtype| dtype_of(dtype)).collect::<PyResult<Vec<_>>>()?;
        Ok(move || {
            let mut dtypes = dtypes.iter();
            shapes.try_map(&mut |&shape| {
                Tensor::zeros_of(shape, dtypes.next().copied().unwrap_or(plimsoll::DType::F32))
            })
        })
    }

    fn batches(&self, tensors: Nested<Tensor>) -> Result<Dataset> {
        let data = Dataset::from_tensor_slices(tensors)?;
        let data = if data.len() == Some(self.len) { data } else { data.skip(self.start).take(self.len) };
        let data = if self.is_shuffled { data.shuffle(self.len, 0) } else { data };
        data.batch(self.batch)
    }
}

/// What a run will need.
#[pyclass(frozen, get_all, name = "Plan", module = "plimsoll")]
struct PyPlan {
    /// The plan as a table, for people.
    text: String,
    /// The most bytes in use at a time.
    peak_bytes: u64,
    /// The most bytes taken from the device.
    committed_bytes: u64,
    /// The limit that it was planned for.
    limit: Option<u64>,
    /// Whether the run can be kept under the limit,
    fits: bool,
    /// and why not.
    refusal: Option<String>,
    /// The bytes at the peak by owner.
    owners: Py<PyDict>,
    /// The bytes at the peak by layer.
    layers: Vec<(&'static str, u64)>,
}

#[pymethods]
impl PyPlan {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }
}

impl PyPlan {
    fn new(py: Python<'_>, plan: Plan) -> PyResult<PyPlan> {
        let owners = PyDict::new(py);
        for (owner, bytes) in plan.owners.iter() {
            owners.set_item(owner, bytes)?;
        }
        Ok(PyPlan {
            text: plan.to_string(),
            peak_bytes: plan.peak_bytes,
            committed_bytes: plan.committed_bytes,
            limit: plan.limit,
            fits: plan.fits(),
            refusal: plan.refusal.clone(),
            owners: owners.unbind(),
            layers: plan.layers,
        })
    }
}

/// Why a planned run ended. What Python raises because memory is full ends it for that reason, too.
struct Ended {
    error: Error,
    is_over_limit: bool,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended { is_over_limit: error.is_over_limit(), error }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl RunError for Ended {
    fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }

    fn enough(&self) -> Option<u64> {
        self.error.enough()
    }
}

/// Has Python build the model on the current device.
fn built(build: &Py<PyAny>) -> std::result::Result<nn::Model, Ended> {
    exits::attached(|py| {
        let model = build.call0(py).and_then(|model| Ok(model.extract::<PyRef<'_, Model>>(py)?.0.clone()));
        model.map_err(|error| {
            let is_over_limit = error.is_instance_of::<PyMemoryError>(py);
            Ended { error: raised::error(py, error), is_over_limit }
        })
    })
}

/// What is planned for: the CPU under the present limit, or a GPU of some model with what its driver leaves of its memory.
fn planned_device(model: Option<&str>, limit: Option<u64>) -> Result<Device> {
    let (device, usual) = match model {
        None => (Device::separate_cpu(), Device::current().stats().limit),
        Some(model) => {
            let profile = Profile::named(model).ok_or_else(|| {
                let known: Vec<&str> = Profile::names().collect();
                Error::argument("plan", format!("as_={model:?}: the models are {}", known.join(", ")))
            })?;
            let free = profile.memory_bytes - profile.outside_bytes;
            (Device::ghost_cuda(profile), Some(free))
        }
    };
    device.set_limit(limit.or(usual).map(Bytes::new))?;
    Ok(device)
}

/// Plans a run.
#[pyfunction]
#[pyo3(name = "plan")]
fn plan_run(py: Python<'_>, run: PlannedRun) -> PyResult<PyPlan> {
    let loss = regularized(run.loss, run.penalties);
    let optimizer = run.optimizer.get();
    let (data, held_out) = (&run.data, run.held_out.as_ref());
    let tensors = data.tensors()?;
    // Held-out data are either a part of the same arrays or arrays of their own.
    let own = held_out.filter(|held_out| held_out.start == 0).map(PlannedData::tensors).transpose()?;
    let train = || -> std::result::Result<(), Ended> {
        let model = built(&run.build)?;
        let arrays = tensors()?;
        let mut trainer = Trainer::new(model, optimizer.fresh(), loss.clone());
        if let Some(held_out) = held_out {
            let of_held_out = own.as_ref().map_or_else(|| Ok(arrays.clone()), |own| own())?;
            trainer = trainer.held_out(held_out.batches(of_held_out)?);
        }
        for metric in &run.metrics {
            let make = || exits::attached(|py| metric.make(py).map_err(|error| raised::error(py, error)));
            trainer = trainer.training_metric(make()?).metric(make()?);
        }
        trainer.fit(&data.batches(arrays)?, Until::Epochs(run.epochs))?;
        Ok(())
    };
    let planned = raised::call(py, || {
        plan(&planned_device(run.as_device.as_deref(), run.limit)?, train).map_err(|ended: Ended| ended.error)
    })?;
    PyPlan::new(py, planned)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPlan>()?;
    module.add_function(wrap_pyfunction!(plan_run, module)?)
}
