//! `fit` and `evaluate`: runs of the framework's `Trainer`, without the GIL.

use std::time::Duration;

use plimsoll::nn::optimizers::{OptimizerConfig, SGD};
use plimsoll::nn::train::{Trainer, Until};
use pyo3::prelude::*;

use super::batches::{Interruptible, RunData};
use super::losses::{RunLoss, regularized};
use super::metrics::RunMetric;
use super::model::Model;
use super::observer::Observer;
use super::optimizers::Optimizer;
use super::raised;

/// What a run needs, as a dictionary of Python's.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Run {
    model: Py<Model>,
    optimizer: Py<Optimizer>,
    loss: RunLoss,
    /// (variable, l1, l2).
    penalties: Vec<(String, f64, f64)>,
    metrics: Vec<RunMetric>,
    data: RunData,
    held_out: Option<RunData>,
    epochs: u64,
    observer: Py<PyAny>,
    per_batch: bool,
    /// Milliseconds between two words about the progress; none without.
    progress: Option<u64>,
}

/// What an evaluation needs.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct EvaluationRun {
    model: Py<Model>,
    loss: RunLoss,
    penalties: Vec<(String, f64, f64)>,
    metrics: Vec<RunMetric>,
    data: RunData,
}

/// Trains a model. The optimizer is the run's while it lasts, and comes back however it ends.
#[pyfunction]
fn fit(py: Python<'_>, run: Run) -> PyResult<()> {
    let optimizer = run.optimizer.get();
    let pause = run.progress.map(Duration::from_millis);
    let observer = Observer::new(run.observer, run.optimizer.clone_ref(py), run.per_batch, pause);
    let (mut trained, mut told) = (Vec::new(), Vec::new());
    for metric in &run.metrics {
        trained.push(metric.make(py)?);
        told.push(metric.make(py)?);
    }
    let model = run.model.get().0.clone();
    let loss = regularized(run.loss, run.penalties);
    let mut trainer = Trainer::new(model, optimizer.take()?, loss).callback(observer);
    trainer = trained.into_iter().fold(trainer, Trainer::training_metric);
    trainer = told.into_iter().fold(trainer, Trainer::metric);
    if let Some(held_out) = run.held_out {
        trainer = trainer.held_out(held_out);
    }
    let (data, epochs) = (run.data, run.epochs);
    let fitted = raised::call(py, || trainer.fit(&data, Until::Epochs(epochs)).map(|_| ()));
    // What the run holds is dropped without the GIL: a pipeline waits for its threads.
    optimizer.give_back(py.detach(move || {
        drop(data);
        trainer.into_optimizer()
    }));
    fitted
}

/// The mean loss and the metrics of a model on some data.
#[pyfunction]
fn evaluate(py: Python<'_>, run: EvaluationRun) -> PyResult<(f64, Vec<f64>)> {
    let model = run.model.get().0.clone();
    let loss = regularized(run.loss, run.penalties);
    // An evaluation updates nothing.
    let mut trainer = Trainer::new(model, SGD::new(0.0).build(), loss);
    for metric in &run.metrics {
        trainer = trainer.metric(metric.make(py)?);
    }
    let data = Interruptible(run.data);
    let evaluated = raised::call(py, move || trainer.evaluate(&data))?;
    Ok((evaluated.loss, evaluated.metrics.into_iter().map(|(_, value)| value).collect()))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fit, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate, module)?)
}
