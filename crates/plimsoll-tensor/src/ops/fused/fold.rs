//! `fused_fold`: an op with the pointwise ops that make its first input, which is made where it is read first.
//!
//! A reduction walks its input as if that lay row-major in memory, so its tree and its bits are those of the op alone. Softmax, norms,
//! cross entropy and their gradients read their input again, so it is written while it is made: to an output where others read it, else
//! to the memory of the op's first output, which takes its place. What else is read of the ops' results is written beside, because every
//! element is made once.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use plimsoll_cpu::reduce::{Source, Stretches};
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Profile};
use smallvec::SmallVec;

use super::cpu::{self, Axes, Piece, Place, ROOM_BYTES};
use super::{Fused, FusedStep, MAX_OUTPUTS, cuda};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::device::Device;
use crate::eager::op::{
    Cost, Draw, Gradient, Meta, Op, OpRef, Operand, Output, Outputs, Producer, Run, bytes_moved,
};
use crate::ops::cuda::produce::{Body, Produce};

/// The most inputs of the ops that make elements: several of each are read at a time.
const MAX_INPUTS: usize = 5;

/// An op, and what makes its first input.
#[derive(Clone, Debug)]
pub(crate) struct FusedFold {
    /// The ops that make it. The last of its outputs is what is made, those before are written beside.
    made: Fused,
    /// Where their results lie on the CPU.
    places: Box<[Place]>,
    fold: OpRef,
    /// What the op reads: of another shape, perhaps, in the same order.
    input: Meta,
    /// What it makes for backward.
    aux_outputs: SmallVec<[Meta; 1]>,
    /// How many inputs the ops before it read; the others are its own.
    n_read: usize,
    /// The steps that are outputs, too, after the op's own and its auxiliary ones.
    written: SmallVec<[u16; MAX_OUTPUTS]>,
    memory: Memory,
}

/// Where what is made lies when it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nowhere: it is read once.
    None,
    /// In the op's first output, which is written over it.
    FirstOutput,
    /// In the output of that number among those that are steps.
    Written(u16),
}

/// The op that takes what is made.
pub(crate) struct Taker {
    pub op: OpRef,
    /// What it reads first.
    pub input: Meta,
    /// What it makes for backward.
    pub aux_outputs: SmallVec<[Meta; 1]>,
    pub memory: Memory,
}

impl FusedFold {
    /// An op whose first input step `reduced` makes; `written` steps are outputs, too. Nothing if it would be too large.
    pub fn new(
        taker: Taker,
        shape: Shape,
        input_dtypes: &[DType],
        steps: Vec<FusedStep>,
        (written, reduced): (&[u16], u16),
    ) -> Option<FusedFold> {
        let Taker { op: fold, input, aux_outputs, memory } = taker;
        // With auxiliary outputs a reduction of the CPU reads twice, so nothing may be written over what it reads.
        let reads_twice = memory == Memory::None && !aux_outputs.is_empty();
        if input_dtypes.len() > MAX_INPUTS || (reads_twice && !written.is_empty()) {
            return None;
        }
        let is_beside = |&(number, _): &(usize, &u16)| memory != Memory::Written(number as u16);
        let beside: SmallVec<[u16; MAX_OUTPUTS]> =
            written.iter().enumerate().filter(is_beside).map(|(_, &step)| step).collect();
        let outputs = beside.iter().copied().chain([reduced]).collect();
        let made = Fused::new(shape, input_dtypes, steps, outputs)?;
        let places = cpu::places(&made.steps, &[reduced], &beside);
        let (n_read, written) = (input_dtypes.len(), SmallVec::from_slice(written));
        Some(FusedFold { made, places, fold, input, aux_outputs, n_read, written, memory })
    }

    /// How many outputs are the op's own.
    fn n_own(&self, run: &Run<'_>) -> usize {
        run.outputs.len() - self.written.len()
    }

    /// Where what is made lies when it is read again.
    fn memory<'b>(&self, run: &Run<'b>) -> Option<&'b Operand<'b>> {
        match self.memory {
            Memory::None => None,
            Memory::FirstOutput => run.outputs.first(),
            Memory::Written(number) => run.outputs.get(self.n_own(run) + usize::from(number)),
        }
    }

    /// What the op reads: elements that are made, and its other inputs.
    fn inputs_of_fold<'b>(&'b self, run: &Run<'b>, producer: Producer<'b>) -> SmallVec<[Operand<'b>; 6]> {
        let first = Operand::produced(producer, &self.input, self.memory(run));
        std::iter::once(first).chain(run.inputs[self.n_read..].iter().copied()).collect()
    }

    /// The metas of what the op reads.
    fn metas_of_fold<'b>(&'b self, inputs: &[&'b Meta]) -> SmallVec<[&'b Meta; 6]> {
        std::iter::once(&self.input).chain(inputs[self.n_read..].iter().copied()).collect()
    }

    /// The op's run, over elements that are made.
    fn run_of_fold<'b>(&self, run: &Run<'b>, inputs: &'b [Operand<'b>]) -> Run<'b> {
        let n_own = self.n_own(run);
        let (outputs, aux_outputs) = run.outputs[..n_own].split_at(n_own - self.aux_outputs.len());
        Run {
            inputs,
            outputs,
            aux_outputs,
            workspace: run.workspace,
            workspace_len: run.workspace_len,
            device: run.device,
            first: 0,
        }
    }

    /// What is written beside.
    fn beside<'b>(&self, run: &Run<'b>) -> SmallVec<[&'b Operand<'b>; 4]> {
        let written = run.outputs[self.n_own(run)..].iter().enumerate();
        let is_beside = |&(number, _): &(usize, &Operand<'_>)| self.memory != Memory::Written(number as u16);
        written.filter(is_beside).map(|(_, output)| output).collect()
    }
}

impl Op for FusedFold {
    fn name(&self) -> &'static str {
        "fused_fold"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let new = |meta: &Meta| Output::New { shape: *meta.shape(), dtype: meta.dtype };
        let mut outputs = self.fold.get().infer(&self.metas_of_fold(inputs))?;
        outputs.extend(self.aux_outputs.iter().map(new));
        outputs.extend(self.written.iter().map(|&step| {
            let dtype = self.made.steps[usize::from(step)].dtype;
            Output::New { shape: self.made.shape, dtype }
        }));
        Ok(outputs)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (most, part_bytes) = cpu::piece_len(&self.made.steps, &self.places);
        let read = &run.inputs[..self.n_read];
        let maker = Maker {
            op: self,
            device: run.device,
            axes: Axes::of(&self.made.shape, read),
            inputs: read.iter().map(|input| (SharedPtr::new(input.ptr()), input.dtype())).collect(),
            written: self.beside(run).iter().map(|output| SharedPtr::new(output.ptr())).collect(),
            most,
            part_bytes,
            failed: OnceLock::new(),
        };
        let inputs = self.inputs_of_fold(run, Producer::Cpu(&maker));
        self.fold.get().run(&mut self.run_of_fold(run, &inputs))?;
        drop(inputs);
        maker.failed.into_inner().map_or(Ok(()), Err)
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let attributes = cuda::Attributes::of(&self.made);
        let inputs: SmallVec<[&Operand<'_>; 4]> = run.inputs[..self.n_read].iter().collect();
        let beside = self.beside(run);
        let body = Body {
            text: &|| cuda::body(&self.made, &attributes, &inputs),
            generated: &self.made.generated,
            dtype: self.input.dtype,
            draws: self.made.draws,
            numbers: &attributes.numbers,
            words: &attributes.words,
        };
        let produce = Produce::new(&self.made.shape, &inputs, &beside, body);
        let inputs = self.inputs_of_fold(run, Producer::Gpu(&produce));
        self.fold.get().run_cuda(&mut self.run_of_fold(run, &inputs), gpu)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        self.fold.get().workspace(&self.metas_of_fold(inputs))
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        self.fold.get().workspace_cuda(&self.metas_of_fold(inputs), profile)
    }

    fn gradient(&self) -> Gradient {
        self.made.gradient()
    }

    fn list_bytes(&self) -> usize {
        self.made.list_bytes() + size_of_val(&*self.places) + self.fold.heap_bytes()
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        self.made.draws.then(|| {
            let mut redrawn = self.clone();
            redrawn.made.steps.iter_mut().for_each(|step| step.op = step.op.redrawn(next));
            OpRef::shipped(redrawn)
        })
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let flops = (self.input.n_elems() as u64).saturating_mul(self.made.steps.len() as u64 + 1);
        let again = if self.memory == Memory::None { 0 } else { self.input.n_bytes() as u64 };
        Cost { flops, bytes: bytes_moved(inputs, outputs).saturating_add(again) }
    }
}

/// What makes the elements on the CPU: one op after the other over pieces that stay in the cache.
struct Maker<'a> {
    op: &'a FusedFold,
    device: &'a Device,
    axes: Axes,
    inputs: SmallVec<[(SharedPtr<u8>, DType); 4]>,
    written: SmallVec<[SharedPtr<u8>; 4]>,
    most: usize,
    part_bytes: usize,
    failed: OnceLock<Error>,
}

/// Some rows of neighbouring elements.
#[derive(Clone, Copy)]
struct Patch {
    n_rows: usize,
    n_cols: usize,
    /// The number of the first element, and from one row's to the next one's.
    first: usize,
    step: usize,
    /// The axes that the rows and their elements follow; elements are neighbours along the last one.
    rows: usize,
    /// How many indices of that axis a row is from the one before.
    row_step: usize,
}

impl Source for Maker<'_> {
    unsafe fn make(&self, stretches: Stretches, to: *mut u8) {
        let mut room = [MaybeUninit::<u64>::uninit(); ROOM_BYTES / size_of::<u64>()];
        let room = room.as_mut_ptr().cast();
        let Stretches { first, n, step, len } = stretches;
        if let Some(patch) = self.patch(stretches) {
            return self.compute(patch, to, room);
        }
        let bytes = self.op.input.dtype.size();
        for row in 0..n {
            self.run(first + row * step, len, to.wrapping_add(row * len * bytes), room);
        }
    }
}

impl Maker<'_> {
    /// Stretches that all operands walk in even steps.
    fn patch(&self, Stretches { first, n, step, len }: Stretches) -> Option<Patch> {
        let plain = Patch { n_rows: n, n_cols: len, first, step, rows: 0, row_step: step };
        match self.axes.extents[..] {
            _ if n == 1 || self.op.made.draws => None,
            [_] => Some(plain),
            [_, row] if step.is_multiple_of(row) && first % row + len <= row => {
                Some(Patch { row_step: step / row, ..plain })
            }
            _ => None,
        }
    }

    /// Makes neighbouring elements, as far as an axis goes at a time.
    fn run(&self, mut first: usize, mut len: usize, mut to: *mut u8, room: *mut u8) {
        let (&inner, outer) = self.axes.extents.split_last().unwrap_or((&1, &[]));
        let axis = outer.len();
        while len > 0 {
            let (place, line) = (first % inner, first / inner);
            let (n_rows, n_cols, rows) = match outer.last() {
                Some(&extent) if place == 0 && len >= inner => {
                    ((len / inner).min(extent - line % extent), inner, axis - 1)
                }
                _ => (1, len.min(inner - place), axis),
            };
            self.compute(Patch { n_rows, n_cols, first, step: n_cols, rows, row_step: 1 }, to, room);
            let n = n_rows * n_cols;
            (first, len) = (first + n, len - n);
            to = to.wrapping_add(n * self.op.input.dtype.size());
        }
    }

    /// Makes a patch, in pieces that the room has space for.
    fn compute(&self, patch: Patch, to: *mut u8, room: *mut u8) {
        let cols = patch.n_cols.min(self.most);
        let rows = (self.most / cols.max(1)).clamp(1, patch.n_rows);
        let bytes = self.op.input.dtype.size();
        for row in (0..patch.n_rows).step_by(rows) {
            for col in (0..patch.n_cols).step_by(cols) {
                let piece = Patch {
                    n_rows: rows.min(patch.n_rows - row),
                    n_cols: cols.min(patch.n_cols - col),
                    first: patch.first + row * patch.step + col,
                    ..patch
                };
                // Where a row is cut, pieces have one row.
                self.piece(piece, to.wrapping_add((row * patch.n_cols + col) * bytes), room);
            }
        }
    }

    fn piece(&self, patch: Patch, to: *mut u8, room: *mut u8) {
        let Axes { extents, strides } = &self.axes;
        let inner = extents.len() - 1;
        let shape = Shape::within_bounds([patch.n_rows, patch.n_cols]);
        let seen = |(strides, (_, dtype)): (&[isize; _], &(SharedPtr<u8>, DType))| {
            let along = [strides[patch.rows] * patch.row_step as isize, strides[inner]];
            Meta { layout: Layout::from_parts(shape, &along, 0), dtype: *dtype }
        };
        let metas: SmallVec<[Meta; 4]> = strides.iter().zip(&self.inputs).map(seen).collect();
        let base = |input: usize| {
            let (mut rest, mut offset) = (patch.first, 0);
            for (axis, &extent) in extents.iter().enumerate().rev() {
                offset += (rest % extent) as isize * strides[input][axis];
                rest /= extent;
            }
            let (address, dtype) = self.inputs[input];
            address.get().wrapping_offset(offset * dtype.size() as isize)
        };
        let address = |step: usize| match self.op.places[step] {
            Place::Output(_) => to,
            Place::Room(part) => room.wrapping_add(usize::from(part) * self.part_bytes),
        };
        let piece = Piece { shape, inputs: &metas, first: patch.first, device: self.device };
        if let Err(error) = piece.run(&self.op.made.steps, base, address) {
            _ = self.failed.set(error);
            return;
        }
        for (written, &step) in self.written.iter().zip(&self.op.made.outputs) {
            let step = usize::from(step);
            let size = self.op.made.steps[step].dtype.size();
            for row in 0..patch.n_rows {
                let from = address(step).wrapping_add(row * patch.n_cols * size);
                let to = written.get().wrapping_add((patch.first + row * patch.step) * size);
                // SAFETY: the elements have just been made; they are this piece's alone, which is made once.
                unsafe { to.copy_from_nonoverlapping(from, patch.n_cols * size) };
            }
        }
    }
}
