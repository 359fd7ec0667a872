//! Which number of an epoch a callback watches, and whether it has become better.

use plimsoll_tensor::{Error, Result};

use super::{from_text, to_text};
use crate::train::event::EpochEvent;

/// A number of each epoch and the best of it so far: the loss, unless another one is named.
#[derive(Clone, Debug)]
pub(super) struct Monitor {
    /// The name; the loss on held-out data, or of training without those, if there is none.
    name: Option<String>,
    is_greater_better: bool,
    min_delta: f64,
    /// The best so far; infinitely bad before the first epoch.
    best: f64,
    /// The epochs since.
    pub n_waited: u64,
}

impl Monitor {
    /// Watches the loss.
    pub fn loss() -> Monitor {
        Monitor { name: None, is_greater_better: false, min_delta: 0.0, best: f64::INFINITY, n_waited: 0 }
    }

    /// This one watching a number by its name.
    pub fn of(self, name: impl Into<String>) -> Monitor {
        Monitor { name: Some(name.into()), ..self }
    }

    /// This one taking greater numbers for better ones.
    pub fn maximize(self) -> Monitor {
        Monitor { is_greater_better: true, best: f64::NEG_INFINITY, ..self }
    }

    /// This one with a number counting as better only if it is by that much.
    pub fn min_delta(self, min_delta: f64) -> Monitor {
        Monitor { min_delta, ..self }
    }

    /// Looks at an epoch: whether it is the best so far.
    ///
    /// # Errors
    /// A name that no number of the epoch has.
    pub fn is_best(&mut self, callback: &'static str, event: &EpochEvent) -> Result<bool> {
        let value = self.value(callback, event)?;
        let is_better = match self.is_greater_better {
            true => value > self.best + self.min_delta,
            false => value < self.best - self.min_delta,
        };
        if is_better {
            (self.best, self.n_waited) = (value, 0);
        } else {
            self.n_waited += 1;
        }
        Ok(is_better)
    }

    fn value(&self, callback: &'static str, event: &EpochEvent) -> Result<f64> {
        let Some(name) = &self.name else {
            return Ok(event.held_out.as_ref().map_or(event.loss, |held_out| held_out.loss));
        };
        event.value(name).ok_or_else(|| {
            let names = event.names().join(", ");
            Error::argument(callback, format!("there is no {name:?} to watch; an epoch tells {names}"))
        })
    }

    /// The best so far, if there is one.
    pub fn best(&self) -> Option<f64> {
        Some(self.best).filter(|best| best.is_finite())
    }

    /// What has not become better, in words.
    pub fn describe(&self) -> String {
        let (what, how) = (
            self.name.as_deref().unwrap_or("loss"),
            if self.is_greater_better { "risen above" } else { "fallen below" },
        );
        format!("the {what} has not {how} {:.4} for {} epochs", self.best, self.n_waited)
    }

    /// The best value and the epochs since, as text that comes back bit for bit.
    pub fn state(&self) -> String {
        format!("{} {}", to_text(self.best), self.n_waited)
    }

    /// Takes up again what [`Monitor::state`] said.
    pub fn restore(&mut self, callback: &'static str, state: &str) -> Result<()> {
        let wrong =
            || Error::argument(callback, format!("the checkpoint keeps {state:?}, which it never said"));
        let (best, n_waited) = state.split_once(' ').ok_or_else(wrong)?;
        (self.best, self.n_waited) = (from_text(callback, best)?, n_waited.parse().map_err(|_| wrong())?);
        Ok(())
    }
}
