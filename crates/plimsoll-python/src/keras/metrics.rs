//! Metrics by name, and metrics that are functions of Python's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll::nn::Metric as Native;
use plimsoll::nn::metrics::{
    AUC, Accuracy, BinaryAccuracy, CategoricalAccuracy, Curve, Mean, MeanAbsoluteError, MeanSquaredError,
    OnOutput, Precision, Recall, SparseCategoricalAccuracy, SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
};
use plimsoll::{Device, Result, Variable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::raised;
use crate::exits;
use crate::tensor::{Tensor, Value};

type BoxedMetric = Box<dyn Native>;

fn metric(kind: &str, number: f64) -> PyResult<BoxedMetric> {
    Ok(match kind {
        "accuracy" => Box::new(Accuracy::new()),
        "binary_accuracy" => Box::new(BinaryAccuracy::new(number)),
        "categorical_accuracy" => Box::new(CategoricalAccuracy::new()),
        "sparse_categorical_accuracy" => Box::new(SparseCategoricalAccuracy::new()),
        "top_k_categorical_accuracy" => Box::new(TopKCategoricalAccuracy::new(number as usize)),
        "sparse_top_k_categorical_accuracy" => Box::new(SparseTopKCategoricalAccuracy::new(number as usize)),
        "mean_squared_error" => Box::new(MeanSquaredError::new()),
        "mean_absolute_error" => Box::new(MeanAbsoluteError::new()),
        "precision" => Box::new(Precision::new(number)),
        "recall" => Box::new(Recall::new(number)),
        "auc" => Box::new(auc(Curve::Roc, number)?),
        "auc_of_precision_and_recall" => Box::new(auc(Curve::PrecisionRecall, number)?),
        _ => return Err(PyValueError::new_err(format!("there is no metric {kind:?}"))),
    })
}

fn auc(curve: Curve, n_thresholds: f64) -> PyResult<AUC> {
    AUC::new(curve)
        .thresholds(n_thresholds as usize)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A metric, with what it has seen since the last reset.
#[pyclass(frozen, module = "plimsoll._core")]
struct Metric(Mutex<BoxedMetric>);

impl Metric {
    fn lock(&self) -> MutexGuard<'_, BoxedMetric> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Metric {
    #[new]
    fn new(kind: &str, number: f64) -> PyResult<Metric> {
        Ok(Metric(Mutex::new(metric(kind, number)?)))
    }

    /// Takes in a batch.
    fn update(
        &self,
        py: Python<'_>,
        labels: Value,
        predictions: Value,
        weights: Option<Value>,
    ) -> PyResult<()> {
        raised::call(py, || match weights {
            Some(weights) => self.lock().update_weighted(&labels, &predictions, &weights),
            None => self.lock().update(&labels, &predictions),
        })
    }

    /// The metric so far.
    fn result(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.lock().result())
    }

    /// Forgets all batches.
    fn reset(&self, py: Python<'_>) {
        py.detach(|| self.lock().reset());
    }
}

/// The mean of numbers.
#[pyclass(frozen, module = "plimsoll._core")]
struct MeanOfValues(Mutex<Mean>);

impl MeanOfValues {
    fn lock(&self) -> MutexGuard<'_, Mean> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl MeanOfValues {
    #[new]
    fn new() -> MeanOfValues {
        MeanOfValues(Mutex::new(Mean::new()))
    }

    /// Takes in some numbers.
    fn update(&self, py: Python<'_>, values: Value, weights: Option<Value>) -> PyResult<()> {
        raised::call(py, || match weights {
            Some(weights) => self.lock().add_weighted(&values, &weights),
            None => self.lock().add(&values),
        })
    }

    /// The mean so far.
    fn result(&self, py: Python<'_>) -> f64 {
        py.detach(|| self.lock().result())
    }

    /// Forgets all numbers.
    fn reset(&self, py: Python<'_>) {
        py.detach(|| self.lock().reset());
    }
}

/// The mean of what a function of Python's gives for labels and predictions, while a run lasts.
struct PythonMetric {
    function: Py<PyAny>,
    mean: Mean,
}

impl Native for PythonMetric {
    fn name(&self) -> &str {
        "metric"
    }

    fn update(&mut self, labels: &plimsoll::Tensor, predictions: &plimsoll::Tensor) -> Result<()> {
        let values = exits::attached(|py| {
            let arguments = (Tensor(labels.clone()), Tensor(predictions.clone()));
            let given = self.function.bind(py).call1(arguments).and_then(|given| given.extract::<Value>());
            given.map(|given| plimsoll::Tensor::clone(&given)).map_err(|error| raised::error(py, error))
        })?;
        self.mean.add(&values)
    }

    fn prepare(&mut self, device: &Device) -> Result<()> {
        self.mean.prepare(device)
    }

    fn result_on_device(&self) -> Result<Option<plimsoll::Tensor>> {
        self.mean.result_on_device()
    }

    fn result(&self) -> f64 {
        self.mean.result()
    }

    fn reset(&mut self) {
        self.mean.reset();
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn variables(&self) -> Vec<Variable> {
        self.mean.variables()
    }
}

/// A metric of a run, as Python gives it: (kind or function, number, output), of which the last is `None` for a model of one
/// output.
#[derive(FromPyObject)]
pub struct RunMetric(Py<PyAny>, f64, Option<String>);

impl RunMetric {
    /// A new metric of its kind.
    pub fn make(&self, py: Python<'_>) -> PyResult<Box<dyn Native>> {
        let RunMetric(kind, number, output) = self;
        let made: BoxedMetric = match kind.extract::<String>(py) {
            Ok(kind) => metric(&kind, *number)?,
            Err(_) => Box::new(PythonMetric { function: kind.clone_ref(py), mean: Mean::new() }),
        };
        Ok(match output {
            Some(output) => Box::new(OnOutput::new(output.clone(), made)),
            None => made,
        })
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Metric>()?;
    module.add_class::<MeanOfValues>()
}
