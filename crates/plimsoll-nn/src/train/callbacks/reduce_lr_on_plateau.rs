//! `ReduceLROnPlateau`: smaller steps when a run does not get better.

use plimsoll_tensor::Result;

use super::monitor::Monitor;
use crate::train::callback::{Callback, Requests};
use crate::train::event::EpochEvent;

/// Multiplies all learning rates by a factor when the loss, or another number of the epochs, has not become better for some
/// epochs: Keras's and PyTorch's callback of that name. Rates under a schedule are multiplied, too.
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    patience: u64,
    factor: f64,
    min_lr: f64,
    monitor: Monitor,
}

impl ReduceLROnPlateau {
    /// Rates are a tenth of what they were after `patience` epochs without a lower loss.
    pub fn new(patience: u64) -> ReduceLROnPlateau {
        ReduceLROnPlateau { patience, factor: 0.1, min_lr: 0.0, monitor: Monitor::loss() }
    }

    /// This one with another factor than 0.1.
    pub fn factor(self, factor: f64) -> ReduceLROnPlateau {
        ReduceLROnPlateau { factor, ..self }
    }

    /// This one leaving the rates as they are once that of the last step is not above this.
    pub fn min_lr(self, min_lr: f64) -> ReduceLROnPlateau {
        ReduceLROnPlateau { min_lr, ..self }
    }

    /// This one watching another number than the loss, such as `val_accuracy`.
    pub fn monitor(self, name: impl Into<String>) -> ReduceLROnPlateau {
        ReduceLROnPlateau { monitor: self.monitor.of(name), ..self }
    }

    /// This one taking greater numbers for better ones.
    pub fn maximize(self) -> ReduceLROnPlateau {
        ReduceLROnPlateau { monitor: self.monitor.maximize(), ..self }
    }

    /// This one with a number counting as better only if it is by that much.
    #[doc(alias = "threshold")]
    pub fn min_delta(self, min_delta: f64) -> ReduceLROnPlateau {
        ReduceLROnPlateau { monitor: self.monitor.min_delta(min_delta), ..self }
    }
}

impl Callback for ReduceLROnPlateau {
    fn name(&self) -> &str {
        "reduce_lr_on_plateau"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        if !self.monitor.is_best("reduce_lr_on_plateau", event)? && self.monitor.n_waited >= self.patience {
            self.monitor.n_waited = 0;
            // A ghost has no rate to compare.
            if run.optimizer().learning_rate().is_ok_and(|rate| rate > self.min_lr) {
                run.optimizer().scale_learning_rate(self.factor)?;
            }
        }
        Ok(())
    }

    fn state(&self) -> Option<String> {
        Some(self.monitor.state())
    }

    fn restore(&mut self, state: &str) -> Result<()> {
        self.monitor.restore("reduce_lr_on_plateau", state)
    }
}
