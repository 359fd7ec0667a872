//! `Variable`: a named value that changes, as models' parameters do.
//!
//! A variable is assigned in place when nobody else holds its storage; while a tape slot, a record or a tensor still
//! reads the present version, assigning moves the variable to a new block instead, so no value that somebody has
//! read is ever seen to change. Inside a [`Step`](crate::Step) assignments are staged and take effect together
//! when the step succeeds.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use plimsoll_memory::{LongList, Owner, Site};

use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::holders::Holder;
use crate::device::storage::Storage;
use crate::device::survey::{self, HolderKind, Keeper, Survey};
use crate::device::why_alive::{HolderId, WhyAlive};
use crate::eager::context;
use crate::eager::execute::StorageView;
use crate::eager::op::{Meta, OpRef};
use crate::eager::recorder::{self, MadeVariable};
use crate::eager::tensor::{Nodes, Tensor};
use crate::eager::update::{self, Update};

/// A value that can be assigned; a cheap handle, equal to its clones.
///
/// It derefs to a [`Tensor`] that stands for the value of the moment, so every method of a tensor can be called on
/// it, and it can be passed wherever a `&Tensor` is wanted. [`Variable::value`] takes the value as it is now.
#[derive(Clone)]
pub struct Variable {
    cell: Arc<VariableCell>,
    handle: Arc<Tensor>,
}

/// What the handles of a variable share.
pub(crate) struct VariableCell {
    device: Device,
    meta: Meta,
    name: Mutex<String>,
    trainable: AtomicBool,
    version: AtomicU64,
    value: Mutex<StorageView>,
    /// The value in full precision, if this one is its copy for computing.
    master: Option<Variable>,
}

impl Variable {
    /// A trainable variable with that value. The tensor's memory is taken over, not copied; if somebody else holds
    /// it too, the first assignment moves the variable to memory of its own.
    #[doc(alias("Parameter", "Param"))]
    #[track_caller]
    pub fn new(value: Tensor) -> Variable {
        let _line = context::at_callers_line();
        Variable::with_master(value, None)
    }

    pub(crate) fn with_master(value: Tensor, master: Option<Variable>) -> Variable {
        let view = value.storage_view();
        drop(value);
        match recorder::make_variable(&view) {
            None => Variable::over(view, master),
            Some(MadeVariable::Owned(variable)) => variable,
            Some(MadeVariable::New(view)) => {
                let variable = Variable::over(view, master);
                recorder::own(&variable);
                variable
            }
        }
    }

    fn over(view: StorageView, master: Option<Variable>) -> Variable {
        view.0.relabel(Owner::Parameters);
        view.0.hold(Holder::Variable);
        Variable::listed(VariableCell {
            device: view.0.device().clone(),
            meta: Meta::fresh(*view.1.shape(), view.1.dtype),
            name: Mutex::default(),
            trainable: AtomicBool::new(true),
            version: AtomicU64::new(0),
            value: Mutex::new(view),
            master,
        })
    }

    /// A variable of a graph, which has no value yet: it reads as the ghost.
    pub(crate) fn symbolic(device: &Device, ghost: Arc<Storage>, meta: Meta) -> Variable {
        ghost.hold(Holder::Variable);
        Variable::listed(VariableCell {
            device: device.clone(),
            meta,
            name: Mutex::default(),
            trainable: AtomicBool::new(true),
            version: AtomicU64::new(0),
            value: Mutex::new((ghost, meta)),
            master: None,
        })
    }

    /// The value in full precision, if this variable is its copy for computing.
    pub fn master(&self) -> Option<&Variable> {
        self.cell.master.as_ref()
    }

    /// A variable that is new.
    fn listed(cell: VariableCell) -> Variable {
        let cell = Arc::new(cell);
        let weak: Weak<VariableCell> = Arc::downgrade(&cell);
        survey::list(&cell.device, weak);
        Variable::from_cell(cell)
    }

    pub(crate) fn from_cell(cell: Arc<VariableCell>) -> Variable {
        let handle = Arc::new(Tensor::handle(cell.clone(), cell.meta));
        Variable { cell, handle }
    }

    /// This variable under a name.
    pub fn named(self, name: &str) -> Variable {
        *lock(&self.cell.name) = name.to_owned();
        self
    }

    /// This variable, watched by tapes when it is read, or not.
    #[doc(alias("requires_grad", "requires_grad_", "freeze"))]
    pub fn trainable(self, trainable: bool) -> Variable {
        self.cell.trainable.store(trainable, Ordering::Relaxed);
        self
    }

    /// This variable with its bytes counted as `owner`'s.
    pub fn owned_by(self, owner: Owner) -> Variable {
        lock(&self.cell.value).0.relabel(owner);
        self
    }

    /// The name; empty if it has none.
    pub fn name(&self) -> String {
        lock(&self.cell.name).clone()
    }

    /// Whether tapes watch it when it is read.
    pub fn is_trainable(&self) -> bool {
        self.cell.is_trainable()
    }

    /// Runs `f` in the layer in which the variable's memory was taken, so that what belongs to the variable, such as the state
    /// that an optimizer keeps for it, is labelled with its layer.
    pub fn in_its_layer<R>(&self, f: impl FnOnce() -> R) -> R {
        let storage = lock(&self.cell.value).0.clone();
        let site = storage.block().map_or(Site::UNKNOWN, |block| block.label().site);
        drop(storage);
        context::in_layer_of(site, f)
    }

    /// How many times it has been assigned.
    pub fn version(&self) -> u64 {
        self.cell.version.load(Ordering::Relaxed)
    }

    /// The value as it is now; later assignments do not change it.
    #[doc(alias = "read_value")]
    pub fn value(&self) -> Tensor {
        self.cell.read(&self.handle)
    }

    /// Runs an op that takes the variables' values and `inputs`, and gives the variables their new values, one output
    /// each: how optimizers update parameters and their own state in place. All or nothing: memory is taken before
    /// the first variable is written.
    ///
    /// # Errors
    /// What the op refuses; memory that is full.
    #[track_caller]
    pub fn update(op: OpRef, variables: &[&Variable], inputs: &[&Tensor]) -> Result<()> {
        let _line = context::at_callers_line();
        update::apply([Update::new(op, variables, inputs)?])
    }

    /// Runs several updates as [`Variable::update`] does, one after the other, all or nothing: memory for all of them is
    /// taken before the first variable is written. A later one sees what the earlier ones wrote in the variables that
    /// it names.
    ///
    /// # Errors
    /// What an op refuses; memory that is full.
    #[track_caller]
    pub fn update_together(updates: &[(OpRef, &[&Variable], &[&Tensor])]) -> Result<()> {
        let _line = context::at_callers_line();
        let checked = |(op, variables, inputs): &(OpRef, &[&Variable], &[&Tensor])| {
            Update::new(op.clone(), variables, inputs)
        };
        update::apply(updates.iter().map(checked).collect::<Result<LongList<_>>>()?)
    }

    /// Like [`Variable::update_together`], by ops that look by themselves whether the loss is finite: in a step that is
    /// [committed only then](crate::Step::commit_if_finite) they go over the variables' memory, where others make new values
    /// that are then assigned or not.
    ///
    /// # Errors
    /// What an op refuses; memory that is full.
    #[doc(hidden)]
    #[track_caller]
    pub fn update_if_finite(updates: &[(OpRef, &[&Variable], &[&Tensor])]) -> Result<()> {
        let _line = context::at_callers_line();
        let checked = |(op, variables, inputs): &(OpRef, &[&Variable], &[&Tensor])| {
            Ok(Update::new(op.clone(), variables, inputs)?.checking_loss_itself())
        };
        update::apply(updates.iter().map(checked).collect::<Result<LongList<_>>>()?)
    }

    /// Gives the memory of the value back: what the variable stands for is kept elsewhere from here on, in other variables. It
    /// still says its shape and dtype, and can be read while a function is recorded; any other read is an error.
    #[doc(hidden)]
    pub fn give_up_value(&self) {
        let mut held = self.cell.lock();
        let spec = Storage::spec(&self.cell.device, held.0.n_bytes(), self.cell.meta.dtype);
        let before = self.cell.replace(&mut held, spec);
        drop(held);
        drop(before);
    }

    pub(crate) fn cell(&self) -> &Arc<VariableCell> {
        &self.cell
    }
}

impl VariableCell {
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn is_trainable(&self) -> bool {
        self.trainable.load(Ordering::Relaxed)
    }

    /// A number that stands for the variable while it lives.
    pub fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// The value to read now: what the open step has staged, what stands for the variable for now, or what it holds.
    #[doc(alias = "read_value")]
    pub fn value(self: &Arc<Self>) -> StorageView {
        match update::staged(self) {
            Ok(Some(staged)) => staged,
            Ok(None) => self.value_before_step(),
            // Nobody can be told here; the next op is.
            Err(failure) => {
                context::with_step(|step| step.fail(failure));
                self.value_before_step()
            }
        }
    }

    /// The value that the variable had when the open step began: what stands for it for now, or what it holds.
    pub fn value_before_step(self: &Arc<Self>) -> StorageView {
        let current = context::pinned(self.address()).unwrap_or_else(|| lock(&self.value).clone());
        if !context::is_tracing() {
            return current;
        }
        // A value from outside the function that is being recorded is read as a ghost.
        context::with_tracer(|tracer| tracer.variable_value(self, &current)).unwrap_or(current)
    }

    /// Whether it has a value of its own: not before one of a graph is initialised, nor where the value is kept elsewhere.
    pub fn has_value(&self) -> bool {
        *lock(&self.value).0.device() == self.device
    }

    /// Refuses a variable that has no value: there is nothing to read or to write over.
    pub fn check_initialized(&self, op: &'static str) -> Result<()> {
        if self.has_value() {
            return Ok(());
        }
        let (name, dtype, shape) = (self.name(), self.meta.dtype, self.meta.shape());
        let detail = match lock(&self.value).0.device().is_symbolic() {
            true => "has no value yet; run `Graph::initializer` first",
            false => "is kept in shards, and is whole only in a step or an evaluation of its trainer",
        };
        Err(Error::argument(op, format!("variable {name:?}, {dtype}{shape}, {detail}")))
    }

    /// The value to read now, as a tensor that the recording tapes know as this variable's.
    pub fn read(self: &Arc<Self>, handle: &Tensor) -> Tensor {
        let (storage, meta) = self.value();
        let nodes: Nodes =
            context::with_tapes(|tapes| tapes.iter().filter_map(|tape| tape.find(handle)).collect());
        Tensor::over(storage, meta, nodes)
    }

    /// The value itself, for an update.
    pub fn lock(&self) -> MutexGuard<'_, StorageView> {
        lock(&self.value)
    }

    /// Another storage holds the value from here on; returns the one that held it.
    pub fn replace(&self, held: &mut StorageView, storage: Arc<Storage>) -> Arc<Storage> {
        storage.hold(Holder::Variable);
        let (before, _) = std::mem::replace(held, (storage, self.meta));
        before.release(Holder::Variable);
        before
    }

    /// The value has been written.
    pub fn written(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }
}

impl Keeper for VariableCell {
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>) {
        let Some(value) = survey.lock(&self.value) else { return };
        let name = self.name();
        let name = if name.is_empty() { "without a name" } else { &name };
        let (kind, word) = match value.0.owner() {
            Owner::Optimizer => (HolderKind::Optimizer, "optimizer state"),
            _ => (HolderKind::Variable, "variable"),
        };
        let holder = survey.holder_at(kind, format!("{word} {name}"), &self);
        survey.holds(holder, &value.0, Holder::Variable);
    }
}

impl WhyAlive {
    /// A variable as a holder of its value, which lets go when all handles of the variable are dropped.
    pub fn variable(&self, variable: &Variable) -> Option<HolderId> {
        self.holder_at(variable.cell.address())
    }
}

impl Drop for VariableCell {
    fn drop(&mut self) {
        lock(&self.value).0.release(Holder::Variable);
    }
}

/// Runs `f` with the variables reading as `values`.
pub(crate) fn with_pinned<R>(variables: &[Variable], values: &[Tensor], f: impl FnOnce() -> R) -> R {
    let pin =
        |(variable, value): (&Variable, &Tensor)| (variable.cell.address(), Box::new(value.storage_view()));
    context::with_pins(variables.iter().zip(values).map(pin).collect(), f)
}

/// Locks a mutex whose data is whole at every moment, so that a panic elsewhere does not matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Deref for Variable {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.handle
    }
}

impl PartialEq for Variable {
    fn eq(&self, other: &Variable) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl Eq for Variable {}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?}, {} {})", self.name(), self.shape(), self.dtype())
    }
}

/// Whether a storage may be written over: the variable alone holds it, means all of it, and need not give it back.
pub(crate) fn is_unshared(view: &StorageView) -> bool {
    let (storage, meta) = view;
    if Arc::strong_count(storage) != 1 || storage.is_lent() || !covers(storage, meta) {
        return false;
    }
    // Whoever held it last has read it on some thread; that reading comes before what is written now.
    fence(Ordering::Acquire);
    true
}

fn covers(storage: &Storage, meta: &Meta) -> bool {
    meta.layout.covers(storage.n_bytes() / meta.dtype.size())
}
