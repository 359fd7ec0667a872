//! `Step`: a training step that happens whole or not at all.
//!
//! While a step is open, assignments to variables wait; when it succeeds they are written together, and when it fails
//! they are dropped and the random generator goes back, so a failed step leaves model, optimizer and generator as
//! they were. Under a limit every op leaves a record, watched or not, in the step's log.

use plimsoll_memory::{LongList, StepScope};

use super::tape::open_log;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::fault;
use crate::eager::context;
use crate::eager::op::OpRef;
use crate::eager::random::Generator;
use crate::eager::step_state::{StepRecord, StepState};
use crate::eager::tensor::Tensor;
use crate::eager::update;
use crate::ops::assign::{Assign, AssignIfFinite};

/// A training step: a function of model, optimizer and batch.
#[derive(Debug)]
pub struct Step;

impl Step {
    /// Runs `f` as one step on `device`.
    ///
    /// # Errors
    /// Those of `f`, a value that a kernel refuses, memory that is full, a step inside a step. Model and generator are then
    /// as before.
    pub fn run<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let step = Step::begin(device)?;
        let ended = f();
        Ok(step.end(ended)?.0)
    }

    /// Begins a step on `device`, which [`OpenStep::commit`] ends. Dropping it instead ends it as if it had failed: model
    /// and generator are then as before.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Step, Tensor, Variable};
    /// # fn main() -> plimsoll_tensor::Result<()> {
    /// let x = Variable::new(Tensor::from(3.0f32)?);
    /// let step = Step::begin(&Device::cpu())?;
    /// x.assign(&Tensor::from(4.0f32)?)?;
    /// step.commit()?;
    /// assert_eq!(x.item::<f32>()?, 4.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A step inside a step.
    pub fn begin(device: &Device) -> Result<OpenStep> {
        OpenStep::new(device, || {
            let step_log = open_log(device);
            StepState { step_log, ..StepState::new(OpRef::fixed(&Assign)) }
        })
    }

    /// Whether a step is open on this thread, so that assignments wait for its end.
    pub fn is_open() -> bool {
        context::with_step(|_| ()).is_some()
    }

    /// Commits the open step only if the loss is finite and no kernel of the step has refused a value, both as the device
    /// finds them: the host need not wait for the loss. An optimizer is given the loss itself, see
    /// [`Variable::update_if_finite`](crate::Variable::update_if_finite). What was refused is told by [`Tensor::to_f64_later`],
    /// if it is the thread's next call that reads something on that device, and by that call otherwise.
    ///
    /// A step that writes variables on several devices is given the loss on each of them, one call after the other.
    ///
    /// # Errors
    /// No step is open; another tensor than one float64.
    #[doc(hidden)]
    pub fn commit_if_finite(loss: &Tensor) -> Result<()> {
        if loss.n_elems() != 1 || loss.dtype() != DType::F64 {
            return Err(Error::argument(
                "commit_if_finite",
                format!("the loss is one float64, not {} {}", loss.shape(), loss.dtype()),
            ));
        }
        let view = loss.reshape(())?.storage_view();
        context::with_step(|step| step.finite_loss.push(view))
            .ok_or_else(|| Error::argument("commit_if_finite", "no step is open on this thread"))
    }

    /// Like [`Step::run`], and returns the records that the ops left.
    ///
    /// # Errors
    /// As [`Step::run`].
    #[doc(hidden)]
    pub fn traced<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Vec<StepRecord>)> {
        let records = Some(LongList::default());
        let step = OpenStep::new(device, || StepState { records, ..StepState::new(OpRef::fixed(&Assign)) })?;
        let ended = f();
        let (value, state) = step.end(ended)?;
        Ok((value, state.records.unwrap_or_default().into_iter().collect()))
    }
}

/// A step that is open on this thread: see [`Step::begin`].
#[must_use = "a step that is not committed changes nothing"]
pub struct OpenStep {
    device: Device,
    number: u64,
    /// The generator as it was before the step.
    generator: Generator,
    is_committed: bool,
    /// The step of the pool; it ends last, when what the step held is gone.
    _of_pool: StepScope,
}

impl OpenStep {
    fn new(device: &Device, state: impl FnOnce() -> StepState) -> Result<OpenStep> {
        if Step::is_open() {
            return Err(Error::argument("step", "a step is open on this thread already; steps do not nest"));
        }
        let (generator, state) = (context::generator(), state());
        let of_pool = device.pool().begin_step();
        let number = context::begin_step(state);
        Ok(OpenStep { device: device.clone(), number, generator, is_committed: false, _of_pool: of_pool })
    }

    /// Ends the step: what was assigned to variables is written, all of it.
    ///
    /// # Errors
    /// A value that a kernel refuses, memory that is full. Model and generator are then as before the step.
    pub fn commit(self) -> Result<()> {
        self.end(Ok(())).map(drop)
    }

    /// Ends the step, in which that came out; returns what is left of its state, too.
    fn end<T>(mut self, ended: Result<T>) -> Result<(T, StepState)> {
        let ended = ended.and_then(|value| update::make_conditional().map(|()| value));
        let state = context::end_step(self.number);
        let mut state = state.unwrap_or_else(|| StepState::new(OpRef::fixed(&Assign)));
        let is_conditional = !state.finite_loss.is_empty();
        let ended = ended.and_then(|value| {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            if !is_conditional {
                fault::wait_and_look(&self.device)?;
            }
            let updates = std::mem::take(&mut state.updates);
            update::commit_step(updates, &state.finite_loss, &OpRef::fixed(&AssignIfFinite))?;
            Ok(value)
        });
        let result = fault::end_step(&self.device, ended, is_conditional).map(|value| (value, state));
        self.is_committed = result.is_ok();
        result
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        // Nobody hears of what the kernels of a step may have refused that was given up.
        if context::end_step(self.number).is_some() {
            fault::forget(&self.device);
        }
        // A step that is given up, fails or panics takes no draws.
        if !self.is_committed {
            context::set_generator(self.generator);
        }
    }
}
