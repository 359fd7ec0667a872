//! What records a function while it runs on a ghost, as ops, variables and tapes see it.
//!
//! The thread's context holds one [`Recorder`] while a function is recorded. `execute` tells it of each call, updates of
//! variables tell of theirs, and it says what stands for a device, a variable or a tensor from outside. What it makes of that
//! is its own business: the one there is, the `Tracer`, makes a program.

use std::any::Any;
use std::sync::Arc;

use plimsoll_memory::{Block, Site};
use smallvec::SmallVec;

use crate::base::error::{Error, ErrorKind, Result};
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::{Arg, Order, StorageView};
use crate::eager::op::{Meta, OpRef};
use crate::eager::tensor::Tensor;
use crate::eager::variable::{Variable, VariableCell};

/// Records what a function does.
pub(crate) trait Recorder: Any {
    /// Whether something is on a ghost of the function's.
    fn is_recorded(&self, storage: &Storage) -> bool;

    /// Whether it records a graph, which goes on being described, rather than a function.
    fn is_graph(&self) -> bool;

    /// The ghost that stands for a device: one that the function has not used before becomes one of its own.
    fn ghost_of(&mut self, device: &Device) -> Device;

    /// The device that a ghost stands for, if it is one of the function's.
    fn real_of(&self, ghost: &Device) -> Option<Device>;

    /// A value was read; there is none.
    fn note_read(&mut self, op: &'static str, site: Site);

    /// There can be no program, whatever becomes of the function.
    fn refuse(&mut self, refusal: Error);

    /// What a variable's value reads as: itself if the function has made it, else its ghost.
    fn variable_value(&mut self, cell: &Arc<VariableCell>, value: &StorageView) -> StorageView;

    /// The ghost of a tensor from outside, if it is not a ghost of the function's yet.
    fn capture(&mut self, storage: &Arc<Storage>) -> Option<Arc<Storage>>;

    /// Backward fetches a value that a tape has saved.
    fn fetched(&mut self, storage: &Storage);

    /// An op runs: with all its memory held, so that the mark lies between what it acquires and what it releases.
    fn call(&mut self, args: &[Arg<'_>], made: Execution<'_>) -> Result<()>;

    /// The step is committed only if its loss is finite.
    fn commit_if_finite(&mut self);

    /// Variables are about to get new values.
    fn commit(&mut self);

    /// Variables get new values: in place, or in a block of their own where something references the old one.
    fn update(
        &mut self,
        op: &OpRef,
        cells: &[Updated<'_>],
        inputs: &[StorageView],
        workspace: Option<&Block>,
    ) -> Result<()>;

    /// The variable that the function makes now with that value, if it has made it before.
    ///
    /// # Errors
    /// Another form than the one that it had; one more variable than the function may make.
    fn next_variable(&mut self, value: &StorageView) -> Result<Option<Variable>>;

    /// What computes the value of a new variable on the real device, once nothing is being recorded.
    ///
    /// # Errors
    /// A value that does not follow from what the function was given.
    fn initial_value(&mut self, value: &StorageView) -> Result<InitialValue>;

    /// A new variable belongs to the function.
    fn own(&mut self, variable: &Variable);
}

/// Computes the value of a new variable.
pub(crate) type InitialValue = Box<dyn FnOnce() -> Result<StorageView>>;

/// A variable that gets a new value.
pub(crate) struct Updated<'a> {
    pub cell: &'a Arc<VariableCell>,
    /// What it holds.
    pub value: &'a StorageView,
    /// Its new block, if something else references its value.
    pub fresh: Option<&'a Arc<Storage>>,
}

/// What an execution of an op made and took, for the tracer.
pub(crate) struct Execution<'a> {
    pub op: &'a OpRef,
    /// The ghost that it ran on.
    pub device: &'a Device,
    pub order: Order,
    pub wanted: SmallVec<[bool; 4]>,
    pub outputs: SmallVec<[(&'a Arc<Storage>, &'a Meta); 4]>,
    pub n_aux: usize,
    pub workspace: Option<&'a Block>,
}

/// What a function that is being recorded gets where it makes a variable; nothing where none is being recorded.
pub(crate) enum MadeVariable {
    /// A variable that it owns.
    Owned(Variable),
    /// The value of a new variable on the real device.
    New(StorageView),
}

/// Says what a variable is that is made with this value.
pub(crate) fn make_variable(value: &StorageView) -> Option<MadeVariable> {
    let made = context::with_tracer(|tracer| tracer.next_variable(value))?;
    let initial = match made {
        Ok(None) => context::with_tracer(|tracer| tracer.initial_value(value))?,
        Ok(Some(variable)) => return Some(MadeVariable::Owned(variable)),
        Err(refusal) => Err(refusal),
    };
    match initial.and_then(|initial| initial()) {
        Ok(view) => Some(MadeVariable::New(view)),
        Err(refusal) => {
            context::with_tracer(|tracer| tracer.refuse(refusal));
            None
        }
    }
}

/// A new variable belongs to the function that is being recorded.
pub(crate) fn own(variable: &Variable) {
    context::with_tracer(|tracer| tracer.own(variable));
}

/// Replaces what an op reads from outside the function that is being recorded by its ghosts.
pub(crate) fn capture_args(args: &mut [Arg<'_>]) {
    for arg in args {
        let Some(shadow) = context::with_tracer(|tracer| tracer.capture(arg.storage())).flatten() else {
            continue;
        };
        let meta = *arg.meta();
        let replaced = match arg {
            Arg::Lent(tensor) | Arg::Read(tensor, _) => Arg::Read(tensor, Box::new((shadow, meta))),
            Arg::Given(tensor) => Arg::Given(Tensor::over(shadow, meta, tensor.nodes().clone())),
            Arg::Overwritten(_) | Arg::Gone => unreachable!("nothing is overwritten before the op is called"),
        };
        *arg = replaced;
    }
}

/// The same for one storage and what is seen of it.
pub(crate) fn capture_view((storage, meta): StorageView) -> StorageView {
    let shadow = context::with_tracer(|tracer| tracer.capture(&storage)).flatten();
    (shadow.unwrap_or(storage), meta)
}

/// Refuses tensors of a graph where they have no meaning: outside it.
///
/// # Errors
/// A tensor of a graph that this thread has not entered.
pub(crate) fn check_symbolic<'a>(
    op: &'static str,
    storages: impl Iterator<Item = &'a Arc<Storage>>,
) -> Result<()> {
    for storage in storages.filter(|storage| storage.device().is_symbolic()) {
        let is_ours = context::with_tracer(|tracer| tracer.is_recorded(storage)).unwrap_or(false);
        if !is_ours {
            return Err(Error::argument(
                op,
                "an operand is a tensor of a graph, or a variable of one that was not initialised, and has no value here; \
                 enter its graph to go on describing it, or get its value with `Session::run`",
            ));
        }
    }
    Ok(())
}

impl Error {
    /// A value of a ghost tensor was asked for. A function that is being recorded is told so, too: what it does depends on
    /// that value, whatever becomes of this error.
    pub(crate) fn ghost(op: &'static str) -> Error {
        context::with_tracer(|tracer| tracer.note_read(op, context::site(op)));
        Error::new(ErrorKind::Ghost { op })
    }
}
