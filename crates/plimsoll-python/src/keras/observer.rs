//! What a run tells Python: epochs, batches where a callback wants them, and progress now and then.
//!
//! After every step the observer looks whether Ctrl-C was pressed. Nothing else of Python's runs in a steady step unless a
//! callback asks for batches.

use std::time::{Duration, Instant};

use plimsoll::Result;
use plimsoll::nn::train::{Callback, EpochEvent, Requests, StepEvent};
use pyo3::prelude::*;

use super::optimizers::Optimizer;
use super::raised;
use crate::exits;

/// The object that is told: `on_batch`, `on_epoch` and `on_progress`, of which the first two return whether to stop.
pub struct Observer {
    python: Py<PyAny>,
    optimizer: Py<Optimizer>,
    /// Whether each batch is told.
    per_batch: bool,
    /// How long nothing is said of the progress; nothing is ever said without.
    pause: Option<Duration>,
    told: Instant,
    /// Losses of the epoch so far, each as often as the batch had examples, and the examples.
    sum: f64,
    n_examples: f64,
}

impl Observer {
    /// Tells an object of Python's.
    pub fn new(
        python: Py<PyAny>,
        optimizer: Py<Optimizer>,
        per_batch: bool,
        pause: Option<Duration>,
    ) -> Observer {
        Observer { python, optimizer, per_batch, pause, told: Instant::now(), sum: 0.0, n_examples: 0.0 }
    }

    /// Lets Python do something, and carries out what it wants of the run.
    fn tell(
        &self,
        run: &mut Requests<'_>,
        what: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<bool>,
    ) -> Result<()> {
        let (stop, rate) = exits::attached(|py| {
            let stop = what(py, self.python.bind(py)).map_err(|error| raised::error(py, error))?;
            Ok::<_, plimsoll::Error>((stop, self.optimizer.get().wanted_rate()))
        })?;
        if let Some(rate) = rate {
            run.optimizer().set_learning_rate(rate)?;
        }
        if stop {
            run.stop("a callback of Python's stopped it");
        }
        Ok(())
    }
}

impl Callback for Observer {
    fn name(&self) -> &str {
        "python"
    }

    fn waits_for(&self, _step: u64) -> bool {
        self.per_batch
    }

    fn on_step(&mut self, event: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        let n = event.n_examples as f64;
        (self.sum, self.n_examples) = (self.sum + n * event.loss, self.n_examples + n);
        self.optimizer.get().tell_rate(event.learning_rate);
        exits::attached(|py| py.check_signals().map_err(|error| raised::error(py, error)))?;
        let is_time = self.pause.is_some_and(|pause| self.told.elapsed() >= pause);
        if !is_time && !self.per_batch {
            return Ok(());
        }
        let metrics: Vec<f64> = event.metrics.iter().map(|(_, value)| *value).collect();
        let (batch, loss) = (event.batch - 1, self.sum / self.n_examples);
        let per_batch = self.per_batch;
        self.tell(run, |_, python| {
            if is_time {
                python.call_method1("on_progress", (batch, event.n_batches, loss, metrics.clone()))?;
            }
            match per_batch {
                true => python.call_method1("on_batch", (batch, event.n_batches, loss, metrics))?.extract(),
                false => Ok(false),
            }
        })?;
        if is_time {
            self.told = Instant::now();
        }
        Ok(())
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        let values =
            |metrics: &[(String, f64)]| metrics.iter().map(|(_, value)| *value).collect::<Vec<f64>>();
        let held_out = event.held_out.as_ref().map(|held_out| (held_out.loss, values(&held_out.metrics)));
        let loss = self.sum / self.n_examples;
        (self.sum, self.n_examples) = (0.0, 0.0);
        let trained = values(&event.metrics);
        self.tell(run, |_, python| {
            python.call_method1("on_epoch", (event.epoch - 1, loss, trained, held_out))?.extract()
        })
    }
}
