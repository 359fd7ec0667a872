//! The program: what a function does, traced once, as a value (a jaxpr or `torch.fx` graph, with its memory).
//!
//! A [`Program`] is a straight line of [`Instruction`]s: calls of ops in the order in which they ran, and, between them,
//! the memory that they acquire, relabel and release. Operands are values by number, each with the layout under which a
//! call sees it, so views are not calls. Everything that is to be known of a function before it runs is read off its
//! program: which bytes are in use at which moment ([`Program::footprint`]), and what recomputing its values costs.
//!
//! A program is recorded by calling the function once on a ghost of its device ([`Program::record`]): arguments, variables
//! and captured tensors are its inputs, and none of them changes. It refuses to guess: a function that reads a value while
//! it is recorded depends on it, so it has no program, and the error names the line.

mod agreement;
mod argument;
mod cache;
mod cache_info;
mod compare;
mod compile_ahead;
mod copies;
mod display;
mod document;
mod footprint;
mod gathers;
mod graphs;
mod heap;
mod merge;
mod owned;
mod passes;
mod plans;
mod prune;
mod registry;
mod remat;
mod retrace;
mod runner;
mod trace;
mod tracer;
mod verify;

use std::fmt;
use std::sync::{Arc, Weak};

use plimsoll_memory::{Label, LongList, Name, Site};
use smallvec::SmallVec;

use agreement::Agreement;

use crate::device::Device;
use crate::device::holders::{Held, Holder};
use crate::device::storage::Storage;
use crate::device::survey::{self, HolderKind, Keeper, Survey};
use crate::eager::execute::Order;
use crate::eager::op::{Meta, OpRef};
use crate::eager::variable::VariableCell;

pub use agreement::{Agreed, Choice, Peers};
pub(crate) use argument::Argument;
pub use cache::{ProgramCache, ProgramKey, Recording};
pub use cache_info::{CacheInfo, CachedProgram};
pub use document::ProgramDocument;
pub use footprint::Footprint;
pub use gathers::GatheredVariable;
pub use owned::OwnedVariables;
pub use plans::{Offsets, PlannedProgram};
pub(crate) use registry::Listed;
pub use registry::clear_session;
pub(crate) use tracer::Tracer;

/// What a function does.
#[derive(Clone)]
pub struct Program {
    /// The devices that it uses. The first is the one that it was recorded for; values, blocks and calls name theirs by its
    /// number here.
    devices: SmallVec<[Device; 1]>,
    values: LongList<Value>,
    calls: LongList<Call>,
    blocks: LongList<BlockSpec>,
    instructions: LongList<Instruction>,
    arguments: Vec<Meta>,
    /// The number of the device that each of them is on.
    argument_devices: Vec<u8>,
    /// The arguments that are donated: their memory is the program's first blocks, one for each.
    donated: Vec<u32>,
    variables: Vec<VariableInput>,
    captured: Arc<Captured>,
    results: Vec<ValueView>,
    /// The variables that it writes, in rising order.
    written: Vec<u32>,
    /// Blocks for variables whose value something else referenced when the program was recorded.
    new_places: Vec<u32>,
    /// Blocks for booleans that a custom op may leave unwritten: not every byte is a boolean.
    cleared: Vec<u32>,
    /// How many random draws it makes.
    n_draws: u64,
    /// How many values are offloaded.
    n_copies: u32,
    /// The number of the first draw when it was recorded; ops hold theirs, counted from it.
    first_draw: u64,
    /// Whether the device itself decides about the effects, so that the host does not wait for it before.
    commits_if_finite: bool,
    /// How its plans are agreed upon with other ranks, if it is one of several.
    agreement: Option<Arc<Agreement>>,
}

/// The tensors from outside that a program uses; programs that were made of one recording share them.
struct Captured {
    storages: Vec<Held>,
    /// Where the program was recorded.
    site: Site,
}

impl Captured {
    fn new(storages: impl IntoIterator<Item = Arc<Storage>>, site: Site) -> Arc<Captured> {
        let held = storages.into_iter().map(|storage| Held::new(storage, Holder::Program));
        let captured = Arc::new(Captured { storages: held.collect(), site });
        let mut listed: SmallVec<[u64; 2]> = SmallVec::new();
        for device in captured.storages.iter().map(|storage| storage.device()) {
            if !listed.contains(&device.number()) {
                listed.push(device.number());
                let weak: Weak<Captured> = Arc::downgrade(&captured);
                survey::list(device, weak);
            }
        }
        captured
    }
}

impl Keeper for Captured {
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>) {
        let holder = survey.holder_at(HolderKind::Program, format!("program {}", self.site), &self);
        self.storages.iter().for_each(|storage| survey.holds(holder, storage, Holder::Program));
    }
}

/// A variable that a program reads or writes. It does not keep the variable alive.
#[derive(Clone)]
struct VariableInput {
    cell: Weak<VariableCell>,
    /// How its value lay in memory when the program was recorded; boxed, because a model has hundreds of variables.
    meta: Box<Meta>,
    /// Whether it has no value of its own: the program makes it.
    is_gathered: bool,
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Acquires the memory of a block.
    Acquire(u32),
    /// Frees it.
    Release(u32),
    /// Attributes a block to another owner, or to another line.
    Relabel(u32, Label),
    /// Reads a variable for the first time. Its value is there already; where it is not, as with variables that are kept in
    /// shards, a rewriting replaces this by the calls that bring it.
    Read(u32),
    /// Runs an op.
    Call(u32),
    /// Begins to offload a value; its copy has that number.
    Offload(u32, u32),
    /// Begins to reload a copy, as another value in a block of its own.
    Fetch(u32, u32),
    /// Waits for a reload: calls from here on may read its value.
    Wait(u32),
    /// Discards a copy.
    Discard(u32),
    /// A phase such as `backward` begins.
    Mark(Name),
    /// The effects begin: from here on, calls write variables. They are committed together.
    Commit,
}

/// The memory of one or more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpec {
    /// The bytes asked for.
    pub n_bytes: u64,
    /// The number of the device whose pool it is taken from.
    pub device: u8,
    /// Who owns it, and which line acquired it.
    pub label: Label,
}

/// What one block holds from the call that writes it on; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes.
    pub n_bytes: usize,
    /// Where it lies.
    pub place: Place,
    /// The number of the device that it is on.
    pub device: u8,
    /// The call that makes it; none for an input.
    pub call: Option<u32>,
    /// The call before which backward first fetches it; none if no tape saves it.
    pub first_fetch: Option<u32>,
    /// The value that it equals because it is a recomputation or a reload of it.
    pub repeats: Option<u32>,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In an argument of the function.
    Argument(u32),
    /// In a variable.
    Variable(u32),
    /// In a tensor from outside that the function uses.
    Captured(u32),
    /// In a block of the program.
    Block(u32),
}

/// A value, and what a call sees of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueView {
    /// The number of the value.
    pub value: u32,
    /// Shape, strides and dtype; boxed, because an op may have hundreds of operands.
    pub meta: Box<Meta>,
}

/// One execution of an op.
#[derive(Clone)]
pub struct Call {
    /// The op, with its attributes.
    pub op: OpRef,
    /// What it reads.
    pub inputs: SmallVec<[ValueView; 2]>,
    /// What it makes: outputs, then auxiliary outputs.
    pub outputs: SmallVec<[ValueView; 1]>,
    /// How many of the outputs are auxiliary: made for backward alone.
    pub n_aux: u16,
    /// The block of its scratch memory.
    pub workspace: Option<u32>,
    /// Which inputs' gradients were wanted, which decides about auxiliary outputs.
    pub wanted: SmallVec<[bool; 4]>,
    /// The number of the device that runs it.
    pub device: u8,
    /// What it is part of.
    pub phase: Phase,
    /// The op, its layer and the user's line.
    pub site: Site,
    /// Whether its sums have one order.
    pub(crate) order: Order,
    /// The floating-point operations that it recomputes, if it is a recomputation.
    pub(crate) recomputed_flops: Option<u64>,
    /// The call of the recorded program that it is,
    pub(crate) source: u32,
    /// and whether it is only the second of the two ops whose work that does.
    pub(crate) is_second: bool,
}

/// What a call is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Anything else.
    Forward,
    /// A gradient.
    Backward,
    /// The effects at the end: new values of variables.
    Update,
}

impl Program {
    /// The device that it was recorded for, where it begins and ends.
    pub fn device(&self) -> &Device {
        &self.devices[0]
    }

    /// All devices whose memory it uses; the first is [`Program::device`].
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The calls, in order.
    pub fn calls(&self) -> impl ExactSizeIterator<Item = &Call> {
        (0..self.calls.len()).map(|idx| &self.calls[idx])
    }

    /// Calls, and what happens to memory before, between and after them.
    pub fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.instructions.iter()
    }

    /// The value of that number.
    pub fn value(&self, number: u32) -> &Value {
        &self.values[number as usize]
    }

    /// How many values there are.
    pub fn n_values(&self) -> usize {
        self.values.len()
    }

    /// The block of that number.
    pub fn block(&self, number: u32) -> &BlockSpec {
        &self.blocks[number as usize]
    }

    /// How many blocks there are.
    pub fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The variable that a value is, or that holds it.
    fn variable_of(&self, number: u32) -> Option<u32> {
        let value = self.value(number);
        match (value.place, value.call) {
            (Place::Variable(number), _) => Some(number),
            // A new place of a variable: its call reads the variable in the same position.
            (Place::Block(_), Some(call)) => {
                let call = &self.calls[call as usize];
                let at = call.outputs.iter().position(|view| view.value == number)?;
                (call.phase == Phase::Update).then(|| self.variable_of(call.inputs[at].value))?
            }
            _ => None,
        }
    }

    /// Whether a block is the new place of a variable whose value something referenced when the program was recorded.
    fn is_new_place(&self, block: u32) -> bool {
        self.new_places.contains(&block)
    }

    /// The argument whose memory a block is, if it is donated.
    fn donated_argument(&self, block: u32) -> Option<u32> {
        self.donated.get(block as usize).copied()
    }

    /// Whether a value is a donated argument, which is freed after its last use.
    fn is_donated(&self, value: u32) -> bool {
        let value = self.value(value);
        value.call.is_none() && matches!(value.place, Place::Block(_))
    }

    /// A program of the same inputs without a call.
    fn without_calls(&self) -> Program {
        Program {
            devices: self.devices.clone(),
            values: LongList::default(),
            calls: LongList::default(),
            blocks: LongList::default(),
            instructions: LongList::default(),
            arguments: self.arguments.clone(),
            argument_devices: self.argument_devices.clone(),
            donated: self.donated.clone(),
            variables: self.variables.clone(),
            captured: self.captured.clone(),
            results: Vec::new(),
            written: self.written.clone(),
            new_places: Vec::new(),
            cleared: Vec::new(),
            n_draws: self.n_draws,
            n_copies: 0,
            first_draw: self.first_draw,
            commits_if_finite: self.commits_if_finite,
            agreement: self.agreement.clone(),
        }
    }

    /// Adds a value; returns its number.
    fn add_value(&mut self, value: Value) -> u32 {
        self.values.push(value);
        (self.values.len() - 1) as u32
    }

    /// Adds a block that is acquired here; returns its number.
    fn acquire(&mut self, block: BlockSpec) -> u32 {
        let number = self.blocks.len() as u32;
        self.blocks.push(block);
        self.instructions.push(Instruction::Acquire(number));
        number
    }

    /// Adds a call that runs here.
    fn push_call(&mut self, call: Call) {
        self.instructions.push(Instruction::Call(self.calls.len() as u32));
        self.calls.push(call);
    }

    /// The block that holds a value; none for one from outside.
    fn block_of(&self, value: u32) -> Option<u32> {
        match self.value(value).place {
            Place::Block(block) => Some(block),
            Place::Argument(_) | Place::Variable(_) | Place::Captured(_) => None,
        }
    }

    /// What the function returns.
    pub fn results(&self) -> &[ValueView] {
        &self.results
    }

    /// How many random draws it makes.
    pub fn n_draws(&self) -> u64 {
        self.n_draws
    }
}

impl Call {
    /// Whether it gives the same bits when it is recomputed, and has no effect, or one that may happen again. A copy from another
    /// device is not recomputed: a plan is about the memory of one.
    fn is_recomputable(&self) -> bool {
        let may_happen_again = !self.op.has_effect() || self.op.get().may_repeat();
        self.order == Order::Fixed && may_happen_again && self.op.get().output_device().is_none()
    }

    /// The metas of the inputs.
    pub(crate) fn input_metas(&self) -> SmallVec<[&Meta; 4]> {
        self.inputs.iter().map(|view| &*view.meta).collect()
    }

    /// The metas of the outputs that are not auxiliary.
    pub(crate) fn output_metas(&self) -> SmallVec<[&Meta; 2]> {
        let n = self.outputs.len() - usize::from(self.n_aux);
        self.outputs[..n].iter().map(|view| &*view.meta).collect()
    }
}

impl Phase {
    /// The word that programs print.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?} at {})", self.op, self.site)
    }
}
