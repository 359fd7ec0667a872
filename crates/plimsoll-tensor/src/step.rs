//! `Step`: a training step that happens whole or not at all.
//!
//! While a step is open, assignments to variables wait; when it succeeds they are written together, and when it fails
//! they are dropped and the random generator goes back, so a failed step leaves model, optimizer and generator as
//! they were. Under a limit every op leaves a record, watched or not, in the step's [`StepLog`].

use std::sync::Arc;

use plimsoll_memory::{LongList, StepScope};
use smallvec::SmallVec;

use crate::context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::{Arg, StorageView};
use crate::fault;
use crate::op::{Cost, Meta, OpRef, Tensors};
use crate::random::Generator;
use crate::remat::StepLog;
use crate::shape::Shape;
use crate::tensor::{Data, Tensor};
use crate::update::{self, Update};

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
        OpenStep::new(device, || StepState { step_log: StepLog::on(device), ..StepState::default() })
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
        context::with_step(|step| step.finite_loss = Some(view))
            .ok_or_else(|| Error::argument("commit_if_finite", "no step is open on this thread"))
    }

    /// Like [`Step::run`], and returns the records that the ops left.
    ///
    /// # Errors
    /// As [`Step::run`].
    #[doc(hidden)]
    pub fn traced<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Vec<StepRecord>)> {
        let records = Some(LongList::default());
        let step = OpenStep::new(device, || StepState { records, ..StepState::default() })?;
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
        let mut state = context::end_step(self.number).unwrap_or_default();
        let is_conditional = state.finite_loss.is_some();
        let ended = ended.and_then(|value| {
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            if !is_conditional {
                fault::wait_and_look(&self.device)?;
            }
            update::commit_step(std::mem::take(&mut state.updates), state.finite_loss.as_ref())?;
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

/// What is open while a step runs.
#[derive(Default)]
pub(crate) struct StepState {
    updates: LongList<Update>,
    /// The loss that must be finite for the updates to be written.
    finite_loss: Option<StorageView>,
    /// How the step's values were computed, if values may be evicted: under a limit.
    pub step_log: Option<Arc<StepLog>>,
    /// What ran, for [`Step::traced`].
    records: Option<LongList<StepRecord>>,
    /// What went wrong where no error could be returned; the step ends with it.
    failure: Option<Error>,
}

/// One op that ran inside a step.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// The op, with its attributes and, for random ops, its draw. Not for everybody: the methods of tensors prepare what
    /// they hand to an op, and who calls it with anything else is told so less well.
    pub(crate) op: OpRef,
    /// What it read.
    pub inputs: SmallVec<[RecordInput; 3]>,
    /// The numbers of its outputs.
    pub outputs: SmallVec<[u64; 1]>,
    /// The shape of its first output.
    pub shape: Shape,
    /// What running it takes, by its formula; nothing for views.
    pub cost: Cost,
}

impl StepRecord {
    /// The name of the op.
    pub fn name(&self) -> &'static str {
        self.op.name()
    }

    /// Whether the op is cheap to recompute.
    pub fn is_cheap(&self) -> bool {
        self.op.is_cheap()
    }

    /// The op, for tests that rerun records.
    #[cfg(feature = "testing")]
    pub fn op(&self) -> &OpRef {
        &self.op
    }
}

/// What a record read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordInput {
    /// A tensor, by its number.
    Tensor(u64),
    /// A version of a variable.
    Variable {
        /// The variable.
        address: usize,
        /// How many times it had been assigned.
        version: u64,
    },
    /// A tensor that the op wrote over.
    Overwritten,
}

impl StepState {
    /// Leaves the record of an op.
    pub fn record(&mut self, op: &OpRef, args: &[Arg<'_>], outputs: &Tensors) {
        let input = |arg: &Arg<'_>| match arg.tensor() {
            None => RecordInput::Overwritten,
            Some(tensor) => match tensor.data() {
                Data::Value(_) => RecordInput::Tensor(tensor.id()),
                Data::Variable(cell) => {
                    RecordInput::Variable { address: cell.address(), version: cell.version() }
                }
            },
        };
        let Some(records) = &mut self.records else { return };
        let is_view =
            |output: &Tensor| args.iter().any(|arg| Arc::ptr_eq(arg.storage(), output.data().value()));
        let inputs: SmallVec<[&Meta; 3]> = args.iter().map(Arg::meta).collect();
        let metas: SmallVec<[&Meta; 1]> = outputs.iter().map(Tensor::meta).collect();
        let cost =
            match outputs.iter().all(is_view) && !args.iter().any(|arg| matches!(arg, Arg::Overwritten(_))) {
                true => Cost::default(),
                false => op.get().cost(&inputs, &metas),
            };
        records.push(StepRecord {
            op: op.clone(),
            inputs: args.iter().map(input).collect(),
            outputs: outputs.iter().map(|tensor| tensor.id()).collect(),
            shape: *outputs[0].shape(),
            cost,
        });
    }

    /// The step cannot succeed any more.
    pub fn fail(&mut self, failure: Error) {
        self.failure.get_or_insert(failure);
    }

    /// The updates that wait; what went wrong where no error could be returned.
    pub fn into_updates(self) -> Result<LongList<Update>> {
        self.failure.map_or(Ok(self.updates), Err)
    }

    /// Takes updates that wait for the step's end.
    pub fn stage(&mut self, updates: LongList<Update>) {
        self.updates.extend(updates);
    }

    /// The last update of a variable among the first `n` that wait, and its place.
    pub fn staged(&self, cell: usize, n: usize) -> Option<(usize, &Update)> {
        let mut newest_first = (0..self.updates.len().min(n)).rev().map(|at| (at, &self.updates[at]));
        newest_first.find(|(_, update)| update.writes(cell))
    }

    /// How many updates wait, if the step is committed only if its loss is finite.
    pub fn n_conditional(&self) -> usize {
        if self.finite_loss.is_some() { self.updates.len() } else { 0 }
    }

    /// The update of that place among those that wait.
    pub fn staged_mut(&mut self, at: usize) -> &mut Update {
        &mut self.updates[at]
    }
}
