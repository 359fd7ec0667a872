//! Losses by name, and losses that are functions of Python's.

use std::sync::Arc;

use plimsoll::Result;
use plimsoll::nn::losses::{
    self, BinaryCrossentropy, CategoricalCrossentropy, Huber, Losses, MeanAbsoluteError, MeanSquaredError,
    Regularized, SparseCategoricalCrossentropy,
};
use plimsoll::nn::{VariableFilter, regularizers};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::options::Options;
use super::raised;
use crate::edge;
use crate::exits;
use crate::tensor::{Tensor, Value};

/// A loss.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Loss(pub Arc<dyn losses::Loss>);

#[pymethods]
impl Loss {
    /// The loss of that name of Keras's.
    #[new]
    fn new(kind: &str, options: Bound<'_, PyDict>) -> PyResult<Loss> {
        let options = Options(options);
        Ok(Loss(match kind {
            "mean_squared_error" => Arc::new(MeanSquaredError),
            "mean_absolute_error" => Arc::new(MeanAbsoluteError),
            "huber" => Arc::new(Huber::new(options.get("delta")?)),
            "binary_crossentropy" => {
                let loss = BinaryCrossentropy::new().from_logits(options.get("from_logits")?);
                Arc::new(loss.label_smoothing(options.get("label_smoothing")?))
            }
            "categorical_crossentropy" => {
                let loss = CategoricalCrossentropy::new().from_logits(options.get("from_logits")?);
                Arc::new(loss.label_smoothing(options.get("label_smoothing")?))
            }
            "sparse_categorical_crossentropy" => {
                let loss = SparseCategoricalCrossentropy::new().from_logits(options.get("from_logits")?);
                Arc::new(match options.get::<Option<i64>>("ignore_class")? {
                    Some(class) => loss.ignore_class(class),
                    None => loss,
                })
            }
            _ => return Err(PyValueError::new_err(format!("there is no loss {kind:?}"))),
        }))
    }

    /// The mean loss, weighted where there are weights; or the loss of each example.
    fn call(
        &self,
        py: Python<'_>,
        labels: Value,
        predictions: Value,
        weights: Option<Value>,
        is_reduced: bool,
    ) -> PyResult<Tensor> {
        let loss = &self.0;
        raised::call(py, || match (weights, is_reduced) {
            (None, true) => loss.call(&labels, &predictions),
            (None, false) => loss.losses(&labels, &predictions),
            (Some(weights), true) => loss.weighted(&labels, &predictions, &weights),
            (Some(weights), false) => {
                let losses = loss.losses(&labels, &predictions)?;
                losses.mul(&weights.cast(losses.dtype())?)
            }
        })
        .map(Tensor)
    }
}

/// A loss that is a function of Python's, of labels and predictions, while a run lasts.
struct PythonLoss(Py<PyAny>);

impl losses::Loss for PythonLoss {
    fn name(&self) -> &str {
        "loss"
    }

    fn losses(&self, labels: &plimsoll::Tensor, predictions: &plimsoll::Tensor) -> Result<plimsoll::Tensor> {
        exits::attached(|py| {
            let arguments = (Tensor(labels.clone()), Tensor(predictions.clone()));
            let given = self.0.bind(py).call1(arguments).and_then(|given| given.extract::<Value>());
            given.map(|given| plimsoll::Tensor::clone(&given)).map_err(|error| raised::error(py, error))
        })
    }

    /// As TensorFlow has it, the function is called when a step is recorded, once for batches of a shape.
    fn is_pure(&self) -> bool {
        true
    }
}

/// The loss of a run, as Python gives it: a loss, a function, or (name, weight, loss) for each output.
pub struct RunLoss(pub Arc<dyn losses::Loss>);

impl<'a, 'py> FromPyObject<'a, 'py> for RunLoss {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<RunLoss> {
        if let Ok(loss) = object.cast::<Loss>() {
            return Ok(RunLoss(loss.get().0.clone()));
        }
        if object.is_callable() {
            return Ok(RunLoss(Arc::new(PythonLoss(object.to_owned().unbind()))));
        }
        let outputs: Vec<(String, f64, RunLoss)> = object.extract()?;
        let add = |losses: Losses, (name, weight, loss): (String, f64, RunLoss)| {
            losses.output(name, weight, loss.0)
        };
        Ok(RunLoss(Arc::new(outputs.into_iter().fold(Losses::new(), add))))
    }
}

/// Penalties on variables, by name: (variable, l1, l2).
pub fn regularized(loss: RunLoss, penalties: Vec<(String, f64, f64)>) -> Arc<dyn losses::Loss> {
    if penalties.is_empty() {
        return loss.0;
    }
    let mut regularized = Regularized::new(loss.0);
    for (name, l1, l2) in penalties {
        let meant = VariableFilter::new(move |known| known == name);
        if l1 != 0.0 {
            regularized = regularized.penalty(meant.clone(), regularizers::L1::new(l1));
        }
        if l2 != 0.0 {
            regularized = regularized.penalty(meant, regularizers::L2::new(l2));
        }
    }
    Arc::new(regularized)
}

/// Adds a number to the loss of the batch that a run calls the model for; false where no run does.
#[pyfunction]
fn add_loss(py: Python<'_>, loss: Value) -> PyResult<bool> {
    edge::call(py, || plimsoll::nn::add_loss(&loss))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(add_loss, module)?)?;
    module.add_class::<Loss>()
}
