//! Updates of variables: all or nothing.
//!
//! An update takes all memory that it needs before it writes the first variable, so one that fails leaves every
//! variable as it was. Inside a step, updates wait for the step's end and are written together.

use std::sync::{Arc, MutexGuard};

use plimsoll_memory::{Block, LongList, Owner};
use smallvec::SmallVec;

use crate::check::{self, Kind};
use crate::context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::{self, Order, Part};
use crate::op::{Meta, OpRef, Operand, Output};
use crate::ops::assign::{Assign, AssignIfFinite};
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::variable::{self, Variable, VariableCell};

/// An op whose outputs are the new values of variables. Its inputs are the variables' values, then `inputs`.
pub(crate) struct Update {
    op: OpRef,
    cells: SmallVec<[Arc<VariableCell>; 1]>,
    inputs: SmallVec<[Part; 2]>,
    /// The tensor that readers inside the step see, for a plain assignment.
    visible: Option<Part>,
}

impl Update {
    /// Checks that the op's outputs fit the variables.
    pub fn new(op: OpRef, variables: &[&Variable], inputs: &[&Tensor]) -> Result<Update> {
        let cells: SmallVec<[Arc<VariableCell>; 1]> = variables.iter().map(|v| v.cell().clone()).collect();
        if let Some(name) = named_twice(&cells) {
            return Err(Error::argument(op.name(), format!("variable {name:?} is to be written twice")));
        }
        let inputs: SmallVec<[Part; 2]> = inputs.iter().map(|tensor| tensor.part()).collect();
        let metas: SmallVec<[&Meta; 4]> =
            cells.iter().map(|cell| cell.meta()).chain(inputs.iter().map(|(_, meta)| meta)).collect();
        let outputs = op.get().infer(&metas)?;
        drop(metas);
        if check::kind_of(&op, &outputs)? != Kind::New || outputs.len() != cells.len() {
            let detail = format!("it gives {} outputs for {} variables", outputs.len(), cells.len());
            return Err(Error::argument(
                op.name(),
                format!("{detail}; an update has one new output for each"),
            ));
        }
        for (cell, output) in cells.iter().zip(&outputs) {
            let Output::New { shape, dtype } = output else { continue };
            if shape != cell.meta().shape() || *dtype != cell.meta().dtype {
                return Err(Error::shape(
                    op.name(),
                    format!(
                        "variable {:?} is {} {}, but the new value is {} {}",
                        cell.name(),
                        cell.meta().shape(),
                        cell.meta().dtype,
                        shape,
                        dtype
                    ),
                ));
            }
        }
        let update = Update { op, cells, inputs, visible: None };
        update.check_devices()?;
        Ok(update)
    }

    /// Refuses variables and inputs that are not all on one device. A variable that reads as a ghost for now takes the
    /// ghosts that are computed from it; what was staged then cannot be written when it no longer does.
    fn check_devices(&self) -> Result<()> {
        let Some(first) = self.cells.first() else { return Ok(()) };
        let device = device_of(first);
        let elsewhere = |what: &str, other: &Device| {
            let detail = format!("variable {:?} is on {device}, {what} on {other}", first.name());
            Err(Error::device(self.op.name(), detail))
        };
        if let Some((storage, _)) = self.inputs.iter().find(|(storage, _)| *storage.device() != device) {
            return elsewhere("an input", storage.device());
        }
        match self.cells.iter().find(|cell| device_of(cell) != device) {
            Some(cell) => elsewhere("another variable", &device_of(cell)),
            None => Ok(()),
        }
    }

    /// The same update, written only if a number on the device is finite; what an optimizer decides for itself is left
    /// as it is.
    fn guarded(mut self, guard: &Part) -> Update {
        if self.visible.is_some() {
            self.op = OpRef::fixed(&AssignIfFinite);
            self.inputs.push(guard.clone());
        }
        self
    }

    /// The scratch memory that the op needs.
    fn workspace(&self) -> Result<Option<Block>> {
        let Some(first) = self.cells.first() else { return Ok(None) };
        let values = self.cells.iter().map(|cell| cell.meta());
        let metas: SmallVec<[&Meta; 4]> = values.chain(self.inputs.iter().map(|(_, meta)| meta)).collect();
        execute::workspace(&self.op, &device_of(first), &metas, Order::Fixed)
    }

    /// The value that readers of a variable see while the update waits, if it is known.
    pub fn visible(&self, cell: usize) -> Option<Part> {
        match &*self.cells {
            [only] if only.address() == cell => self.visible.clone(),
            _ => None,
        }
    }
}

/// The name of a variable that is there more than once: two outputs of one op would share its memory.
fn named_twice(cells: &[Arc<VariableCell>]) -> Option<String> {
    let mut addresses: SmallVec<[(usize, usize); 4]> =
        cells.iter().enumerate().map(|(at, cell)| (cell.address(), at)).collect();
    addresses.sort_unstable();
    let twice = addresses.windows(2).find(|pair| pair[0].0 == pair[1].0)?;
    Some(cells[twice[0].1].name())
}

/// Assigns a tensor to a variable, now or at the end of the open step; to its master as well, if it has one.
pub(crate) fn assign(variable: &Variable, value: &Tensor) -> Result<()> {
    let Some(master) = variable.master() else { return apply([assignment(variable, value)?]) };
    let assignments = [(master, master.dtype()), (variable, variable.dtype())]
        .map(|(variable, dtype)| assignment(variable, &value.cast(dtype)?));
    apply(assignments.into_iter().collect::<Result<LongList<_>>>()?)
}

fn assignment(variable: &Variable, value: &Tensor) -> Result<Update> {
    let mut update = Update::new(OpRef::fixed(&Assign), &[variable], &[value])?;
    update.visible = Some(value.part());
    Ok(update)
}

/// Carries updates out now, or at the end of the open step. What a replay assigns has been assigned before.
pub(crate) fn apply(updates: impl IntoIterator<Item = Update>) -> Result<()> {
    if context::is_replaying() {
        return Ok(());
    }
    let mut updates: Option<LongList<Update>> = Some(updates.into_iter().collect());
    context::with_step(|step| step.stage(updates.take().unwrap_or_default()));
    updates.map_or(Ok(()), commit)
}

/// Carries the updates of a step out, each only if `guard` is finite where there is one.
pub(crate) fn commit_step(updates: LongList<Update>, guard: Option<&Part>) -> Result<()> {
    match guard {
        None => commit(updates),
        Some(guard) => commit(updates.into_iter().map(|update| update.guarded(guard)).collect()),
    }
}

/// Carries updates out in order: takes all memory, then writes. The variables are locked meanwhile, so that no other
/// thread takes hold of a value that is being written. A variable that reads as something else for now, such as a ghost,
/// is not written, and the memory is that of the ghost.
fn commit(updates: LongList<Update>) -> Result<()> {
    let mut cells: Vec<&Arc<VariableCell>> = updates.iter().flat_map(|update| &update.cells).collect();
    cells.sort_by_key(|cell| cell.address());
    cells.dedup_by_key(|cell| cell.address());
    updates.iter().try_for_each(Update::check_devices)?;
    let mut held: Vec<MutexGuard<'_, Part>> = cells.iter().map(|cell| cell.lock()).collect();
    let fresh: Vec<Option<Arc<Storage>>> =
        cells.iter().zip(&held).map(|(cell, held)| fresh_place(cell, held)).collect::<Result<_>>()?;
    let at = |cell: &Arc<VariableCell>| cells.partition_point(|other| other.address() < cell.address());
    let workspaces: Vec<Option<Block>> = updates.iter().map(Update::workspace).collect::<Result<_>>()?;

    match cells.iter().filter(|cell| context::pinned(cell.address()).is_some()).count() {
        0 => {}
        n if n == cells.len() => return Ok(()),
        n => {
            let detail =
                format!("{n} of {} variables read as ghosts; they are updated together or not", cells.len());
            return Err(Error::device("update", detail));
        }
    }
    let mut is_written = vec![false; cells.len()];
    for (update, workspace) in updates.iter().zip(workspaces) {
        // The lists hold addresses alone: an optimizer updates hundreds of variables at once.
        let value = |at: usize, is_written: bool| match &fresh[at] {
            Some(storage) if is_written => Operand::new(storage.ptr(), cells[at].meta()),
            _ => operand(&held[at]),
        };
        let values = update.cells.iter().map(|cell| value(at(cell), is_written[at(cell)]));
        let inputs: SmallVec<[Operand<'_>; 4]> = values.chain(update.inputs.iter().map(operand)).collect();
        let into: SmallVec<[Operand<'_>; 1]> =
            update.cells.iter().map(|cell| value(at(cell), true)).collect();
        if let Some(first) = update.cells.first() {
            let (device, workspace) = (first.device(), workspace.as_ref());
            execute::run(&update.op, device, &inputs, &into, &[], workspace, Order::Fixed)?;
        }
        for cell in &update.cells {
            is_written[at(cell)] = true;
            cell.written();
        }
    }
    for ((held, fresh), cell) in held.iter_mut().zip(fresh).zip(&cells) {
        let Some(fresh) = fresh else {
            held.0.overwritten();
            continue;
        };
        let (before, _) = std::mem::replace(&mut **held, (fresh, *cell.meta()));
        // Whoever still reads the old version keeps it; it is the variable's no longer.
        before.relabel(if before.is_kept() { Owner::Saved } else { Owner::Temporary });
    }
    Ok(())
}

fn operand((storage, meta): &Part) -> Operand<'_> {
    Operand::new(storage.ptr(), meta)
}

/// The device on which a variable is read and written now.
fn device_of(cell: &Arc<VariableCell>) -> Device {
    let pinned = context::pinned(cell.address());
    pinned.map_or_else(|| cell.device().clone(), |(storage, _)| storage.device().clone())
}

/// A new block for a variable's new value if somebody else holds the old one; nothing if it goes over that.
fn fresh_place(cell: &Arc<VariableCell>, held: &Part) -> Result<Option<Arc<Storage>>> {
    if variable::is_unshared(held) {
        return Ok(None);
    }
    // A variable made from a batch begins in lent memory, which is data; its own is a parameter's.
    let owner = if held.0.is_lent() { Owner::Parameters } else { held.0.owner() };
    let meta = cell.meta();
    let place = || Storage::new(&device_of(cell), meta.shape(), meta.dtype, "assign");
    let mut fresh = context::with_owner(owner, place)?;
    // The op may leave it as it is, and not every byte is a truth value.
    if meta.dtype == DType::Bool {
        fresh.clear()?;
    }
    Ok(Some(fresh))
}
