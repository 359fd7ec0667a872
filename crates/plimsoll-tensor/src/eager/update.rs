//! Updates of variables: all or nothing.
//!
//! An update takes all memory that it needs before it writes the first variable, so one that fails leaves every
//! variable as it was. Inside a step, updates wait for the step's end and are written together.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};

use plimsoll_memory::{Block, LongList, Owner};
use smallvec::{SmallVec, smallvec};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::fault;
use crate::device::holders::Holder;
use crate::device::storage::Storage;
use crate::eager::check::{self, Kind};
use crate::eager::context;
use crate::eager::execute::{self, Arg, Args, HeldView, Order, StorageView};
use crate::eager::op::{Meta, OpRef, Operand, Output};
use crate::eager::recorder::{self, Updated};
use crate::eager::tensor::{Nodes, Tensor};
use crate::eager::variable::{self, Variable, VariableCell};

/// An op whose outputs are the new values of variables. Its inputs are the variables' values, then `inputs`.
#[derive(Clone)]
pub(crate) struct Update {
    op: OpRef,
    cells: SmallVec<[Arc<VariableCell>; 1]>,
    inputs: SmallVec<[HeldView; 2]>,
    /// The new values that readers inside the step see, where they are known: one per variable, or none.
    visible: SmallVec<[HeldView; 1]>,
    /// Whether its op looks by itself whether the loss is finite, where the step is committed only then.
    checks_loss_itself: bool,
}

/// Op, variables and inputs of an update.
pub(crate) type UpdateParts = (OpRef, SmallVec<[Arc<VariableCell>; 1]>, SmallVec<[StorageView; 2]>);

impl Update {
    /// Checks that the op's outputs fit the variables.
    pub fn new(op: OpRef, variables: &[&Variable], inputs: &[&Tensor]) -> Result<Update> {
        let cells: SmallVec<[Arc<VariableCell>; 1]> = variables.iter().map(|v| v.cell().clone()).collect();
        if let Some(name) = named_twice(&cells) {
            return Err(Error::argument(op.name(), format!("variable {name:?} is to be written twice")));
        }
        let inputs: SmallVec<[HeldView; 2]> =
            inputs.iter().map(|tensor| waiting(recorder::capture_view(tensor.storage_view()))).collect();
        let metas: SmallVec<[&Meta; 4]> =
            cells.iter().map(|cell| cell.meta()).chain(inputs.iter().map(|input| &input.meta)).collect();
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
        let update = Update { op, cells, inputs, visible: SmallVec::new(), checks_loss_itself: false };
        update.check_devices()?;
        Ok(update)
    }

    /// The same update of one variable, whose new value is known already.
    pub fn with_value(self, value: StorageView) -> Update {
        Update { visible: smallvec![waiting(value)], ..self }
    }

    /// The same update, by an op that looks by itself whether the loss is finite.
    pub fn checking_loss_itself(self) -> Update {
        Update { checks_loss_itself: true, ..self }
    }

    /// Refuses variables and inputs that are not all on one device. A variable that reads as a ghost for now takes the
    /// ghosts that are computed from it; what was staged then cannot be written when it no longer does.
    fn check_devices(&self) -> Result<()> {
        let Some(first) = self.cells.first() else { return Ok(()) };
        if !context::is_tracing() {
            self.cells.iter().try_for_each(|cell| cell.check_initialized(self.op.name()))?;
        }
        let device = device_of(first);
        let elsewhere = |what: &str, other: &Device| {
            let [device, other] = device.names_apart(other);
            let detail = format!("variable {:?} is on {device}, {what} on {other}", first.name());
            Err(Error::device(self.op.name(), detail))
        };
        if let Some(input) = self.inputs.iter().find(|input| *input.storage.device() != device) {
            return elsewhere("an input", input.storage.device());
        }
        match self.cells.iter().find(|cell| device_of(cell) != device) {
            Some(cell) => elsewhere("another variable", &device_of(cell)),
            None => Ok(()),
        }
    }

    /// The same update, written only if the loss on its device is finite; one that looks by itself is left as it is.
    fn if_finite(mut self, losses: &[StorageView], assign_if_finite: &OpRef) -> Result<Update> {
        if self.checks_loss_itself {
            return Ok(self);
        }
        let device = self.cells.first().map(device_of);
        let Some(loss) = losses.iter().find(|(loss, _)| Some(loss.device()) == device.as_ref()) else {
            let name = device.as_ref().map_or("a device", Device::name);
            let detail = format!(
                "a variable on {name} is written, and the loss is not there; call it for {name}, too"
            );
            return Err(Error::device("commit_if_finite", detail));
        };
        self.op = assign_if_finite.clone();
        self.inputs.push(waiting(loss.clone()));
        Ok(self)
    }

    /// Op, variables and inputs, for a graph to keep.
    pub fn into_parts(self) -> UpdateParts {
        (self.op, self.cells, self.inputs.iter().map(HeldView::view).collect())
    }

    /// An update that was checked before, with inputs like those that it had then.
    pub fn from_parts(
        op: OpRef,
        cells: SmallVec<[Arc<VariableCell>; 1]>,
        inputs: SmallVec<[StorageView; 2]>,
    ) -> Update {
        let inputs = inputs.into_iter().map(waiting).collect();
        Update { op, cells, inputs, visible: SmallVec::new(), checks_loss_itself: false }
    }

    /// The scratch memory that the op needs.
    fn workspace(&self) -> Result<Option<Block>> {
        let Some(first) = self.cells.first() else { return Ok(None) };
        let values = self.cells.iter().map(|cell| cell.meta());
        let metas: SmallVec<[&Meta; 4]> = values.chain(self.inputs.iter().map(|input| &input.meta)).collect();
        execute::workspace(&self.op, &device_of(first), &metas, Order::Fixed)
    }

    /// Whether the update gives a variable a new value.
    pub fn writes(&self, cell: usize) -> bool {
        self.cells.iter().any(|written| written.address() == cell)
    }

    /// The new value of a variable, if it is known.
    fn visible(&self, cell: usize) -> Option<StorageView> {
        let at = self.cells.iter().position(|written| written.address() == cell)?;
        self.visible.get(at).map(HeldView::view)
    }
}

/// The value that a variable was given in the open step, if it was: an effect is visible to what comes after it, although
/// it is carried out at the step's end. An update whose result is asked for so is computed now, into memory of its own,
/// and assigned then.
pub(crate) fn staged(cell: &Arc<VariableCell>) -> Result<Option<StorageView>> {
    staged_before(cell, usize::MAX)
}

/// The same, of the first `n` updates that wait.
fn staged_before(cell: &Arc<VariableCell>, n: usize) -> Result<Option<StorageView>> {
    let known = context::with_step(|step| {
        let (at, update) = step.staged(cell.address(), n)?;
        Some((at, update.visible(cell.address()).ok_or_else(|| (update.clone(), step.assign.clone()))))
    });
    match known.flatten() {
        None => Ok(None),
        Some((_, Ok(visible))) => Ok(Some(visible)),
        Some((at, Err((update, assign)))) => {
            let computed = update.compute(at, assign)?;
            let visible = computed.visible(cell.address());
            context::with_step(|step| *step.staged_mut(at) = computed);
            Ok(visible)
        }
    }
}

/// Turns the updates of a step that is committed only if its loss is finite into what can be written or not: those whose op
/// does not look by itself become assignments of values that are computed now.
pub(crate) fn make_conditional() -> Result<()> {
    for at in 0..context::with_step(|step| step.n_conditional()).unwrap_or(0) {
        let update = context::with_step(|step| (step.staged_mut(at).clone(), step.assign.clone()));
        let is_undecided = |update: &Update| update.visible.is_empty() && !update.checks_loss_itself;
        if let Some((update, assign)) = update.filter(|(update, _)| is_undecided(update)) {
            let computed = update.compute(at, assign)?;
            context::with_step(|step| *step.staged_mut(at) = computed);
        }
    }
    Ok(())
}

impl Update {
    /// The update that waits at a place as an assignment, by the op `assign`, of values that are computed now.
    fn compute(mut self, at: usize, assign: OpRef) -> Result<Update> {
        let value = |cell: &Arc<VariableCell>| {
            let staged = staged_before(cell, at)?;
            Ok(staged.unwrap_or_else(|| cell.value_before_step()))
        };
        let values: Vec<StorageView> = self.cells.iter().map(value).collect::<Result<_>>()?;
        let tensor = |(storage, meta): StorageView| Arg::Given(Tensor::over(storage, meta, Nodes::new()));
        // An input that is held here no longer may be overwritten.
        let inputs = std::mem::take(&mut self.inputs).into_iter().map(|input| input.view());
        let args: Args<'_> = values.into_iter().chain(inputs).map(tensor).collect();
        let outputs = context::without_tapes(|| execute::execute(self.op, args))?;
        let visible: SmallVec<[HeldView; 1]> =
            outputs.iter().map(|output| waiting(output.storage_view())).collect();
        let inputs = visible.iter().cloned().collect();
        Ok(Update { op: assign, cells: self.cells, inputs, visible, checks_loss_itself: false })
    }

    /// The same update as one for each variable, if its new values are known.
    fn one_by_one(self) -> SmallVec<[Update; 1]> {
        if self.visible.len() < 2 {
            return smallvec![self];
        }
        let single = |(cell, value): (Arc<VariableCell>, HeldView)| Update {
            op: self.op.clone(),
            cells: smallvec![cell],
            inputs: smallvec![value.clone()],
            visible: smallvec![value],
            checks_loss_itself: false,
        };
        self.cells.into_iter().zip(self.visible).map(single).collect()
    }
}

/// What an update reads, kept until its step ends.
fn waiting(view: StorageView) -> HeldView {
    HeldView::new(view, Holder::Update)
}

impl HeldView {
    fn operand(&self) -> Operand<'_> {
        Operand::of(&self.storage, &self.meta)
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

/// Carries updates out now, or at the end of the open step. What a replay assigns has been assigned before.
pub(crate) fn apply(updates: impl IntoIterator<Item = Update>) -> Result<()> {
    if context::is_replaying() {
        return Ok(());
    }
    let mut updates: Option<LongList<Update>> = Some(updates.into_iter().collect());
    context::with_step(|step| step.stage(updates.take().unwrap_or_default()));
    updates.map_or(Ok(()), commit)
}

/// Carries the updates of a step out, each only if the loss on its device is finite where such losses are given, with the op
/// that assigns only then.
pub(crate) fn commit_step(
    updates: LongList<Update>,
    losses: &[StorageView],
    assign_if_finite: &OpRef,
) -> Result<()> {
    let updates = updates.into_iter().flat_map(Update::one_by_one);
    if losses.is_empty() {
        return commit(updates.collect());
    }
    context::with_tracer(|tracer| tracer.commit_if_finite());
    commit(updates.map(|update| update.if_finite(losses, assign_if_finite)).collect::<Result<_>>()?)
}

/// Carries updates out in order: takes all memory, then writes. A variable that reads as something else for now, such as a
/// ghost, is not written, and the memory is that of the ghost.
fn commit(updates: LongList<Update>) -> Result<()> {
    updates.iter().try_for_each(Update::check_devices)?;
    let undecided = undecided(updates.iter().map(|update| (&update.op, &*update.cells)));
    let mut commit = Commit::begin(updates.iter().flat_map(|update| &update.cells), &undecided)?;
    let workspaces: LongList<Option<Block>> = updates.iter().map(Update::workspace).collect::<Result<_>>()?;
    if context::is_tracing() {
        return updates.iter().zip(workspaces.iter()).try_for_each(|(update, workspace)| {
            let inputs: SmallVec<[StorageView; 2]> = update.inputs.iter().map(HeldView::view).collect();
            commit.trace(&update.op, &update.cells, &inputs, workspace.as_ref())
        });
    }
    if commit.is_pinned()? {
        return Ok(());
    }
    for (update, workspace) in updates.iter().zip(workspaces) {
        let inputs: SmallVec<[Operand<'_>; 4]> = update.inputs.iter().map(HeldView::operand).collect();
        commit.run(&update.op, &update.cells, &inputs, workspace.as_ref())?;
    }
    commit.finish();
    Ok(())
}

/// Variables that are being written. They are locked meanwhile, so that no other thread takes hold of a value that is being
/// written, and those whose value somebody else holds have a new block.
pub(crate) struct Commit<'a> {
    /// In the order of their addresses.
    cells: Vec<&'a Arc<VariableCell>>,
    held: Vec<MutexGuard<'a, StorageView>>,
    fresh: Vec<Option<Arc<Storage>>>,
    n_writes: Vec<u32>,
    /// Whether those that are written where they are have been made theirs alone.
    is_settled: bool,
}

impl<'a> Commit<'a> {
    /// Locks variables, and takes memory for those that cannot be written where they are: somebody else holds their value,
    /// or they are among the undecided.
    pub fn begin(
        cells: impl Iterator<Item = &'a Arc<VariableCell>>,
        undecided: &HashSet<usize>,
    ) -> Result<Commit<'a>> {
        let mut cells: Vec<&Arc<VariableCell>> = cells.collect();
        cells.sort_by_key(|cell| cell.address());
        cells.dedup_by_key(|cell| cell.address());
        let held: Vec<MutexGuard<'_, StorageView>> = cells.iter().map(|cell| cell.lock()).collect();
        context::with_tracer(|tracer| tracer.commit());
        let place = |(cell, held): (&&'a Arc<VariableCell>, &MutexGuard<'_, StorageView>)| {
            fresh_place(cell, held, undecided.contains(&cell.address()))
        };
        let fresh = cells.iter().zip(&held).map(place).collect::<Result<_>>()?;
        let n_writes = vec![0; cells.len()];
        Ok(Commit { cells, held, fresh, n_writes, is_settled: false })
    }

    /// Before the first write: a value that is written over is nobody else's from here on, not even of those who remember it
    /// without holding it and could take hold of it on another thread. Where one of them has just done so, the new value goes
    /// to a new block.
    fn settle(&mut self) -> Result<()> {
        for at in 0..self.cells.len() {
            if self.fresh[at].is_none() && !self.held[at].0.renew() {
                self.fresh[at] = fresh_place(self.cells[at], &self.held[at], true)?;
            }
        }
        self.is_settled = true;
        Ok(())
    }

    fn at(&self, cell: &Arc<VariableCell>) -> usize {
        self.cells.partition_point(|other| other.address() < cell.address())
    }

    /// Whether the variables read as something else for now.
    fn is_pinned(&self) -> Result<bool> {
        match self.cells.iter().filter(|cell| context::pinned(cell.address()).is_some()).count() {
            0 => Ok(false),
            n if n == self.cells.len() => Ok(true),
            n => {
                let n_all = self.cells.len();
                let detail =
                    format!("{n} of {n_all} variables read as ghosts; they are updated together or not");
                Err(Error::device("update", detail))
            }
        }
    }

    /// The memory of a variable: what is read, or where its new value goes.
    fn value(&self, at: usize, is_written: bool) -> Operand<'_> {
        match &self.fresh[at] {
            Some(storage) if is_written => Operand::of(storage, self.cells[at].meta()),
            _ => operand(&self.held[at]),
        }
    }

    /// Runs an op on the variables' values and `inputs`; its outputs are their new values.
    pub fn run(
        &mut self,
        op: &OpRef,
        cells: &[Arc<VariableCell>],
        inputs: &[Operand<'_>],
        workspace: Option<&Block>,
    ) -> Result<()> {
        let Some(first) = cells.first() else { return Ok(()) };
        if !self.is_settled {
            self.settle()?;
        }
        // The lists hold addresses alone: an optimizer updates hundreds of variables at once.
        let places: SmallVec<[usize; 4]> = cells.iter().map(|cell| self.at(cell)).collect();
        let values = places.iter().map(|&at| self.value(at, self.n_writes[at] > 0));
        let inputs: SmallVec<[Operand<'_>; 4]> = values.chain(inputs.iter().copied()).collect();
        let into: SmallVec<[Operand<'_>; 1]> = places.iter().map(|&at| self.value(at, true)).collect();
        let n_calls = fault::n_calls(first.device());
        execute::run(op, first.device(), &inputs, &into, &[], workspace, Order::Fixed)?;
        drop((inputs, into));
        // What comes after may go over the variables' memory.
        if fault::n_calls(first.device()) != n_calls {
            fault::wait_and_look(first.device())?;
        }
        places.into_iter().for_each(|at| self.n_writes[at] += 1);
        Ok(())
    }

    /// Tells of an update where a function is being recorded.
    fn trace(
        &self,
        op: &OpRef,
        cells: &[Arc<VariableCell>],
        inputs: &[StorageView],
        workspace: Option<&Block>,
    ) -> Result<()> {
        let updated = |cell: &'a Arc<VariableCell>, at: usize| Updated {
            cell,
            value: &self.held[at],
            fresh: self.fresh[at].as_ref(),
        };
        let places = cells.iter().map(|cell| self.at(cell));
        let cells: SmallVec<[Updated<'_>; 1]> = places.map(|at| updated(self.cells[at], at)).collect();
        context::with_tracer(|tracer| tracer.update(op, &cells, inputs, workspace)).unwrap_or(Ok(()))
    }

    /// The new values are those of the variables from here on.
    pub fn finish(self) {
        let places = self.held.into_iter().zip(self.fresh);
        for (((mut held, fresh), cell), n_writes) in places.zip(&self.cells).zip(self.n_writes) {
            (0..n_writes).for_each(|_| cell.written());
            let Some(fresh) = fresh else {
                held.0.overwritten();
                continue;
            };
            let before = cell.replace(&mut held, fresh);
            // Whoever still reads the old version keeps it; it is the variable's no longer.
            before.relabel(if before.is_saved() { Owner::Saved } else { Owner::Temporary });
        }
    }
}

fn operand((storage, meta): &StorageView) -> Operand<'_> {
    Operand::of(storage, meta)
}

/// The device on which a variable is read and written now.
fn device_of(cell: &Arc<VariableCell>) -> Device {
    if let Some(ghost) = context::with_tracer(|tracer| tracer.ghost_of(cell.device())) {
        return ghost;
    }
    let pinned = context::pinned(cell.address());
    pinned.map_or_else(|| cell.device().clone(), |(storage, _)| storage.device().clone())
}

/// The addresses of the variables that are written before it is known whether all kernels do what they are asked to, given
/// the ops in their order and the variables that each writes.
pub(crate) fn undecided<'a>(
    updates: impl DoubleEndedIterator<Item = (&'a OpRef, &'a [Arc<VariableCell>])>,
) -> HashSet<usize> {
    let from_last_refusing = updates.rev().skip_while(|(op, _)| op.get().never_refuses());
    from_last_refusing.flat_map(|(_, cells)| cells).map(|cell| cell.address()).collect()
}

/// A new block for a variable's new value if the old one must stay: somebody else holds it, or a kernel may yet refuse.
/// Nothing if the new value goes over the old one.
fn fresh_place(
    cell: &Arc<VariableCell>,
    held: &StorageView,
    is_undecided: bool,
) -> Result<Option<Arc<Storage>>> {
    if variable::is_unshared(held) && !is_undecided {
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
