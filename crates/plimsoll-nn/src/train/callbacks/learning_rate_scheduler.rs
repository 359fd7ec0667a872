//! `LearningRateScheduler`: a learning rate that a function of one's own gives.

use plimsoll_tensor::Result;

use crate::train::callback::{Callback, Requests};
use crate::train::event::StepEvent;

/// Sets the learning rate after every step, from the number of steps taken. The optimizer's own
/// [`schedule`](crate::Optimizer::schedule) does it without the host; this is for what those cannot say.
#[doc(alias = "LambdaLR")]
pub struct LearningRateScheduler<F> {
    rate: F,
}

impl<F: FnMut(u64) -> f64 + Send> LearningRateScheduler<F> {
    /// The rate that a function gives of the number of steps taken.
    pub fn new(rate: F) -> LearningRateScheduler<F> {
        LearningRateScheduler { rate }
    }
}

impl<F: FnMut(u64) -> f64 + Send> Callback for LearningRateScheduler<F> {
    fn name(&self) -> &str {
        "learning_rate"
    }

    fn on_step(&mut self, event: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        run.optimizer().set_learning_rate((self.rate)(event.step))
    }
}
