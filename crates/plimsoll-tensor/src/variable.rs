//! `Variable`: a named value that changes, as models' parameters do.
//!
//! A variable is assigned in place when nobody else holds its storage; while a tape slot, a record or a tensor still
//! reads the present version, assigning moves the variable to a new block instead, so no value that somebody has
//! read is ever seen to change. Inside a [`Step`](crate::Step) assignments are staged and take effect together
//! when the step succeeds.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use plimsoll_memory::{LongList, Owner};

use crate::context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::StorageView;
use crate::op::{Meta, Op, OpRef};
use crate::ops::{self, binary::Binary};
use crate::program::{self, MadeVariable};
use crate::storage::Storage;
use crate::tensor::{Nodes, Tensor};
use crate::update::{self, Update};

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

    fn with_master(value: Tensor, master: Option<Variable>) -> Variable {
        let view = value.storage_view();
        drop(value);
        match program::make_variable(&view) {
            None => Variable::over(view, master),
            Some(MadeVariable::Owned(variable)) => variable,
            Some(MadeVariable::New(view)) => {
                let variable = Variable::over(view, master);
                program::own(&variable);
                variable
            }
        }
    }

    fn over(view: StorageView, master: Option<Variable>) -> Variable {
        view.0.relabel(Owner::Parameters);
        Variable::from_cell(Arc::new(VariableCell {
            device: view.0.device().clone(),
            meta: Meta::fresh(*view.1.shape(), view.1.dtype),
            name: Mutex::default(),
            trainable: AtomicBool::new(true),
            version: AtomicU64::new(0),
            value: Mutex::new(view),
            master,
        }))
    }

    /// A variable of a graph, which has no value yet: it reads as the ghost.
    pub(crate) fn symbolic(device: &Device, ghost: Arc<Storage>, meta: Meta) -> Variable {
        Variable::from_cell(Arc::new(VariableCell {
            device: device.clone(),
            meta,
            name: Mutex::default(),
            trainable: AtomicBool::new(true),
            version: AtomicU64::new(0),
            value: Mutex::new((ghost, meta)),
            master: None,
        }))
    }

    /// This variable as the master of a copy that is computed with: the copy, in `compute`'s precision, is what is
    /// read and watched, and what gradients are taken for; optimizers update the master and write both. Without
    /// a difference in dtype, the variable itself.
    ///
    /// # Errors
    /// A dtype that is not a float's; a graph that is entered; memory that is full.
    #[track_caller]
    pub fn mixed(self, compute: DType) -> Result<Variable> {
        let _line = context::at_callers_line();
        if self.dtype() == compute {
            return Ok(self);
        }
        if !(self.dtype().is_float() && compute.is_float()) {
            return Err(Error::dtype(
                "mixed",
                format!(
                    "a {} variable cannot be computed with in {compute}; both must be floats",
                    self.dtype()
                ),
            ));
        }
        if context::with_tracer(|tracer| tracer.is_graph()).unwrap_or(false) {
            let detail = "a variable of a graph has no master in another precision; make it before the graph is entered";
            return Err(Error::argument("mixed", detail));
        }
        let (name, trainable) = (self.name(), self.is_trainable());
        let copy = context::with_owner(Owner::Parameters, || self.value().cast(compute))?;
        let master = self.trainable(false);
        Ok(Variable::with_master(copy, Some(master)).named(&name).trainable(trainable))
    }

    /// The value in full precision, if this variable is its copy for computing.
    pub fn master(&self) -> Option<&Variable> {
        self.cell.master.as_ref()
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

    /// How many times it has been assigned.
    pub fn version(&self) -> u64 {
        self.cell.version.load(Ordering::Relaxed)
    }

    /// The value as it is now; later assignments do not change it.
    #[doc(alias = "read_value")]
    pub fn value(&self) -> Tensor {
        self.cell.read(&self.handle)
    }

    /// Gives the variable a new value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "copy_")]
    #[track_caller]
    pub fn assign(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        update::assign(self, value)
    }

    /// Adds a tensor to the variable, in place where nobody else holds its value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "add_")]
    #[track_caller]
    pub fn assign_add(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        match self.master() {
            Some(master) => self.assign(&master.value().add(&value.cast(master.dtype())?)?),
            None => self.accumulate(ops::binary::add::Add::OP, value),
        }
    }

    /// Subtracts a tensor from the variable, in place where nobody else holds its value.
    ///
    /// # Errors
    /// Another shape, dtype or device; memory that is full.
    #[doc(alias = "sub_")]
    #[track_caller]
    pub fn assign_sub(&self, value: &Tensor) -> Result<()> {
        let _line = context::at_callers_line();
        match self.master() {
            Some(master) => self.assign(&master.value().sub(&value.cast(master.dtype())?)?),
            None => self.accumulate(ops::binary::sub::Sub::OP, value),
        }
    }

    fn accumulate(&self, op: &'static dyn Op, value: &Tensor) -> Result<()> {
        update::apply([Update::new(OpRef::fixed(op), &[self], &[value])?])
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

    /// Refuses a variable of a graph that has no value yet: there is nothing to read or to write over.
    pub fn check_initialized(&self, op: &'static str) -> Result<()> {
        if !lock(&self.value).0.device().is_symbolic() {
            return Ok(());
        }
        let (name, dtype, shape) = (self.name(), self.meta.dtype, self.meta.shape());
        let detail = "has no value yet; run `Graph::initializer` first";
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

/// Runs `f` with the variables reading as ghosts on `ghost`, so that a model can be tried for its shapes and bytes
/// without another model and without arithmetic.
///
/// # Errors
/// A device that is no ghost; those of `f`; memory that is full.
pub fn with_ghosts<R>(variables: &[Variable], ghost: &Device, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !ghost.is_ghost() {
        let detail = format!("{ghost} is no ghost; make one with `Device::ghost`");
        return Err(Error::device("with_ghosts", detail));
    }
    let _on = ghost.enter();
    let empty = |variable: &Variable| Tensor::zeros_of(variable.shape(), variable.dtype());
    let values: Vec<Tensor> =
        context::with_owner(Owner::Parameters, || variables.iter().map(empty).collect::<Result<_>>())?;
    with_pinned(variables, &values, f)
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
