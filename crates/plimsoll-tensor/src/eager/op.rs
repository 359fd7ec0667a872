//! What an op is: a small value (its attributes) behind one trait.
//!
//! Eager execution, the tape, ghosts, replays, reports and the generated tests all derive from this description.
//! Records hold ops as values, so users' own ops, fused ops and backward ops are the same kind of thing.

use std::fmt;
use std::sync::Arc;

pub use plimsoll_cpu::random::Draw;
use plimsoll_cuda::{Gpu, Profile};
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
pub use crate::device::fault::{Refusal, Refused};
pub use crate::device::rates::{Cost, Transfer};
pub(crate) use crate::eager::run::{GpuSource, Producer};
pub use crate::eager::run::{Operand, Run};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// A list of tensors, usually one.
pub type Tensors = SmallVec<[Tensor; 1]>;

/// An operation on tensors.
///
/// Shapes never depend on values: what [`Op::infer`] says must hold for every input of those shapes.
pub trait Op: fmt::Debug + Send + Sync + 'static {
    /// The name, as reports and errors show it.
    fn name(&self) -> &'static str;

    /// Checks the inputs and states the outputs.
    ///
    /// # Errors
    /// Inputs that the op does not take; the text names the op, the values that clash, and what would work.
    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs>;

    /// Computes the outputs. Called by `execute` alone, and never on ghosts or for views.
    ///
    /// # Errors
    /// Values that the op refuses, such as an index out of range.
    fn run(&self, run: &mut Run<'_>) -> Result<()>;

    /// Starts the computation of the outputs on a GPU; like [`Op::run`] otherwise. It does not wait, so values that the op
    /// refuses show later: it says beforehand that there may be some ([`Run::may_refuse`]).
    ///
    /// # Errors
    /// An op without CUDA code; what the GPU says.
    fn run_cuda(&self, _run: &mut Run<'_>, _gpu: &Gpu) -> Result<()> {
        Err(Error::device(
            self.name(),
            "it has no code for a GPU; bring its inputs to the CPU with `to_device(&Device::cpu())`",
        ))
    }

    /// Whether, and how, the op has a gradient.
    fn gradient(&self) -> Gradient {
        Gradient::Backward
    }

    /// What backward reads, given which inputs' gradients are wanted: the smallest form that needs no recomputed
    /// matmul, convolution, attention or reduction.
    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        SavedRefs::new()
    }

    /// Auxiliary outputs: further outputs that only backward reads (masks, statistics, indices); made when the op is recorded.
    fn aux_outputs(&self, _inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        SmallVec::new()
    }

    /// Turns the gradients of the outputs into those of the inputs.
    ///
    /// # Errors
    /// Those of the ops that it calls.
    fn backward(&self, _backward: &mut Backward<'_>) -> Result<()> {
        Err(Error::not_differentiable(self.name(), "it does not define `backward`"))
    }

    /// The same function written with other ops, whose gradients are ops again. A fused op has one; it is recorded
    /// as that when a second tape watches, so that derivatives of any order exist.
    fn composite(&self, _inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        None
    }

    /// Inputs whose memory the first output may be written over, if they are held by nobody else.
    fn overwrites(&self) -> &'static [usize] {
        &[]
    }

    /// Whether its kernel does what it is asked to for all values once `infer` has agreed to the shapes. An update by such an op
    /// goes over the variable's memory; every other one writes to a new block first, so that a refusal changes nothing.
    fn never_refuses(&self) -> bool {
        false
    }

    /// Whether running it does something besides making its outputs, such as printing or sending: an *ordered effect*. Calls of
    /// such an op happen once each, in the order in which they were made; they are never recomputed, merged, left out or moved.
    /// It is run also where its outputs have no elements.
    fn has_effect(&self) -> bool {
        false
    }

    /// For an op with an effect: whether it may happen again as long as it does so on all ranks at the same place of their programs,
    /// as bringing the parts of a value together may. Programs with such calls are planned for all ranks alike.
    #[doc(hidden)]
    fn may_repeat(&self) -> bool {
        false
    }

    /// Its outputs on an average rank, for an op whose outputs or inputs are of other sizes on other ranks. Its cost is the same on
    /// all of them.
    #[doc(hidden)]
    fn average_outputs(&self, _inputs: &[&Meta]) -> Option<AverageOutputs> {
        None
    }

    /// For an op that exchanges bytes with other ranks: how many, which are the same on all of them.
    #[doc(hidden)]
    fn transfer(&self, _inputs: &[&Meta]) -> Option<Transfer> {
        None
    }

    /// The device that its outputs are on, where that is not the device of its inputs: for copies between devices, which are
    /// ours alone.
    #[doc(hidden)]
    fn output_device(&self) -> Option<&Device> {
        None
    }

    /// Whether the op is cheap to recompute: elementwise, a cast, dropout, applying a norm.
    fn is_cheap(&self) -> bool {
        false
    }

    /// For an op that makes each element of its one output from the elements of its inputs in the same place (inputs are
    /// broadcast), refuses no values, and has no effect: what it does with them. Such ops can be [fused](Pointwise). Asked of ops
    /// of this crate alone.
    #[doc(hidden)]
    fn pointwise(&self) -> Option<Pointwise> {
        None
    }

    /// Whether, and how, it takes elements of its first input that are made where it reads them first. Asked of ops of this crate
    /// alone.
    #[doc(hidden)]
    fn takes_made(&self, _inputs: &[&Meta]) -> Option<TakesMade> {
        None
    }

    /// For an op whose first output may be added to another tensor, and relu taken of the sum, in the same pass over memory: the op
    /// that does all three with the same bits. It takes that tensor after its other inputs. Asked of ops of this crate alone.
    #[doc(hidden)]
    fn with_add_relu(&self) -> Option<OpRef> {
        None
    }

    /// For an op that is not cheap: the cheap op that rebuilds an output, such as applying a norm whose statistics are
    /// saved. Asked of ops whose auxiliary outputs were made.
    fn rebuild(&self) -> Option<Rebuild> {
        None
    }

    /// Bytes of scratch memory that [`Op::run`] needs: a formula over shapes, never over threads or free memory.
    fn workspace(&self, _inputs: &[&Meta]) -> usize {
        0
    }

    /// Bytes of scratch memory that [`Op::run_cuda`] needs: a formula over shapes and the GPU's profile.
    fn workspace_cuda(&self, _inputs: &[&Meta], _profile: &Profile) -> usize {
        0
    }

    /// For an op that does the work of two in one pass: the second, which makes the last output and all auxiliary outputs
    /// from earlier outputs and inputs, with the same bits. What it makes can be recomputed without what the first reads.
    fn second(&self, _inputs: &[&Meta]) -> Option<Second> {
        None
    }

    /// The bytes of the heap behind the lists among its attributes.
    #[doc(hidden)]
    fn list_bytes(&self) -> usize {
        0
    }

    /// For an op that makes random numbers: the same op with the draw that `next` makes of its own.
    fn with_draw(&self, _next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        None
    }

    /// The part of the rate of large products that it computes with on a GPU, for predictions.
    fn computing_share_cuda(&self) -> f64 {
        1.0
    }

    /// Like [`Op::run_cuda`], for a device that is not [deterministic](Device::is_deterministic): sums may be made in any
    /// order, so that their last bits differ from run to run. Called in backward alone, for what is never recomputed.
    /// An op overrides it, together with [`Op::workspace_cuda_unordered`], where that is clearly faster.
    ///
    /// # Errors
    /// As for [`Op::run_cuda`].
    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        self.run_cuda(run, gpu)
    }

    /// Bytes of scratch memory that [`Op::run_cuda_unordered`] needs.
    fn workspace_cuda_unordered(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        self.workspace_cuda(inputs, profile)
    }

    /// What running it takes, by formula.
    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let flops = outputs.iter().fold(0u64, |sum, meta| sum.saturating_add(meta.n_elems() as u64));
        Cost { flops, bytes: bytes_moved(inputs, outputs) }
    }
}

/// How an op takes elements of its first input that are made where it reads them first. They are numbered as if they lay
/// row-major in memory.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakesMade {
    /// It is a reduction of one input that reads each element once for all results (once for each, auxiliary ones included, on the
    /// CPU), so they are in no memory.
    Once,
    /// Each is made once, and lies in the input's memory from then on, where the op reads it again.
    Written {
        /// Whether that memory may be the first output's.
        over_output: bool,
    },
}

/// The outputs of an op that several ranks run together, as an average rank has them.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct AverageOutputs {
    /// The bytes of each output.
    pub n_bytes: Vec<usize>,
    /// Whether they are parts, of which other ranks have others.
    pub are_parts: bool,
}

/// What a pointwise op does with one element of each input. On the CPU its [`Op::run`] says that: it computes the same bits over
/// any piece of its operands as over all of them. For a GPU it is said here, as statements of CUDA C, so that one kernel can do
/// the work of several ops.
#[derive(Clone, Debug)]
pub struct Pointwise {
    /// The statements, in three pieces that follow each other, so that naming them takes no memory. They set `y0` from `x0`,
    /// `x1`, ..., which are of the compute types of the inputs; `C` is that of the first input.
    pub body: [&'static str; 3],
    /// Attributes; in the body they are `NUMBER(0)`, ... as numbers of type `C`.
    pub numbers: SmallVec<[f64; 2]>,
    /// Further attributes; in the body they are `WORD(0)`, .... The first two are seed and number of the draw if the body reads
    /// `random`, the element's random word.
    pub words: SmallVec<[u64; 3]>,
    /// Whether the body reads `random`.
    pub draws: bool,
}

impl Pointwise {
    /// Statements without attributes.
    pub fn new(body: [&'static str; 3]) -> Pointwise {
        Pointwise { body, numbers: SmallVec::new(), words: SmallVec::new(), draws: false }
    }

    /// With numbers.
    #[must_use]
    pub fn numbers(self, numbers: &[f64]) -> Pointwise {
        Pointwise { numbers: numbers.into(), ..self }
    }

    /// With a draw, whose seed and number are the first two words.
    #[must_use]
    pub fn draw(self, draw: Draw, others: &[u64]) -> Pointwise {
        let words = [draw.seed, draw.number].into_iter().chain(others.iter().copied()).collect();
        Pointwise { words, draws: true, ..self }
    }
}

/// Shape, strides and dtype of an input or output, without its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meta {
    /// Which elements of the storage the tensor means.
    pub layout: Layout,
    /// The type of the elements.
    pub dtype: DType,
}

impl Meta {
    /// A fresh, row-major tensor.
    pub fn fresh(shape: Shape, dtype: DType) -> Meta {
        Meta { layout: Layout::contiguous(shape), dtype }
    }

    /// The same tensor under another layout.
    pub fn with_layout(&self, layout: Layout) -> Meta {
        Meta { layout, dtype: self.dtype }
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The number of elements.
    pub fn n_elems(&self) -> usize {
        self.layout.n_elems()
    }

    /// The bytes of the elements.
    pub fn n_bytes(&self) -> usize {
        self.n_elems() * self.dtype.size()
    }
}

/// What an op gives back.
pub type Outputs = SmallVec<[Output; 1]>;

/// One output of an op.
#[derive(Clone, Debug)]
pub enum Output {
    /// A new, row-major tensor, computed by `run`.
    New {
        /// Its shape.
        shape: Shape,
        /// The type of its elements.
        dtype: DType,
    },
    /// A view of an input: no memory, no kernel.
    View {
        /// The input that is looked at.
        input: usize,
        /// The elements that are seen; boxed, so that new outputs are small to pass on.
        layout: Box<Layout>,
    },
}

impl Output {
    /// Shape and dtype of a new output; nothing for a view.
    pub(crate) fn fresh_meta(&self) -> Option<Meta> {
        match self {
            Output::New { shape, dtype } => Some(Meta::fresh(*shape, *dtype)),
            Output::View { .. } => None,
        }
    }
}

/// The single new output of most ops.
pub fn one(shape: Shape, dtype: DType) -> Result<Outputs> {
    Ok(smallvec::smallvec![Output::New { shape, dtype }])
}

/// The single view that shape ops give.
pub fn view(layout: Layout) -> Result<Outputs> {
    Ok(smallvec::smallvec![Output::View { input: 0, layout: Box::new(layout) }])
}

/// Whether, and how, an op has a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradient {
    /// `backward` gives it.
    Backward,
    /// The op is itself a backward op: whatever watches it records its composite.
    Composite,
    /// The outputs jump and are flat between the jumps, and are not floats (a comparison, a position): the
    /// derivative is zero wherever it exists, nothing is recorded, and nothing is lost.
    Zero,
    /// There is none; the reason is part of the error when an input is watched.
    None(&'static str),
}

/// What backward reads of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRef {
    /// An input.
    Input(usize),
    /// An output.
    Output(usize),
    /// An auxiliary output.
    Aux(usize),
}

/// A list of what backward reads.
pub type SavedRefs = SmallVec<[SavedRef; 4]>;

/// An auxiliary output: what it is, and its shape.
#[derive(Clone, Copy, Debug)]
pub struct AuxOutput {
    /// What kind of value it is.
    pub form: Form,
    /// Its shape and dtype.
    pub meta: Meta,
}

/// The form in which a value is saved for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// An input as it is.
    Input,
    /// An output as it is.
    Output,
    /// One bit per element.
    Mask,
    /// A number per row or channel, such as a mean.
    Statistics,
    /// Positions.
    Indices,
    /// What the gates of a recurrent cell gave.
    Gates,
    /// Gradients that were computed ahead, while what they need was there.
    Gradients,
    /// Nothing: a chain of cheap ops rebuilds it from values that are saved anyway.
    Derived,
}

impl Form {
    /// The word that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Form::Input => "input",
            Form::Output => "output",
            Form::Mask => "mask",
            Form::Statistics => "statistics",
            Form::Indices => "indices",
            Form::Gates => "gates",
            Form::Gradients => "gradients",
            Form::Derived => "derived",
        }
    }
}

/// The second of two ops whose work one does.
#[derive(Clone, Debug)]
pub struct Second {
    /// The op.
    pub op: OpRef,
    /// What it reads of the record, in the order of its inputs: inputs, or outputs of the first.
    pub reads: SmallVec<[SavedRef; 6]>,
}

/// How an output is rebuilt from values that are likely to be saved.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// The cheap op.
    pub op: OpRef,
    /// The output that it makes.
    pub output: usize,
    /// What it reads of the record, in the order of its inputs.
    pub reads: SmallVec<[SavedRef; 6]>,
}

impl Rebuild {
    /// The first output, from all inputs followed by all auxiliary outputs.
    pub fn first(op: OpRef, n_inputs: usize, n_aux: usize) -> Option<Rebuild> {
        let reads = (0..n_inputs).map(SavedRef::Input).chain((0..n_aux).map(SavedRef::Aux)).collect();
        Some(Rebuild { op, output: 0, reads })
    }
}

/// The bytes that an op reads and writes, or the largest number.
pub(crate) fn bytes_moved(inputs: &[&Meta], outputs: &[&Meta]) -> u64 {
    inputs.iter().chain(outputs).fold(0, |sum: u64, meta| sum.saturating_add(meta.n_bytes() as u64))
}

/// The product of extents as a number of steps, or the largest number: a cost so high needs no more digits.
pub(crate) fn saturating_product<const N: usize>(factors: [usize; N]) -> u64 {
    // A factor of zero wins over all others, wherever it stands.
    if factors.contains(&0) {
        0
    } else {
        factors.into_iter().fold(1, |n, factor| n.saturating_mul(factor as u64))
    }
}

/// A reference to an op: a constant for ops without attributes, shared otherwise.
///
/// What is behind it stays inside: a kernel trusts the memory that it is given, so nobody but `execute` may call one, and an
/// op of this crate is never handed out for others to call with memory of their own.
///
/// ```compile_fail
/// use plimsoll_tensor::{Op, OpRef, optimizer::BeginStep};
///
/// let begin: OpRef = BeginStep::default().op();
/// let kernel: &dyn Op = begin.get();
/// ```
///
/// Descriptions of ops that are public are not ops themselves:
///
/// ```compile_fail
/// use plimsoll_tensor::{OpRef, optimizer::BeginStep};
///
/// OpRef::new(BeginStep::default());
/// ```
#[derive(Clone)]
pub struct OpRef {
    held: Held,
    /// Whether the op is not one of this crate's, so that nothing is known of what its kernel writes.
    is_own: bool,
}

#[derive(Clone)]
enum Held {
    Static(&'static dyn Op),
    Shared(Arc<dyn Op>),
}

impl OpRef {
    /// A reference to an op of one's own.
    pub fn new<O: Op>(op: O) -> OpRef {
        OpRef { is_own: true, ..OpRef::shipped(op) }
    }

    /// A reference to an op of this crate with attributes.
    pub(crate) fn shipped<O: Op>(op: O) -> OpRef {
        let held = match size_of::<O>() {
            // An op without attributes takes no memory, so neither does its box, and nothing is lost by leaking it.
            0 => Held::Static(Box::leak(Box::new(op))),
            _ => Held::Shared(Arc::new(op)),
        };
        OpRef { held, is_own: false }
    }

    /// A reference to an op of this crate that needs no memory of its own.
    #[inline]
    pub(crate) const fn fixed(op: &'static dyn Op) -> OpRef {
        OpRef { held: Held::Static(op), is_own: false }
    }

    /// Whether the op is not one of this crate's.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// The op.
    #[inline]
    pub(crate) fn get(&self) -> &dyn Op {
        match &self.held {
            Held::Static(op) => *op,
            Held::Shared(op) => &**op,
        }
    }

    /// The bytes of the heap that it takes for its attributes; none if it has none.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.held {
            Held::Static(_) => 0,
            Held::Shared(op) => size_of_val(&**op) + op.list_bytes(),
        }
    }

    /// The same op with the draw that `next` makes of its own. An op of somebody's own draws nothing: what it says of itself
    /// here would decide which kernel runs on operands that were checked for another.
    pub(crate) fn redrawn(&self, next: &dyn Fn(Draw) -> Draw) -> OpRef {
        let redrawn = if self.is_own { None } else { self.get().with_draw(next) };
        redrawn.unwrap_or_else(|| self.clone())
    }

    /// The second of two ops whose work this one does; none for an op of somebody's own, for the same reason.
    pub(crate) fn second(&self, inputs: &[&Meta]) -> Option<Second> {
        if self.is_own { None } else { self.get().second(inputs) }
    }

    /// The name, as reports and errors show it.
    #[inline]
    pub fn name(&self) -> &'static str {
        self.get().name()
    }

    /// Whether, and how, the op has a gradient.
    pub fn gradient(&self) -> Gradient {
        self.get().gradient()
    }

    /// How long the op takes on a device, in nanoseconds, by its cost and the device's rates.
    pub(crate) fn nanoseconds(&self, device: &Device, inputs: &[&Meta], outputs: &[&Meta]) -> u64 {
        let dtype = inputs.first().or(outputs.first()).map(|meta| meta.dtype);
        let own = device.time_of(self.get().cost(inputs, outputs), dtype, self.get().computing_share_cuda());
        own + self.get().transfer(inputs).map_or(0, |transfer| device.time_of_transfer(transfer))
    }

    /// What it does with one element of each input; none for an op of somebody's own, of which nothing is known.
    pub(crate) fn pointwise(&self) -> Option<Pointwise> {
        if self.is_own { None } else { self.get().pointwise() }
    }

    /// How it takes elements of its first input that are made where it reads them; not at all for an op of somebody's own.
    pub(crate) fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        if self.is_own { None } else { self.get().takes_made(inputs) }
    }

    /// The op that also adds something to what it makes and takes relu of the sum; none for an op of somebody's own.
    pub(crate) fn with_add_relu(&self) -> Option<OpRef> {
        if self.is_own { None } else { self.get().with_add_relu() }
    }

    /// Whether the op is cheap to recompute.
    pub fn is_cheap(&self) -> bool {
        self.get().is_cheap() && !self.has_effect()
    }

    /// Whether running it does something besides making its outputs.
    #[inline]
    pub fn has_effect(&self) -> bool {
        self.get().has_effect()
    }
}

impl fmt::Debug for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
