//! The reports of a training run while it goes on: JSON lines, or a bar with a line per epoch.

use std::sync::{Arc, Mutex};

use plimsoll::nn::train::{Callback, EpochEvent, INTERRUPTED, Requests, StepEvent};
use plimsoll::{Error, Result};

use crate::bench::median;
use crate::event::{self, Event};
use crate::failure::Failure;
use crate::progress::{Progress, Shown};
use crate::stop;
use crate::terminal::Style;

/// How many of the last steps' times are kept for the median.
const KEPT_TIMES: usize = 1001;

/// Reports steps and epochs, and stops the run when Ctrl-C was pressed. Clones are the same reporter.
#[derive(Clone)]
pub struct Reporter {
    style: Style,
    progress: Arc<Progress>,
    history: Arc<Mutex<StepHistory>>,
}

/// What is remembered of the steps.
#[derive(Default)]
struct StepHistory {
    /// A ring: the oldest is overwritten.
    times: Vec<f64>,
    n_steps: usize,
    last_loss: Option<f64>,
}

impl StepHistory {
    fn push(&mut self, step: &StepEvent) {
        match self.times.get_mut(self.n_steps % KEPT_TIMES) {
            Some(oldest) => *oldest = step.ms,
            None => self.times.push(step.ms),
        }
        self.n_steps += 1;
        self.last_loss = Some(step.loss);
    }
}

impl Reporter {
    /// A reporter in that style, with a bar.
    pub fn new(style: Style, progress: Progress) -> Reporter {
        Reporter { style, progress: Arc::new(progress), history: Arc::default() }
    }

    /// Shows that so many steps were taken before.
    pub fn resume_from(&self, step: u64) {
        self.progress.resume_from(step);
    }

    /// The median time of the last steps.
    pub fn median_ms(&self) -> Option<f64> {
        let mut times = self.history.lock().expect("nobody panics").times.clone();
        (!times.is_empty()).then(|| median(&mut times))
    }

    /// The loss of the last step.
    pub fn last_loss(&self) -> Option<f64> {
        self.history.lock().expect("nobody panics").last_loss
    }

    /// Shows that the model is being evaluated.
    pub fn evaluating(&self) {
        self.progress.evaluating();
    }

    /// Reports an epoch, or a part of one at the end of a run.
    ///
    /// # Errors
    /// An output that does not take it.
    pub fn report_epoch(&self, epoch: &EpochEvent) -> Result<(), Failure> {
        let accuracy = epoch.held_out.as_ref().and_then(|held_out| held_out.metric(ACCURACY));
        let event = Event::Epoch(event::EpochEvent {
            epoch: epoch.epoch,
            loss: epoch.loss,
            held_out_loss: epoch.held_out.as_ref().map(|held_out| held_out.loss),
            accuracy,
        });
        self.style.emit(&event)?;
        self.style.say(&describe(epoch, accuracy))
    }
}

/// The name of the metric that the contract calls `accuracy`.
pub const ACCURACY: &str = "sparse_categorical_accuracy";

fn describe(epoch: &EpochEvent, accuracy: Option<f64>) -> String {
    let mut text = format!("epoch {:>3}  step {:>6}  loss {:.4}", epoch.epoch, epoch.step, epoch.loss);
    if let Some(held_out) = &epoch.held_out {
        text.push_str(&format!("  held out: loss {:.4}", held_out.loss));
    }
    if let Some(accuracy) = accuracy {
        text.push_str(&format!(", accuracy {:.2} %", 100.0 * accuracy));
    }
    text
}

impl Callback for Reporter {
    fn name(&self) -> &str {
        "reporter"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, step: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        self.history.lock().expect("nobody panics").push(step);
        self.progress.step(Shown {
            step: step.step,
            loss: step.loss,
            ms: step.ms,
            examples: step.n_examples as usize,
            peak: step.memory.peak,
        });
        if let Some(variable) = &step.skipped {
            let scale = step.loss_scale;
            log::warn!(
                "step {}: the gradient of {variable} overflowed; the step is skipped, the loss scale is {scale} now",
                step.step
            );
        }
        self.style
            .emit(&Event::Step(event::StepEvent {
                step: step.step,
                loss: step.loss,
                ms: step.ms,
                in_use_bytes: step.memory.in_use,
                peak_bytes: step.memory.peak,
                committed_bytes: step.memory.committed,
            }))
            .map_err(unwritable)?;
        if stop::is_stop_requested() {
            run.stop(INTERRUPTED);
        }
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.report_epoch(epoch).map_err(unwritable)
    }
}

/// A line that could not be written ends the run as an error of the output does.
fn unwritable(failure: Failure) -> Error {
    Error::argument("stdout", failure.message)
}
