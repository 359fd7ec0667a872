//! A step that was issued, and whose numbers are not known yet.
//!
//! On the host a step's loss is there when the step is. A GPU is given the next step before the numbers of the last one
//! are looked at, so that it never waits for the host; they come by themselves, and whoever wants them waits for that step
//! alone. A loss that turns out not to be finite has changed nothing (see `Optimizer::apply_if_finite`), nor has a step in which
//! a kernel refused a value, whose error comes with its numbers, nor the step that was issued after it.

use std::time::Instant;

use plimsoll_tensor::optimizer::Control;
use plimsoll_tensor::{Generator, PendingValue, Result};

use super::event::StepEvent;
use crate::checkpoint::RunState;

/// A step on its way.
pub(super) struct Pending {
    /// What is known of it; the loss and the optimizer's numbers come later.
    pub event: StepEvent,
    pub numbers: Numbers,
    /// When the run began to fetch its batch.
    pub started: Instant,
    /// The run and the generator before it, in case it did not happen.
    pub before: (RunState, Generator),
}

/// The loss of a step and the optimizer's numbers after it.
pub(super) enum Numbers {
    /// The number that decided about the step, and what else it returns.
    InFlight {
        results: Vec<PendingValue>,
        control: Option<PendingValue>,
    },
    Here {
        results: Vec<f64>,
        control: Option<Control>,
    },
}

impl Numbers {
    /// Waits for the numbers, if they are not here.
    pub fn wait(self) -> Result<(Vec<f64>, Option<Control>)> {
        match self {
            Numbers::Here { results, control } => Ok((results, control)),
            Numbers::InFlight { results, control } => {
                let first = |later: PendingValue| Ok(later.get()?.first().copied().unwrap_or(f64::NAN));
                let results = results.into_iter().map(first).collect::<Result<_>>()?;
                let control = control.map(PendingValue::get).transpose()?;
                let control = control.and_then(|values| values.try_into().ok()).map(Control::from_array);
                Ok((results, control))
            }
        }
    }
}
