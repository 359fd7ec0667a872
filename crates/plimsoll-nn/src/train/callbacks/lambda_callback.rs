//! `LambdaCallback`: functions of one's own that are told of steps and epochs.

use plimsoll_tensor::Result;

use crate::train::callback::{Callback, Requests};
use crate::train::event::{EpochEvent, StepEvent};

type Told<E> = Box<dyn FnMut(&E, &mut Requests<'_>) -> Result<()> + Send>;

/// Calls functions of one's own: how a program shows progress, or stops a run on a signal.
#[derive(Default)]
pub struct LambdaCallback {
    on_step: Option<Told<StepEvent>>,
    on_epoch: Option<Told<EpochEvent>>,
}

impl LambdaCallback {
    /// Watches nothing yet.
    pub fn new() -> LambdaCallback {
        LambdaCallback::default()
    }

    /// This one calling `f` after each step.
    pub fn steps(
        self,
        f: impl FnMut(&StepEvent, &mut Requests<'_>) -> Result<()> + Send + 'static,
    ) -> LambdaCallback {
        LambdaCallback { on_step: Some(Box::new(f)), ..self }
    }

    /// This one calling `f` after each epoch.
    pub fn epochs(
        self,
        f: impl FnMut(&EpochEvent, &mut Requests<'_>) -> Result<()> + Send + 'static,
    ) -> LambdaCallback {
        LambdaCallback { on_epoch: Some(Box::new(f)), ..self }
    }
}

impl Callback for LambdaCallback {
    fn name(&self) -> &str {
        "watch"
    }

    fn waits_for(&self, _step: u64) -> bool {
        self.on_step.is_some()
    }

    fn on_step(&mut self, event: &StepEvent, run: &mut Requests<'_>) -> Result<()> {
        self.on_step.as_mut().map_or(Ok(()), |f| f(event, run))
    }

    fn on_epoch(&mut self, event: &EpochEvent, run: &mut Requests<'_>) -> Result<()> {
        self.on_epoch.as_mut().map_or(Ok(()), |f| f(event, run))
    }
}
