//! `EarlyStop`: ends a run that does not get better.

use std::path::PathBuf;

use plimsoll_tensor::{Error, Result};

use super::{from_text, judged, to_text};
use crate::train::callback::{Callback, Requests};
use crate::train::event::EpochEvent;
use crate::train::history::History;

/// Ends the run when the loss has not fallen for some epochs: that of held-out data, or of training without those.
///
/// With [`EarlyStop::keep_best`] the best epoch is saved whenever there is a new one, and at the end the model gets its
/// weights back. They lie on the disk meanwhile, not in a second copy in memory.
#[derive(Clone, Debug)]
pub struct EarlyStop {
    patience: u64,
    least_gain: f64,
    best_in: Option<PathBuf>,
    best: f64,
    n_waited: u64,
}

impl EarlyStop {
    /// Ends the run after `patience` epochs without a lower loss.
    pub fn new(patience: u64) -> EarlyStop {
        EarlyStop { patience, least_gain: 0.0, best_in: None, best: f64::INFINITY, n_waited: 0 }
    }

    /// This one with a loss counting as lower only if it is by that much.
    pub fn least_gain(self, least_gain: f64) -> EarlyStop {
        EarlyStop { least_gain, ..self }
    }

    /// This one saving the best epoch in a folder, and giving the model its weights at the end.
    pub fn keep_best(self, folder: impl Into<PathBuf>) -> EarlyStop {
        EarlyStop { best_in: Some(folder.into()), ..self }
    }
}

impl Callback for EarlyStop {
    fn name(&self) -> &str {
        "early_stop"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        let loss = judged(event);
        if loss < self.best - self.least_gain {
            (self.best, self.n_waited) = (loss, 0);
            self.best_in.iter().for_each(|folder| run.save(folder));
            return Ok(());
        }
        self.n_waited += 1;
        if self.n_waited >= self.patience {
            run.stop(format!("the loss has not fallen below {:.4} for {} epochs", self.best, self.n_waited));
        }
        Ok(())
    }

    fn on_end(&mut self, _history: &History, run: &mut Requests<'_>) -> Result<()> {
        if self.best.is_finite() {
            self.best_in.iter().for_each(|folder| run.load_weights(folder));
        }
        Ok(())
    }

    fn state(&self) -> Option<String> {
        Some(format!("{} {}", to_text(self.best), self.n_waited))
    }

    fn restore(&mut self, state: &str) -> Result<()> {
        let wrong =
            || Error::argument("early_stop", format!("the checkpoint keeps {state:?}, which it never said"));
        let (best, n_waited) = state.split_once(' ').ok_or_else(wrong)?;
        (self.best, self.n_waited) = (from_text("early_stop", best)?, n_waited.parse().map_err(|_| wrong())?);
        Ok(())
    }
}
