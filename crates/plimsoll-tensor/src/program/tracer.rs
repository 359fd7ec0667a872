//! Recording a program: the function runs on a ghost, and every execution of an op is recorded.
//!
//! The tracer belongs to the thread's context while a function is recorded. `execute` reports each call to it, updates of
//! variables report theirs, and the ghost's pool traces all memory that is acquired and released meanwhile; a mark in that
//! trace for each call puts both in one order. Variables and tensors from outside are replaced by ghosts when they are
//! first read, so that recording neither touches nor copies them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_memory::{Block, Label, LongList, Site};
use smallvec::SmallVec;

use super::argument::Argument;
use super::merge::{CALL, COMMIT, Merged, READ};
use super::owned::OwnedVariables;
use super::{Call, Captured, Phase, Place, Program, Value, ValueView, VariableInput};
use crate::autograd::Step;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::storage::Storage;
use crate::eager::context;
use crate::eager::execute::{Arg, Order, StorageView};
use crate::eager::op::{Meta, OpRef};
use crate::eager::random::Generator;
use crate::eager::recorder::{Execution, InitialValue, Recorder, Updated};
use crate::eager::tensor::{Data, Nodes, Tensor};
use crate::eager::variable::{Variable, VariableCell};

/// Records what a function does while it runs on a ghost.
pub(crate) struct Tracer {
    /// Distinguishes the values of this recording from those of others.
    serial: u32,
    /// The devices that the function uses; the first is the one that it is recorded for.
    devices: SmallVec<[TracedDevice; 1]>,
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
    /// The new blocks of variables.
    new_places: Vec<u32>,
    /// The blocks that are cleared before they are written.
    cleared: Vec<u32>,
    /// Whether the effects depend on a number.
    commits_if_finite: bool,
    /// Why there can be no program: what the function did that cannot be recorded.
    refusal: Option<Error>,
    /// The arguments themselves,
    arguments: Vec<Argument>,
    /// and the numbers of those that are donated.
    donated: Vec<u32>,
    /// The variables that the function makes,
    pub(super) owned: OwnedVariables,
    /// and the values that it would give those that it has made before.
    pub(super) initial: Vec<u32>,
    /// What a graph under construction knows beyond a function.
    symbolic: Option<Symbolic>,
}

/// What only the recording of a graph has.
#[derive(Default)]
pub(crate) struct Symbolic {
    /// The variables that it has made, with the numbers of their initial values and how these lie.
    pub variables: Vec<(Variable, ValueView)>,
}

/// A device that the function uses, and the ghost on which it is recorded.
struct TracedDevice {
    device: Device,
    ghost: Device,
    /// The acquisition with which recording begins there: blocks are numbered from it on.
    first_block: u64,
    /// The call before which the function first used it.
    first_call: u32,
}

impl TracedDevice {
    fn new(device: &Device, ghost: Device, first_call: u32) -> TracedDevice {
        let first_block = ghost.stats().n_acquired;
        ghost.pool().start_trace();
        TracedDevice { device: device.clone(), ghost, first_block, first_call }
    }
}

/// While a function is recorded, a block has the number of its device in the highest bits, and below them its own among those
/// of that device: the order of all of them is known at the end.
const BLOCK_BITS: u32 = 26;

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
    /// `donated`, in rising order, belong to the program when it runs: it frees them after their last use, or overwrites
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
            // Step logs count from below: a storage is known by one or the other.
            serial: u32::MAX - NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 31),
            devices: SmallVec::from_iter([TracedDevice::new(device, ghost.clone(), 0)]),
            values: LongList::default(),
            calls: LongList::default(),
            variables: HashMap::new(),
            cells: Vec::new(),
            captured: HashMap::new(),
            storages: Vec::new(),
            written: BTreeSet::new(),
            new_places: Vec::new(),
            cleared: Vec::new(),
            commits_if_finite: false,
            refusal: None,
            arguments: Vec::new(),
            donated: Vec::new(),
            owned: OwnedVariables::none(),
            initial: Vec::new(),
            symbolic: None,
        }
    }

    /// What records a graph for a device, on a ghost of it.
    pub fn of_graph(device: &Device) -> Result<Tracer> {
        let ghost = device.ghost();
        ghost.set_limit(None)?;
        ghost.set_symbolic();
        Ok(Tracer { symbolic: Some(Symbolic::default()), ..Tracer::new(device, &ghost) })
    }

    /// What only a graph has.
    pub fn symbolic(&self) -> Option<&Symbolic> {
        self.symbolic.as_ref()
    }

    /// Distinguishes this recording from others.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// How many calls there are so far.
    pub fn n_calls(&self) -> u32 {
        self.calls.len() as u32
    }

    /// A placeholder of a graph: its ghost.
    pub fn placeholder(&mut self, spec: &Tensor) -> Result<Tensor> {
        self.argument(spec, false)
    }

    /// How the placeholder of that number lies in memory.
    pub fn placeholder_meta(&self, number: u32) -> &Meta {
        &self.arguments[number as usize].meta
    }

    /// A variable that is read, if it is still there, and how its value lay when it was first read.
    pub fn variable_input(&self, number: u32) -> (Option<Arc<VariableCell>>, &Meta) {
        let input = &self.cells[number as usize];
        (input.cell.upgrade(), &input.meta)
    }

    /// A device that is used.
    pub fn device_numbered(&self, number: u8) -> &Device {
        &self.devices[usize::from(number)].device
    }

    /// A tensor of a graph that stands for one from outside.
    pub fn constant(&mut self, tensor: &Tensor) -> Tensor {
        let (storage, meta) = tensor.storage_view();
        let ghost = self.capture(&storage).unwrap_or(storage);
        Tensor::over(ghost, meta, Nodes::new())
    }

    /// A variable that a graph makes: it has no value before it is initialised.
    pub(super) fn graph_variable(&mut self, initial: &StorageView) -> Result<Variable> {
        let storage = self.capture(&initial.0).unwrap_or_else(|| initial.0.clone());
        let initial = self.view(&storage, &initial.1)?;
        let (device, meta) = (self.device().clone(), Meta::fresh(*initial.meta.shape(), initial.meta.dtype));
        let ghost = Storage::spec(&device, meta.n_bytes(), meta.dtype).shadow(&self.devices[0].ghost)?;
        let variable = Variable::symbolic(&device, ghost.clone(), meta);
        let number = self.cells.len() as u32;
        self.add(&ghost, Place::Variable(number), None)?;
        self.cells.push(VariableInput {
            cell: Arc::downgrade(variable.cell()),
            meta: Box::new(meta),
            is_gathered: false,
        });
        self.variables.insert(variable.cell().address(), (number, ghost));
        if let Some(symbolic) = &mut self.symbolic {
            symbolic.variables.push((variable.clone(), initial));
        }
        Ok(variable)
    }

    /// The value of that number.
    pub fn value(&self, number: u32) -> &Value {
        &self.values[number as usize]
    }

    /// The call of that number.
    pub fn call_numbered(&self, number: u32) -> &Call {
        &self.calls[number as usize]
    }

    /// What an argument is on the device itself.
    ///
    /// # Errors
    /// One that is only described.
    pub(super) fn argument_itself(&self, number: u32) -> Result<(Arc<Storage>, usize)> {
        let argument = &self.arguments[number as usize];
        match argument.storage.device() == self.device() {
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
    pub fn captured_storage(&self, number: u32) -> Arc<Storage> {
        self.storages[number as usize].clone()
    }

    /// A variable that the function reads, if it is still there.
    pub(super) fn cell(&self, number: u32) -> Option<Arc<VariableCell>> {
        self.cells[number as usize].cell.upgrade()
    }

    /// The device that the function is recorded for.
    pub fn device(&self) -> &Device {
        &self.devices[0].device
    }

    /// The number of the device that a ghost stands for.
    fn device_number(&self, ghost: &Device) -> Result<u8> {
        let number = self.devices.iter().position(|known| known.ghost == *ghost);
        number.and_then(|number| u8::try_from(number).ok()).ok_or_else(|| {
            Error::device("function", format!("{ghost} is no device that this function is recorded for"))
        })
    }

    /// The ghost of an argument. A donated one is a block like those that the function acquires, so that it is freed and
    /// overwritten as they are.
    fn argument(&mut self, argument: &Tensor, is_donated: bool) -> Result<Tensor> {
        let argument = Argument::of(argument);
        let device = argument.device();
        let here = self.ghost_of(&device);
        let (number, meta) = (self.arguments.len() as u32, argument.meta);
        let ghost = if is_donated {
            let (n_bytes, dtype) = (argument.storage.n_bytes(), argument.storage.dtype());
            // It has no line of its own: the function is called from many.
            let label = Label::new(argument.storage.owner(), Site::intern("", 0, "", "argument"));
            if here != self.devices[0].ghost {
                let detail =
                    format!("argument {number} is donated on {device}, the function is on {}", self.device());
                return Err(Error::device("function", detail));
            }
            let ghost = Storage::own(here.acquire(n_bytes, label)?, dtype, &here);
            self.add(&ghost, Place::Block(self.donated.len() as u32), None)?;
            self.donated.push(number);
            ghost
        } else {
            let ghost = shadow(&argument.storage, &here);
            self.add(&ghost, Place::Argument(number), None)?;
            ghost
        };
        self.arguments.push(argument);
        Ok(Tensor::over(ghost, meta, Nodes::new()))
    }

    /// The ghost of the value that a variable has when the function begins.
    fn variable(&mut self, cell: &Arc<VariableCell>, value: &StorageView) -> StorageView {
        if let Some((_, shadow)) = self.variables.get(&cell.address()) {
            return (shadow.clone(), value.1);
        }
        let number = self.cells.len() as u32;
        let ghost = self.ghost_of(cell.device());
        ghost.pool().mark(READ, u64::from(number));
        let shadow = shadow(&value.0, &ghost);
        self.add_known(&shadow, Place::Variable(number));
        self.cells.push(VariableInput {
            cell: Arc::downgrade(cell),
            meta: Box::new(value.1),
            is_gathered: false,
        });
        self.variables.insert(cell.address(), (number, shadow.clone()));
        (shadow, value.1)
    }

    /// Numbers something from outside, whose ghost is on a device that is known.
    fn add_known(&mut self, shadow: &Arc<Storage>, place: Place) {
        self.add(shadow, place, None).unwrap_or_else(|_| unreachable!("its device is one of the function's"));
    }

    /// Numbers a value, and marks its storage with the number.
    fn add(&mut self, storage: &Arc<Storage>, place: Place, call: Option<u32>) -> Result<u32> {
        let (number, device) = (self.values.len() as u32, self.device_number(storage.device())?);
        storage.set_tag(u64::from(self.serial) << 32 | u64::from(number));
        let n_bytes = storage.n_bytes();
        self.values.push(Value { n_bytes, place, device, call, first_fetch: None, repeats: None });
        Ok(number)
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

    pub fn view(&self, storage: &Storage, meta: &Meta) -> Result<ValueView> {
        Ok(ValueView { value: self.number(storage)?, meta: Box::new(*meta) })
    }

    /// The number of a block that was acquired on a device since recording began.
    fn block(&self, device: u8, block: &Block) -> Result<u32> {
        let number = block.serial() - self.devices[usize::from(device)].first_block;
        match number < 1 << BLOCK_BITS && u32::from(device) < 1 << (u32::BITS - BLOCK_BITS) {
            true => Ok(u32::from(device) << BLOCK_BITS | number as u32),
            false => Err(Error::argument("function", "it uses too many devices, or too many blocks of one")),
        }
    }

    fn push(&mut self, call: Call) {
        // In every trace, so that what lies between two calls can be separated there.
        for known in &self.devices {
            known.ghost.pool().mark(CALL, self.calls.len() as u64);
        }
        self.calls.push(call);
    }

    /// The program, when the function has returned.
    fn finish(mut self, results: &[Tensor], arguments: Vec<Meta>, first_draw: u64) -> Result<Program> {
        let results = results
            .iter()
            .map(|result| {
                let (storage, meta) = capture_result(&mut self, result);
                self.view(&storage, &meta)
            })
            .collect::<Result<_>>()?;
        let is_on =
            |argument: &Argument| self.devices.iter().position(|known| known.device == argument.device());
        let argument_devices =
            self.arguments.iter().map(|argument| is_on(argument).unwrap_or(0) as u8).collect();
        let known = self.devices.iter();
        let traces =
            known.map(|known| (known.ghost.pool().take_trace(), known.first_block, known.first_call));
        let merged = Merged::of(traces.collect(), self.calls.len());
        self.renumber_blocks(&merged);
        let program = Program {
            devices: self.devices.into_iter().map(|known| known.device).collect(),
            first_draw,
            values: self.values,
            calls: self.calls,
            blocks: merged.blocks,
            instructions: merged.instructions,
            arguments,
            argument_devices,
            donated: self.donated,
            variables: self.cells,
            captured: Captured::new(self.storages, context::site("")),
            new_places: self.new_places,
            cleared: self.cleared,
            written: self.written.into_iter().collect(),
            results,
            commits_if_finite: self.commits_if_finite,
            n_draws: context::generator().next_draw() - first_draw,
            n_copies: 0,
            agreement: None,
        };
        Ok(program.without_initial(&self.initial))
    }
}

impl Recorder for Tracer {
    fn is_recorded(&self, storage: &Storage) -> bool {
        self.devices.iter().any(|known| known.ghost == *storage.device())
    }

    fn is_graph(&self) -> bool {
        self.symbolic.is_some()
    }

    fn ghost_of(&mut self, device: &Device) -> Device {
        let known = self.devices.iter().find(|known| known.device == *device || known.ghost == *device);
        if let Some(known) = known {
            return known.ghost.clone();
        }
        let ghost = device.ghost();
        let unlimited = ghost.set_limit(None);
        debug_assert!(unlimited.is_ok(), "a limit can always be lifted");
        if self.is_graph() {
            ghost.set_symbolic();
        }
        self.devices.push(TracedDevice::new(device, ghost.clone(), self.calls.len() as u32));
        ghost
    }

    fn real_of(&self, ghost: &Device) -> Option<Device> {
        self.devices.iter().find(|known| known.ghost == *ghost).map(|known| known.device.clone())
    }

    fn note_read(&mut self, op: &'static str, site: Site) {
        self.refuse(Error::reads_value(op, site));
    }

    fn refuse(&mut self, refusal: Error) {
        // A graph is only described: whoever reads a value of it gets an error, and may go on without.
        if !self.is_graph() {
            self.refusal.get_or_insert(refusal);
        }
    }

    fn variable_value(&mut self, cell: &Arc<VariableCell>, value: &StorageView) -> StorageView {
        match self.is_recorded(&value.0) {
            false => self.variable(cell, value),
            true => value.clone(),
        }
    }

    fn capture(&mut self, storage: &Arc<Storage>) -> Option<Arc<Storage>> {
        // A tensor of another graph has no value: it has no number here either, and whoever asks for it gets an error.
        if self.is_recorded(storage) || storage.device().is_symbolic() {
            return None;
        }
        if let Some(shadow) = self.captured.get(&(Arc::as_ptr(storage) as usize)) {
            return Some(shadow.clone());
        }
        let shadow = shadow(storage, &self.ghost_of(storage.device()));
        self.add_known(&shadow, Place::Captured(self.storages.len() as u32));
        self.storages.push(storage.clone());
        self.captured.insert(Arc::as_ptr(storage) as usize, shadow.clone());
        Some(shadow)
    }

    fn fetched(&mut self, storage: &Storage) {
        let (tag, next_call) = (storage.tag(), self.calls.len() as u32);
        if (tag >> 32) as u32 == self.serial {
            self.values[tag as u32 as usize].first_fetch.get_or_insert(next_call);
        }
    }

    fn call(&mut self, args: &[Arg<'_>], made: Execution<'_>) -> Result<()> {
        let inputs = args.iter().map(|arg| self.view(arg.storage(), arg.meta())).collect::<Result<_>>()?;
        let number = self.calls.len() as u32;
        let device = self.device_number(made.device)?;
        let mut outputs = SmallVec::new();
        for (storage, meta) in made.outputs {
            let Some(block) = storage.block() else {
                return Err(Error::argument("function", "an op wrote to memory that is not its own"));
            };
            let block = self.block(device, block)?;
            if meta.dtype == DType::Bool && made.op.is_own() {
                self.cleared.push(block);
            }
            let value = self.add(storage, Place::Block(block), Some(number))?;
            outputs.push(ValueView { value, meta: Box::new(*meta) });
        }
        self.push(Call {
            inputs,
            outputs,
            n_aux: made.n_aux as u16,
            workspace: made.workspace.map(|block| self.block(device, block)).transpose()?,
            wanted: made.wanted,
            device,
            phase: if context::is_in_backward() { Phase::Backward } else { Phase::Forward },
            site: context::site(made.op.name()),
            order: made.order,
            recomputed_flops: None,
            source: number,
            is_second: false,
            op: made.op.clone(),
        });
        Ok(())
    }

    fn commit_if_finite(&mut self) {
        self.commits_if_finite = true;
    }

    fn commit(&mut self) {
        self.devices[0].ghost.pool().mark(COMMIT, 0);
    }

    fn update(
        &mut self,
        op: &OpRef,
        cells: &[Updated<'_>],
        inputs: &[StorageView],
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
        let mut device = 0;
        for &Updated { cell, fresh, .. } in cells {
            let (variable, shadow) = self.variables[&cell.address()].clone();
            device = self.device_number(shadow.device())?;
            self.written.insert(variable);
            let place = match fresh.and_then(|storage| storage.block()) {
                Some(block) => {
                    let block = self.block(device, block)?;
                    self.new_places.push(block);
                    Place::Block(block)
                }
                None => Place::Variable(variable),
            };
            let value = self.add(&shadow, place, Some(number))?;
            outputs.push(ValueView { value, meta: Box::new(*cell.meta()) });
        }
        self.push(Call {
            op: op.clone(),
            inputs: read,
            outputs,
            n_aux: 0,
            workspace: workspace.map(|block| self.block(device, block)).transpose()?,
            wanted: SmallVec::new(),
            device,
            phase: Phase::Update,
            site: context::site(op.name()),
            order: Order::Fixed,
            recomputed_flops: None,
            source: number,
            is_second: false,
        });
        Ok(())
    }

    fn next_variable(&mut self, value: &StorageView) -> Result<Option<Variable>> {
        self.next_owned(value)
    }

    fn initial_value(&mut self, value: &StorageView) -> Result<InitialValue> {
        let wanted = self.calls_to(value)?;
        Ok(Box::new(move || wanted.run()))
    }

    fn own(&mut self, variable: &Variable) {
        self.owned.push(variable);
    }
}

impl Tracer {
    /// Gives the blocks their numbers among those of all devices.
    fn renumber_blocks(&mut self, merged: &Merged) {
        if self.devices.len() == 1 {
            return;
        }
        let number = |block: &mut u32| {
            *block = merged.number((*block >> BLOCK_BITS) as usize, *block & ((1 << BLOCK_BITS) - 1));
        };
        for at in 0..self.values.len() {
            if let Place::Block(block) = &mut self.values[at].place {
                number(block);
            }
        }
        for at in 0..self.calls.len() {
            self.calls[at].workspace.iter_mut().for_each(number);
        }
        self.new_places.iter_mut().chain(&mut self.cleared).for_each(number);
    }
}

/// What stands for a storage on a ghost.
fn shadow(storage: &Storage, ghost: &Device) -> Arc<Storage> {
    storage.shadow(ghost).unwrap_or_else(|_| unreachable!("a function is recorded on ghosts"))
}

/// A tensor that a function returns; one from outside, with which it has done nothing, is an input, too.
fn capture_result(tracer: &mut Tracer, result: &Tensor) -> StorageView {
    let (storage, meta) = result.storage_view();
    let captured = match result.data() {
        Data::Value(storage) => tracer.capture(storage),
        Data::Variable(_) => None,
    };
    (captured.unwrap_or(storage), meta)
}
