//! `EarlyStopping`: ends a run that does not get better.

use std::path::PathBuf;

use plimsoll_tensor::Result;

use super::monitor::Monitor;
use crate::train::callback::{Callback, Requests};
use crate::train::event::EpochEvent;
use crate::train::history::History;

/// Ends the run when the loss has not fallen for some epochs: that of held-out data, or of training without those; or
/// another number of the epochs, see [`EarlyStopping::monitor`].
///
/// With [`EarlyStopping::restore_best_weights`] the best epoch is saved whenever there is a new one, and at the end the model gets its
/// weights back. They lie on the disk meanwhile, not in a second copy in memory.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    patience: u64,
    best_in: Option<PathBuf>,
    monitor: Monitor,
}

impl EarlyStopping {
    /// Ends the run after `patience` epochs without a lower loss.
    pub fn new(patience: u64) -> EarlyStopping {
        EarlyStopping { patience, best_in: None, monitor: Monitor::loss() }
    }

    /// This one with a loss counting as lower only if it is by that much.
    pub fn min_delta(self, min_delta: f64) -> EarlyStopping {
        EarlyStopping { monitor: self.monitor.min_delta(min_delta), ..self }
    }

    /// This one watching another number than the loss: a metric of training by its name, one of held-out data with `val_`
    /// before it, such as `val_accuracy`.
    pub fn monitor(self, name: impl Into<String>) -> EarlyStopping {
        EarlyStopping { monitor: self.monitor.of(name), ..self }
    }

    /// This one taking greater numbers for better ones.
    pub fn maximize(self) -> EarlyStopping {
        EarlyStopping { monitor: self.monitor.maximize(), ..self }
    }

    /// This one saving the best epoch in a folder, and giving the model its weights at the end.
    pub fn restore_best_weights(self, folder: impl Into<PathBuf>) -> EarlyStopping {
        EarlyStopping { best_in: Some(folder.into()), ..self }
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &str {
        "early_stop"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        if self.monitor.is_best("early_stop", event)? {
            self.best_in.iter().for_each(|folder| run.save(folder));
        } else if self.monitor.n_waited >= self.patience {
            run.stop(self.monitor.describe());
        }
        Ok(())
    }

    fn on_end(&mut self, _history: &History, run: &mut Requests<'_>) -> Result<()> {
        if self.monitor.best().is_some() {
            self.best_in.iter().for_each(|folder| run.load_weights(folder));
        }
        Ok(())
    }

    fn state(&self) -> Option<String> {
        Some(self.monitor.state())
    }

    fn restore(&mut self, state: &str) -> Result<()> {
        self.monitor.restore("early_stop", state)
    }
}
