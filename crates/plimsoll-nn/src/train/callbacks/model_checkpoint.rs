//! `ModelCheckpoint`: saves the run now and then.

use std::path::PathBuf;

use plimsoll_tensor::Result;

use super::monitor::Monitor;
use crate::train::callback::{Callback, Requests};
use crate::train::event::{EpochEvent, StepEvent};
use crate::train::history::History;

/// Saves the run in a folder: after every epoch unless told otherwise, and at the end. The checkpoint before stays
/// until the new one is complete.
#[doc(alias = "BackupAndRestore")]
#[derive(Clone, Debug)]
pub struct ModelCheckpoint {
    folder: PathBuf,
    when: When,
    /// The step that was saved last.
    saved: u64,
    monitor: Monitor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Epochs(u64),
    Steps(u64),
    Best,
}

impl ModelCheckpoint {
    /// Saves in that folder.
    pub fn new(folder: impl Into<PathBuf>) -> ModelCheckpoint {
        ModelCheckpoint { folder: folder.into(), when: When::Epochs(1), saved: 0, monitor: Monitor::loss() }
    }

    /// This one saving after every so many epochs; zero counts as one.
    pub fn every_epochs(self, n: u64) -> ModelCheckpoint {
        ModelCheckpoint { when: When::Epochs(n.max(1)), ..self }
    }

    /// This one saving after every so many steps; zero counts as one.
    pub fn every_steps(self, n: u64) -> ModelCheckpoint {
        ModelCheckpoint { when: When::Steps(n.max(1)), ..self }
    }

    /// This one saving only epochs whose loss is the lowest so far: that of held-out data, or of training without those.
    pub fn save_best_only(self) -> ModelCheckpoint {
        ModelCheckpoint { when: When::Best, ..self }
    }

    /// As [`ModelCheckpoint::save_best_only`], with another number than the loss deciding: a metric of training by its name, one of
    /// held-out data with `val_` before it, such as `val_accuracy`.
    pub fn monitor(self, name: impl Into<String>) -> ModelCheckpoint {
        ModelCheckpoint { when: When::Best, monitor: self.monitor.of(name), ..self }
    }

    /// This one taking greater numbers for better ones.
    pub fn maximize(self) -> ModelCheckpoint {
        ModelCheckpoint { monitor: self.monitor.maximize(), ..self }
    }

    fn save(&mut self, step: u64, run: &mut Requests<'_>) {
        run.save(&self.folder);
        self.saved = step;
    }
}

impl Callback for ModelCheckpoint {
    fn name(&self) -> &str {
        "checkpoint"
    }

    fn waits_for(&self, step: u64) -> bool {
        matches!(self.when, When::Steps(n) if step.is_multiple_of(n))
    }

    fn on_step(&mut self, event: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        if let When::Steps(n) = self.when
            && event.step.is_multiple_of(n)
        {
            self.save(event.step, run);
        }
        Ok(())
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        let is_best = self.monitor.is_best("checkpoint", event)?;
        let is_due = match self.when {
            When::Epochs(n) => event.epoch.is_multiple_of(n),
            When::Steps(_) => false,
            When::Best => is_best,
        };
        if is_due {
            self.save(event.step, run);
        }
        Ok(())
    }

    fn on_end(&mut self, history: &History, run: &mut Requests<'_>) -> Result<()> {
        if self.when != When::Best && self.saved != history.steps {
            self.save(history.steps, run);
        }
        Ok(())
    }

    fn state(&self) -> Option<String> {
        Some(self.monitor.state())
    }

    fn restore(&mut self, state: &str) -> Result<()> {
        // Earlier checkpoints keep the best value alone.
        let state = if state.contains(' ') { state.to_owned() } else { format!("{state} 0") };
        self.monitor.restore("checkpoint", &state)
    }
}
