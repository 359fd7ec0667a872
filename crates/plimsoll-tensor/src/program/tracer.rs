//! Recording a program: the function runs on a ghost, and every execution of an op is noted.
//!
//! The tracer belongs to the thread's context while a function is recorded. `execute` tells it of each call, updates of
//! variables tell it of theirs, and the ghost's pool keeps a trace of all memory that is taken and freed meanwhile; a mark
//! in that trace for each call puts both in one order. Variables and tensors from outside are replaced by ghosts when they
//! are first read, so that recording neither touches nor copies them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_memory::{Block, Label, LongList, Name, Site, TraceEvent};
use smallvec::SmallVec;

use super::argument::Argument;
use super::owned::OwnedVariables;
use super::{BlockSpec, Call, Instruction, Phase, Place, Program, Value, ValueView, VariableInput};
use crate::context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::{Arg, Order, Part};
use crate::op::{Meta, OpRef};
use crate::random::Generator;
use crate::step::Step;
use crate::storage::Storage;
use crate::tensor::{Nodes, Tensor};
use crate::variable::VariableCell;

/// The name of the marks that put calls into the order of the pool's trace.
const CALL: Name = Name::constant(":call");
/// The name of the mark where the new values of variables begin to be written.
const COMMIT: Name = Name::constant(":commit");

/// Notes what a function does while it runs on a ghost.
pub(crate) struct Tracer {
    /// Tells the values of this recording from those of others.
    serial: u32,
    /// The device that the function is recorded for.
    device: Device,
    ghost: Device,
    values: LongList<Value>,
    calls: LongList<Call>,
    /// The ghosts of variables, by their addresses.
    variables: HashMap<usize, (u32, Arc<Storage>)>,
    cells: Vec<VariableInput>,
    /// The ghosts of tensors from outside, by the addresses of their storages.
    captured: HashMap<usize, Arc<Storage>>,
    storages: Vec<Arc<Storage>>,
    /// The variables that are written.
    written: BTreeSet<u32>,
    /// The blocks that variables move to.
    new_places: Vec<u32>,
    /// The blocks that are cleared before they are written.
    cleared: Vec<u32>,
    /// The acquisition with which recording begins: blocks are numbered from it on.
    first_block: u64,
    /// Whether the effects depend on a number.
    is_guarded: bool,
    /// Why there can be no program: what the function did that cannot be recorded.
    refusal: Option<Error>,
    /// The arguments themselves,
    arguments: Vec<Argument>,
    /// and the numbers of those that are given away.
    donated: Vec<u32>,
    /// The variables that the function makes,
    pub(super) owned: OwnedVariables,
    /// and the values that it would give those that it has made before.
    pub(super) initial: Vec<u32>,
}

/// A variable that gets a new value.
pub(crate) struct Updated<'a> {
    pub cell: &'a Arc<VariableCell>,
    /// What it holds.
    pub value: &'a Part,
    /// The block that it moves to, if somebody else holds its value.
    pub fresh: Option<&'a Arc<Storage>>,
}

/// What an execution of an op made and took, for the tracer.
pub(crate) struct Execution<'a> {
    pub op: &'a OpRef,
    pub order: Order,
    pub wanted: SmallVec<[bool; 4]>,
    pub outputs: SmallVec<[(&'a Arc<Storage>, &'a Meta); 4]>,
    pub n_aux: usize,
    pub workspace: Option<&'a Block>,
}

impl Program {
    /// Records what `f` does with arguments like these, on the device that they are for. `f` is called once, on a ghost of
    /// the device: it gets ghosts of the arguments, and neither the device's memory nor variables nor the random generator
    /// change.
    ///
    /// # Errors
    /// Those of `f`; a value that `f` reads; a variable that it makes.
    pub fn record(
        device: &Device,
        arguments: &[&Tensor],
        f: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Program> {
        let program = Program::trace_function(device, arguments, &[], &mut OwnedVariables::none(), f)?;
        Ok(program.unwrap_or_else(|| unreachable!("no variable was made")))
    }

    /// Like [`Program::record`], for a function that may make variables when it is first recorded. They are made for real,
    /// with their draws, and the function is recorded again: `f` is called twice then. The arguments whose numbers are
    /// `donated`, in rising order, are given away when the program runs: it frees them after their last use, or writes over
    /// them.
    ///
    /// # Errors
    /// As [`Program::record`]; a variable that was not made when it was first recorded.
    pub fn record_owning(
        device: &Device,
        arguments: &[&Tensor],
        donated: &[u32],
        owned: &mut OwnedVariables,
        mut f: impl FnMut(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Program> {
        loop {
            if let Some(program) = Program::trace_function(device, arguments, donated, owned, &mut f)? {
                return Ok(program);
            }
        }
    }

    /// Records what `f` does; nothing if it has made variables.
    fn trace_function(
        device: &Device,
        arguments: &[&Tensor],
        donated: &[u32],
        owned: &mut OwnedVariables,
        f: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Option<Program>> {
        let ghost = device.ghost();
        ghost.set_limit(None)?;
        let _on = ghost.enter();
        let generator = context::generator();
        let restore = context::on_drop(move || context::set_generator(generator));
        let mut tracer = Tracer::new(device, &ghost);
        tracer.owned = std::mem::take(owned);
        tracer.owned.begin();
        ghost.pool().start_trace();
        let shadows: Vec<Tensor> = (0..)
            .zip(arguments)
            .map(|(number, argument)| tracer.argument(argument, donated.contains(&number)))
            .collect::<Result<_>>()?;
        let metas = shadows.iter().map(|argument| *argument.meta()).collect();
        let (recorded, mut tracer) = context::with_tracing(tracer, || Step::run(&ghost, || f(shadows)));
        *owned = std::mem::take(&mut tracer.owned);
        if let Some(refusal) = tracer.refusal {
            return Err(refusal);
        }
        let recorded = recorded?;
        match owned.end() {
            None => Ok(Some(tracer.finish(&recorded, metas, generator.next_draw())?)),
            Some(n_draws) => {
                drop(restore);
                context::set_generator(Generator::at(generator.seed(), generator.next_draw() + n_draws));
                Ok(None)
            }
        }
    }
}

impl Tracer {
    fn new(device: &Device, ghost: &Device) -> Tracer {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Tracer {
            // Journals count from below: a storage is known by one or the other.
            serial: u32::MAX - NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 31),
            device: device.clone(),
            ghost: ghost.clone(),
            values: LongList::default(),
            calls: LongList::default(),
            variables: HashMap::new(),
            cells: Vec::new(),
            captured: HashMap::new(),
            storages: Vec::new(),
            written: BTreeSet::new(),
            new_places: Vec::new(),
            cleared: Vec::new(),
            first_block: ghost.stats().n_acquired,
            is_guarded: false,
            refusal: None,
            arguments: Vec::new(),
            donated: Vec::new(),
            owned: OwnedVariables::none(),
            initial: Vec::new(),
        }
    }

    /// The value of that number.
    pub(super) fn value(&self, number: u32) -> &Value {
        &self.values[number as usize]
    }

    /// The call of that number.
    pub(super) fn call_numbered(&self, number: u32) -> &Call {
        &self.calls[number as usize]
    }

    /// What an argument is on the device itself.
    ///
    /// # Errors
    /// One that is only described.
    pub(super) fn argument_itself(&self, number: u32) -> Result<(Arc<Storage>, usize)> {
        let argument = &self.arguments[number as usize];
        match argument.storage.device() == &self.device {
            true => Ok((argument.storage.clone(), argument.n_before)),
            false => Err(Error::argument(
                "function",
                format!(
                    "a variable is made from argument {number}, which is only described; call the function first"
                ),
            )),
        }
    }

    /// The argument whose memory a block is.
    pub(super) fn donated_argument(&self, block: u32) -> Option<u32> {
        self.donated.get(block as usize).copied()
    }

    /// A tensor from outside.
    pub(super) fn captured_storage(&self, number: u32) -> Arc<Storage> {
        self.storages[number as usize].clone()
    }

    /// A variable that the function reads, if it is still there.
    pub(super) fn cell(&self, number: u32) -> Option<Arc<VariableCell>> {
        self.cells[number as usize].cell.upgrade()
    }

    /// The device that the function is recorded for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The ghost that it runs on.
    pub fn ghost(&self) -> &Device {
        &self.ghost
    }

    /// A value was asked for; there is none.
    pub fn note_read(&mut self, op: &'static str, site: Site) {
        self.refuse(Error::reads_value(op, site));
    }

    /// There can be no program, whatever becomes of the function.
    pub fn refuse(&mut self, refusal: Error) {
        self.refusal.get_or_insert(refusal);
    }

    /// The ghost of an argument. One that is given away is a block like those that the function takes, so that it is freed
    /// and written over as they are.
    fn argument(&mut self, argument: &Tensor, is_donated: bool) -> Result<Tensor> {
        let argument = Argument::of(argument);
        let device = argument.device();
        if device != self.device {
            let [device, own] = device.names_apart(&self.device);
            return Err(Error::device(
                "function",
                format!("an argument is on {device}, the function on {own}"),
            ));
        }
        let (number, meta) = (self.arguments.len() as u32, argument.meta);
        let ghost = if is_donated {
            let (n_bytes, dtype) = (argument.storage.n_bytes(), argument.storage.dtype());
            // No line is its maker's: the function is called from many.
            let label = Label::new(argument.storage.owner(), Site::intern("", 0, "", "argument"));
            let ghost = Storage::own(self.ghost.acquire(n_bytes, label)?, dtype, &self.ghost);
            self.add(&ghost, Place::Block(self.donated.len() as u32), None);
            self.donated.push(number);
            ghost
        } else {
            let ghost = self.shadow(&argument.storage);
            self.add(&ghost, Place::Argument(number), None);
            ghost
        };
        self.arguments.push(argument);
        Ok(Tensor::over(ghost, meta, Nodes::new()))
    }

    /// What stands for a storage on the ghost.
    fn shadow(&self, storage: &Storage) -> Arc<Storage> {
        storage.shadow(&self.ghost).unwrap_or_else(|_| unreachable!("a function is recorded on a ghost"))
    }

    /// What a variable's value reads as: itself if the function has made it, else its ghost.
    pub fn variable_value(&mut self, cell: &Arc<VariableCell>, value: &Part) -> Part {
        match *value.0.device() == self.device {
            true => self.variable(cell, value),
            false => value.clone(),
        }
    }

    /// The ghost of the value that a variable has when the function begins.
    fn variable(&mut self, cell: &Arc<VariableCell>, value: &Part) -> Part {
        if let Some((_, shadow)) = self.variables.get(&cell.address()) {
            return (shadow.clone(), value.1);
        }
        let number = self.cells.len() as u32;
        let shadow = self.shadow(&value.0);
        self.add(&shadow, Place::Variable(number), None);
        self.cells.push(VariableInput { cell: Arc::downgrade(cell), meta: Box::new(value.1) });
        self.variables.insert(cell.address(), (number, shadow.clone()));
        (shadow, value.1)
    }

    /// The ghost of a tensor from outside, if it is on the function's device and not a ghost yet.
    pub fn capture(&mut self, storage: &Arc<Storage>) -> Option<Arc<Storage>> {
        if *storage.device() != self.device {
            return None;
        }
        if let Some(shadow) = self.captured.get(&(Arc::as_ptr(storage) as usize)) {
            return Some(shadow.clone());
        }
        let shadow = self.shadow(storage);
        self.add(&shadow, Place::Captured(self.storages.len() as u32), None);
        self.storages.push(storage.clone());
        self.captured.insert(Arc::as_ptr(storage) as usize, shadow.clone());
        Some(shadow)
    }

    /// Numbers a value, and marks its storage with the number.
    fn add(&mut self, storage: &Arc<Storage>, place: Place, call: Option<u32>) -> u32 {
        let number = self.values.len() as u32;
        storage.set_tag(u64::from(self.serial) << 32 | u64::from(number));
        let n_bytes = storage.n_bytes();
        self.values.push(Value { n_bytes, place, call, first_fetch: None, repeats: None });
        number
    }

    /// The value in a storage.
    pub(super) fn number(&self, storage: &Storage) -> Result<u32> {
        let tag = storage.tag();
        if (tag >> 32) as u32 == self.serial {
            return Ok(tag as u32);
        }
        Err(Error::argument(
            "function",
            "a tensor that was made from a file or another device inside a function cannot be recorded; make it outside \
             and pass it in",
        ))
    }

    fn view(&self, storage: &Storage, meta: &Meta) -> Result<ValueView> {
        Ok(ValueView { value: self.number(storage)?, meta: Box::new(*meta) })
    }

    /// Backward asks for a value that a tape has saved.
    pub fn fetched(&mut self, storage: &Storage) {
        let (tag, next_call) = (storage.tag(), self.calls.len() as u32);
        if (tag >> 32) as u32 == self.serial {
            self.values[tag as u32 as usize].first_fetch.get_or_insert(next_call);
        }
    }

    /// The number of a block that was taken since recording began.
    fn block(&self, block: &Block) -> u32 {
        (block.serial() - self.first_block) as u32
    }

    /// An op runs: with all its memory held, so that the mark lies between what it takes and what it frees.
    pub fn call(&mut self, args: &[Arg<'_>], made: Execution<'_>) -> Result<()> {
        let inputs = args.iter().map(|arg| self.view(arg.storage(), arg.meta())).collect::<Result<_>>()?;
        let number = self.calls.len() as u32;
        let place = |tracer: &Tracer, storage: &Arc<Storage>| match storage.block() {
            Some(block) => Ok(Place::Block(tracer.block(block))),
            None => Err(Error::argument("function", "an op wrote to memory that is not its own")),
        };
        let mut outputs = SmallVec::new();
        for (storage, meta) in made.outputs {
            let place = place(self, storage)?;
            if let (Place::Block(block), DType::Bool, true) = (place, meta.dtype, made.op.is_own()) {
                self.cleared.push(block);
            }
            outputs.push(ValueView { value: self.add(storage, place, Some(number)), meta: Box::new(*meta) });
        }
        self.push(Call {
            inputs,
            outputs,
            n_aux: made.n_aux as u16,
            workspace: made.workspace.map(|block| self.block(block)),
            wanted: made.wanted,
            phase: if context::is_walking_back() { Phase::Backward } else { Phase::Forward },
            site: context::site(made.op.name()),
            order: made.order,
            repeated_flops: None,
            source: number,
            is_second: false,
            op: made.op.clone(),
        });
        Ok(())
    }

    /// The step is guarded.
    pub fn guard(&mut self) {
        self.is_guarded = true;
    }

    /// Variables are about to get new values.
    pub fn commit(&mut self) {
        self.ghost.pool().mark(COMMIT, 0);
    }

    /// Variables get new values: in place, or in a block of their own where somebody holds the old one.
    pub fn update(
        &mut self,
        op: &OpRef,
        cells: &[Updated<'_>],
        inputs: &[Part],
        workspace: Option<&Block>,
    ) -> Result<()> {
        let number = self.calls.len() as u32;
        let mut read: SmallVec<[ValueView; 2]> = SmallVec::new();
        for Updated { cell, value, .. } in cells {
            let (shadow, _) = self.variable(cell, value);
            read.push(self.view(&shadow, cell.meta())?);
        }
        for (storage, meta) in inputs {
            read.push(self.view(storage, meta)?);
        }
        let mut outputs = SmallVec::new();
        for &Updated { cell, fresh, .. } in cells {
            let (variable, shadow) = self.variables[&cell.address()].clone();
            self.written.insert(variable);
            let place = match fresh.and_then(|storage| storage.block()) {
                Some(block) => {
                    self.new_places.push(self.block(block));
                    Place::Block(self.block(block))
                }
                None => Place::Variable(variable),
            };
            let value = self.add(&shadow, place, Some(number));
            outputs.push(ValueView { value, meta: Box::new(*cell.meta()) });
        }
        self.push(Call {
            op: op.clone(),
            inputs: read,
            outputs,
            n_aux: 0,
            workspace: workspace.map(|block| self.block(block)),
            wanted: SmallVec::new(),
            phase: Phase::Update,
            site: context::site(op.name()),
            order: Order::Fixed,
            repeated_flops: None,
            source: number,
            is_second: false,
        });
        Ok(())
    }

    fn push(&mut self, call: Call) {
        self.ghost.pool().mark(CALL, self.calls.len() as u64);
        self.calls.push(call);
    }

    /// The program, when the function has returned.
    fn finish(self, results: &[Tensor], arguments: Vec<Meta>, first_draw: u64) -> Result<Program> {
        let trace = self.ghost.pool().take_trace();
        let results = results
            .iter()
            .map(|result| {
                let (storage, meta) = result.part();
                self.view(&storage, &meta)
            })
            .collect::<Result<_>>()?;
        let mut blocks = LongList::default();
        let mut instructions = LongList::default();
        let number = |serial: u64| (serial - self.first_block) as u32;
        for event in trace.iter() {
            instructions.push(match *event {
                TraceEvent::Acquire { serial, bytes, label, .. } => {
                    blocks.push(BlockSpec { n_bytes: bytes, label });
                    Instruction::Acquire(number(serial))
                }
                TraceEvent::Release { serial } => Instruction::Release(number(serial)),
                TraceEvent::Relabel { serial, label } => Instruction::Relabel(number(serial), label),
                TraceEvent::Mark { name: CALL, number } => Instruction::Call(number as u32),
                TraceEvent::Mark { name: COMMIT, .. } => Instruction::Commit,
                TraceEvent::Mark { name, .. } => Instruction::Mark(name),
                TraceEvent::Work { .. } => continue,
            });
        }
        let program = Program {
            device: self.device,
            first_draw,
            values: self.values,
            calls: self.calls,
            blocks,
            instructions,
            arguments,
            donated: self.donated,
            variables: self.cells,
            captured: self.storages,
            new_places: self.new_places,
            cleared: self.cleared,
            written: self.written.into_iter().collect(),
            results,
            is_guarded: self.is_guarded,
            n_draws: context::generator().next_draw() - first_draw,
            n_copies: 0,
        };
        Ok(program.without_initial(&self.initial))
    }
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
pub(crate) fn capture_part((storage, meta): Part) -> Part {
    let shadow = context::with_tracer(|tracer| tracer.capture(&storage)).flatten();
    (shadow.unwrap_or(storage), meta)
}
