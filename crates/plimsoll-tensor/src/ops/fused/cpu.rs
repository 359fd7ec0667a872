//! Pieces of all operands, one op after the other.
//!
//! A piece is a run of neighbouring elements of the outputs, few enough that what lies between the ops stays in the cache. Its
//! shape follows from the operands' alone, and each op computes an element by itself, so the bits are those of the ops alone.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use plimsoll_cpu::threads::{self, SharedPtr};
use smallvec::SmallVec;

use super::{Fused, FusedInput, FusedStep};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::{MAX_RANK, Shape};
use crate::device::Device;
use crate::eager::op::{Meta, Operand, Run};

/// The memory for what lies between the ops: part of a thread's stack, and of a core's second cache.
pub(super) const ROOM_BYTES: usize = 64 << 10;
/// The most elements of a piece.
pub(super) const PIECE_LEN: usize = 4096;
/// The elements of one task; fewer are not worth waking a thread for.
const TASK_LEN: usize = 32 * 1024;

/// Where the result of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the output of that number.
    Output(u16),
    /// In a part of the room, which later results may use again.
    Room(u16),
}

/// Gives each step's result its place: a part of the room is free again after its last reader, but for results that are kept.
pub(super) fn places(steps: &[FusedStep], outputs: &[u16], kept: &[u16]) -> Box<[Place]> {
    let last_reader = |step: u16| {
        let reads = |reader: &FusedStep| reader.inputs.contains(&FusedInput::Step(step));
        steps.iter().rposition(reads).unwrap_or(usize::from(step))
    };
    // The step until which each part is taken.
    let mut taken: Vec<usize> = Vec::new();
    let place = |step: u16| {
        if let Some(output) = outputs.iter().position(|&output| output == step) {
            return Place::Output(output as u16);
        }
        let end = if kept.contains(&step) { steps.len() } else { last_reader(step) };
        // A step does not write where it reads.
        let free = taken.iter().position(|&until| until < usize::from(step));
        let part = free.unwrap_or_else(|| {
            taken.push(0);
            taken.len() - 1
        });
        taken[part] = end;
        Place::Room(part as u16)
    };
    (0..steps.len() as u16).map(place).collect()
}

/// The axes of all operands, those joined that every operand walks as one.
pub(super) struct Axes {
    pub extents: SmallVec<[usize; MAX_RANK]>,
    /// The strides of each input along them.
    pub strides: SmallVec<[[isize; MAX_RANK]; 4]>,
}

impl Axes {
    pub fn of(shape: &Shape, inputs: &[Operand<'_>]) -> Axes {
        let mut axes = Axes { extents: SmallVec::new(), strides: SmallVec::new() };
        let stretched: SmallVec<[Layout; 4]> = inputs
            .iter()
            .map(|input| {
                let layout = input.meta.layout.broadcast_to(shape);
                layout.unwrap_or_else(|| unreachable!("inputs of a fused op broadcast to its shape"))
            })
            .collect();
        axes.strides.resize(inputs.len(), [0; MAX_RANK]);
        for (axis, &extent) in shape.dims().iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let last = axes.extents.len().wrapping_sub(1);
            let mut pairs = stretched.iter().zip(&axes.strides);
            let is_joined = !axes.extents.is_empty()
                && pairs.all(|(layout, strides)| strides[last] == layout.strides()[axis] * extent as isize);
            match is_joined {
                true => axes.extents[last] *= extent,
                false => axes.extents.push(extent),
            }
            let at = axes.extents.len() - 1;
            for (layout, strides) in stretched.iter().zip(&mut axes.strides) {
                strides[at] = layout.strides()[axis];
            }
        }
        if axes.extents.is_empty() {
            axes.extents.push(1);
        }
        axes
    }
}

/// How operands are cut.
struct Cut {
    extents: SmallVec<[usize; MAX_RANK]>,
    strides: SmallVec<[[isize; MAX_RANK]; 4]>,
    /// The axis that is cut; those before it are walked one index at a time.
    axis: usize,
    /// How many indices of it a piece has, but for the last one of each walk.
    len: usize,
    /// The elements of one of these indices.
    inner: usize,
}

impl Cut {
    fn new(shape: &Shape, inputs: &[Operand<'_>], most: usize) -> Cut {
        let Axes { extents, strides } = Axes::of(shape, inputs);
        let mut cut = Cut { axis: extents.len() - 1, extents, strides, len: 0, inner: 1 };
        // From the innermost axis outwards, as long as whole axes fit into a piece.
        while cut.axis > 0 && cut.inner * cut.extents[cut.axis] <= most {
            cut.inner *= cut.extents[cut.axis];
            cut.axis -= 1;
        }
        cut.len = (most / cut.inner).clamp(1, cut.extents[cut.axis]);
        cut
    }

    /// How many pieces one walk along the axis that is cut has.
    fn n_along(&self) -> usize {
        self.extents[self.axis].div_ceil(self.len)
    }

    fn n_pieces(&self) -> usize {
        self.extents[..self.axis].iter().product::<usize>() * self.n_along()
    }

    /// What is seen of each operand in a piece of so many indices.
    fn views(&self, n: usize, inputs: &[Operand<'_>]) -> Views {
        let extents = std::iter::once(n).chain(self.extents[self.axis + 1..].iter().copied());
        let shape = Shape::within_bounds(extents);
        let rank = shape.rank();
        let view = |(input, strides): (&Operand<'_>, &[isize; MAX_RANK])| Meta {
            layout: Layout::from_parts(shape, &strides[self.axis..][..rank], 0),
            dtype: input.dtype(),
        };
        Views { inputs: inputs.iter().zip(&self.strides).map(view).collect(), shape }
    }

    /// The first index along the axis that is cut of a piece, its number of elements before it, and how far from its start
    /// each input is.
    fn start(&self, piece: usize, offsets: &mut SmallVec<[isize; 4]>) -> (usize, usize) {
        let (mut walk, along) = (piece / self.n_along(), piece % self.n_along() * self.len);
        let first = (walk * self.extents[self.axis] + along) * self.inner;
        offsets.clear();
        offsets.extend(self.strides.iter().map(|strides| along as isize * strides[self.axis]));
        for axis in (0..self.axis).rev() {
            let index = (walk % self.extents[axis]) as isize;
            walk /= self.extents[axis];
            offsets
                .iter_mut()
                .zip(&self.strides)
                .for_each(|(offset, strides)| *offset += index * strides[axis]);
        }
        (along, first)
    }
}

/// What is seen of the operands in a piece.
struct Views {
    inputs: SmallVec<[Meta; 4]>,
    shape: Shape,
}

/// The most elements of a piece, and the bytes of each part of the room.
pub(super) fn piece_len(steps: &[FusedStep], places: &[Place]) -> (usize, usize) {
    let widest = steps.iter().map(|step| step.dtype.size()).max().unwrap_or(1);
    let part = |place: &Place| if let Place::Room(part) = place { usize::from(*part) + 1 } else { 0 };
    let n_parts = places.iter().map(part).max().unwrap_or(0);
    let most = PIECE_LEN.min(ROOM_BYTES / (n_parts.max(1) * widest));
    (most, most * widest)
}

pub(super) fn run(fused: &Fused, run: &Run<'_>) -> Result<()> {
    let (most, part_bytes) = piece_len(&fused.steps, &fused.places);
    let cut = Cut::new(&fused.shape, run.inputs, most);
    let rest = cut.extents[cut.axis] % cut.len;
    let pieces = Pieces {
        fused,
        device: run.device,
        whole: cut.views(cut.len, run.inputs),
        rest: cut.views(if rest == 0 { cut.len } else { rest }, run.inputs),
        inputs: run.inputs.iter().map(|input| SharedPtr::new(input.ptr())).collect(),
        outputs: run.outputs.iter().map(|output| SharedPtr::new(output.ptr())).collect(),
        part_bytes,
        cut,
    };
    let n_pieces = pieces.cut.n_pieces();
    let per_task = (TASK_LEN / (pieces.cut.len * pieces.cut.inner)).max(1);
    let failed = OnceLock::new();
    threads::parallel(n_pieces.div_ceil(per_task), |task| {
        let mut room = [MaybeUninit::<u64>::uninit(); ROOM_BYTES / size_of::<u64>()];
        for piece in task * per_task..n_pieces.min((task + 1) * per_task) {
            if let Err(error) = pieces.run(piece, room.as_mut_ptr().cast()) {
                _ = failed.set(error);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err::<(), Error>)
}

struct Pieces<'a> {
    fused: &'a Fused,
    device: &'a Device,
    cut: Cut,
    whole: Views,
    rest: Views,
    inputs: SmallVec<[SharedPtr<u8>; 4]>,
    outputs: SmallVec<[SharedPtr<u8>; 4]>,
    part_bytes: usize,
}

impl Pieces<'_> {
    /// Runs all ops on one piece. The room is large enough for all parts.
    fn run(&self, piece: usize, room: *mut u8) -> Result<()> {
        let mut offsets = SmallVec::new();
        let (along, first) = self.cut.start(piece, &mut offsets);
        let is_whole = along + self.cut.len <= self.cut.extents[self.cut.axis];
        let views = if is_whole { &self.whole } else { &self.rest };
        let address = |step: usize| match self.fused.places[step] {
            Place::Output(output) => {
                let size = self.fused.steps[step].dtype.size();
                self.outputs[usize::from(output)].get().wrapping_add(first * size)
            }
            Place::Room(part) => room.wrapping_add(usize::from(part) * self.part_bytes),
        };
        let base = |input: usize| {
            let offset = offsets[input] * views.inputs[input].dtype.size() as isize;
            self.inputs[input].get().wrapping_offset(offset)
        };
        let piece = Piece { shape: views.shape, inputs: &views.inputs, first, device: self.device };
        piece.run(&self.fused.steps, base, address)
    }
}

/// A piece of all operands.
pub(super) struct Piece<'a> {
    pub shape: Shape,
    /// What is seen of each input.
    pub inputs: &'a [Meta],
    /// The number of the first element, where elements are neighbours.
    pub first: usize,
    pub device: &'a Device,
}

impl Piece<'_> {
    /// Runs one op after the other; the elements of inputs begin at `base`, the results of steps lie at `address`.
    pub fn run(
        &self,
        steps: &[FusedStep],
        base: impl Fn(usize) -> *mut u8,
        address: impl Fn(usize) -> *mut u8,
    ) -> Result<()> {
        let made = |dtype: DType| Meta::fresh(self.shape, dtype);
        for (number, step) in steps.iter().enumerate() {
            let seen = |input: &FusedInput| match *input {
                FusedInput::Outer(input) => self.inputs[usize::from(input)],
                FusedInput::Step(step) => made(steps[usize::from(step)].dtype),
            };
            let metas: SmallVec<[Meta; 3]> = step.inputs.iter().map(seen).collect();
            let at = |input: &FusedInput| match *input {
                FusedInput::Outer(input) => base(usize::from(input)),
                FusedInput::Step(step) => address(usize::from(step)),
            };
            let inputs: SmallVec<[Operand<'_>; 3]> =
                step.inputs.iter().zip(&metas).map(|(input, meta)| Operand::new(at(input), meta)).collect();
            let output = made(step.dtype);
            let mut run = Run {
                inputs: &inputs,
                outputs: &[Operand::new(address(number), &output)],
                aux_outputs: &[],
                workspace: std::ptr::null_mut(),
                workspace_len: 0,
                device: self.device,
                first: self.first,
            };
            step.op.get().run(&mut run)?;
        }
        Ok(())
    }
}
