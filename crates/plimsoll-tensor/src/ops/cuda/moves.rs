//! Moves of elements from strided places to strided places, as bits: what copies, concatenations and paddings are made of.
//!
//! A move that is dense on both sides is the driver's copy. Where the source is dense along another axis than the target
//! (a transposed matrix), tiles pass through shared memory. All others run in one launch for up to [`MAX_MOVES`] of them,
//! with as many neighbours at a time as fit 16 bytes. Moves of one launch do not overlap.

use plimsoll_cuda::{Gpu, Grid, Param, Template};
use smallvec::SmallVec;

use crate::base::error::Result;
use crate::base::shape::MAX_RANK;
use crate::eager::op::Operand;

static MOVES: Template = Template { name: "moves", text: include_str!("moves.cu") };
static TRANSPOSE: Template = Template { name: "transpose", text: include_str!("transpose.cu") };

/// The most moves of a launch; a kernel's parameters have room for no more.
const MAX_MOVES: usize = 16;
/// The units that a block moves.
const BLOCK_UNITS: u64 = 1024;
/// The threads of a block.
const THREADS: u32 = 256;
/// The extents of a tile that passes through shared memory.
const TILE: usize = 32;
/// The most bytes that a thread moves at a time.
const VECTOR_BYTES: usize = 16;

/// A move: where elements come from and where they go. Axes of one element are left out, neighbours that both sides walk
/// as one are joined.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    from: *mut u8,
    to: *mut u8,
    /// Bytes of an element.
    size: usize,
    rank: usize,
    extents: [usize; MAX_RANK],
    /// In elements, at the source and at the target.
    strides: [[isize; MAX_RANK]; 2],
}

impl Move {
    /// From one operand to another of the same shape, whose elements are as large.
    pub fn new(from: &Operand, to: &Operand) -> Move {
        debug_assert_eq!((from.shape(), from.dtype().size()), (to.shape(), to.dtype().size()));
        let mut joined = Move {
            from: from.ptr(),
            to: to.ptr(),
            size: from.dtype().size(),
            rank: 0,
            extents: [1; MAX_RANK],
            strides: [[0; MAX_RANK]; 2],
        };
        let layouts = [&from.meta.layout, &to.meta.layout];
        for (axis, &extent) in from.shape().iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let last = joined.rank.wrapping_sub(1);
            let continues =
                |side: usize| joined.strides[side][last] == layouts[side].strides()[axis] * extent as isize;
            if joined.rank > 0 && continues(0) && continues(1) {
                joined.extents[last] *= extent;
            } else {
                joined.extents[joined.rank] = extent;
                joined.rank += 1;
            }
            for (strides, layout) in joined.strides.iter_mut().zip(layouts) {
                strides[joined.rank - 1] = layout.strides()[axis];
            }
        }
        joined.rank = joined.rank.max(1);
        joined
    }

    fn n_elems(&self) -> usize {
        self.extents[..self.rank].iter().product()
    }

    /// The last axis, which neighbours at the target lie along.
    fn inner(&self) -> usize {
        self.rank - 1
    }

    /// Whether the elements lie one after the other on both sides.
    fn is_dense(&self) -> bool {
        self.rank == 1 && (self.extents[0] == 1 || self.strides == [Self::DENSE; 2])
    }

    const DENSE: [isize; MAX_RANK] = [1, 0, 0, 0, 0, 0, 0, 0];

    /// The axis along which the source is dense, if that is another than the target's and tiles pay.
    fn dense_row(&self) -> Option<usize> {
        let (inner, [from, to]) = (self.inner(), &self.strides);
        let pays = |axis: usize| self.extents[axis] >= TILE / 2;
        if to[inner].abs() != 1 || from[inner].abs() <= 1 || !pays(inner) {
            return None;
        }
        (0..inner).find(|&axis| from[axis].abs() == 1 && pays(axis))
    }

    /// The most bytes of neighbours that can be moved at a time.
    fn unit_bytes(&self) -> usize {
        let inner = self.inner();
        let fits = |bytes: usize| {
            let units = bytes / self.size;
            let is_whole = |stride: &isize| stride % units as isize == 0;
            let is_aligned = |ptr: *mut u8| (ptr as usize).is_multiple_of(bytes);
            self.extents[inner].is_multiple_of(units)
                && is_aligned(self.from)
                && is_aligned(self.to)
                && self.strides.iter().all(|side| side[inner] == 1 && side[..inner].iter().all(is_whole))
        };
        let mut bytes = VECTOR_BYTES;
        while bytes > self.size && !fits(bytes) {
            bytes /= 2;
        }
        bytes
    }

    /// The same move of units of so many bytes, which [`Move::unit_bytes`] allows.
    fn in_units(mut self, bytes: usize) -> Move {
        let (inner, units) = (self.inner(), bytes / self.size);
        self.extents[inner] /= units;
        for side in &mut self.strides {
            side[..inner].iter_mut().for_each(|stride| *stride /= units as isize);
        }
        self.size = bytes;
        self
    }
}

/// One move, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct MoveParam {
    from: *mut u8,
    to: *mut u8,
    n: u64,
    first_block: u64,
    extents: [u32; MAX_RANK],
    strides: [[i64; MAX_RANK]; 2],
}

/// The moves of a launch.
#[repr(C)]
struct MoveParams<const N: usize>([MoveParam; N]);

// SAFETY: `moves.cu` has the same struct.
unsafe impl<const N: usize> Param for MoveParams<N> {}

/// A move through tiles, as the kernel takes it.
#[repr(C)]
struct Transpose {
    from: *mut u8,
    to: *mut u8,
    n_rows: u64,
    n_cols: u64,
    /// By row and by column, at the source; then at the target.
    steps: [i64; 4],
    extents: [u32; MAX_RANK],
    outer: [[i64; MAX_RANK]; 2],
}

// SAFETY: `transpose.cu` has the same struct.
unsafe impl Param for Transpose {}

/// Starts the moves, for an op. The places of one move are nobody else's target.
pub(crate) fn start(op: &'static str, gpu: &Gpu, moves: &[Move]) -> Result<()> {
    let mut strided = SmallVec::<[Move; 4]>::new();
    for one in moves.iter().filter(|one| one.n_elems() > 0) {
        if one.is_dense() {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the target is nobody else's.
            unsafe { gpu.copy(op, one.from, one.to, one.n_elems() * one.size) }?;
        } else if let Some(row) = one.dense_row() {
            transpose(op, gpu, one, row)?;
        } else {
            strided.push(*one);
        }
    }
    strided.chunks(MAX_MOVES).try_for_each(|moves| match moves {
        [one] => launch::<1>(op, gpu, &[*one]),
        moves => launch::<MAX_MOVES>(op, gpu, moves),
    })
}

/// Starts up to `N` moves in one launch.
fn launch<const N: usize>(op: &'static str, gpu: &Gpu, moves: &[Move]) -> Result<()> {
    let bytes = moves.iter().map(Move::unit_bytes).min().unwrap_or(1);
    let rank = moves.iter().map(|one| one.rank).max().unwrap_or(1);
    // A move that no block reaches.
    let absent = MoveParam {
        from: std::ptr::null_mut(),
        to: std::ptr::null_mut(),
        n: 0,
        first_block: u64::MAX,
        extents: [1; MAX_RANK],
        strides: [[0; MAX_RANK]; 2],
    };
    let (mut params, mut n_blocks, mut is_wide) = (MoveParams([absent; N]), 0, false);
    for (param, whole) in params.0.iter_mut().zip(moves) {
        let units = whole.in_units(bytes);
        (param.from, param.to, param.n, param.first_block) =
            (units.from, units.to, units.n_elems() as u64, n_blocks);
        // Axes are counted from the last, so that all moves have as many.
        for axis in 0..units.rank {
            let at = rank - units.rank + axis;
            param.extents[at] = units.extents[axis] as u32;
            for side in 0..2 {
                param.strides[side][at] = units.strides[side][axis] as i64;
            }
        }
        n_blocks += param.n.div_ceil(BLOCK_UNITS);
        is_wide |= param.n >= 1 << 31;
    }
    let variant = (bytes.trailing_zeros() as u64) << 8 | (rank as u64) << 3 | u64::from(is_wide) << 1;
    let kernel = gpu.kernel(&MOVES, op, variant | u64::from(N > 1), || {
        let index = if is_wide { "u64" } else { "u32" };
        format!(
            "#define T {}\n#define RANK {rank}\n#define MOVES {N}\n#define Index {index}\n",
            unit_name(bytes)
        )
    })?;
    // SAFETY: `execute` hands out operands that are valid for their layouts, whose strides these are; the targets are
    // nobody else's, and units are aligned.
    unsafe { gpu.launch(&kernel, Grid::of(n_blocks as usize, THREADS), &[&params]) }?;
    Ok(())
}

/// Starts a move through tiles; the source is dense along axis `row`.
fn transpose(op: &'static str, gpu: &Gpu, part: &Move, row: usize) -> Result<()> {
    let col = part.inner();
    let [from, to] = &part.strides;
    let mut what = Transpose {
        from: part.from,
        to: part.to,
        n_rows: part.extents[row] as u64,
        n_cols: part.extents[col] as u64,
        steps: [from[row], from[col], to[row], to[col]].map(|step| step as i64),
        extents: [1; MAX_RANK],
        outer: [[0; MAX_RANK]; 2],
    };
    let mut n_outer = 0;
    for axis in (0..col).filter(|&axis| axis != row) {
        what.extents[n_outer] = part.extents[axis] as u32;
        for side in 0..2 {
            what.outer[side][n_outer] = part.strides[side][axis] as i64;
        }
        n_outer += 1;
    }
    let n_tiles = part.extents[row].div_ceil(TILE) * part.extents[col].div_ceil(TILE);
    let n_matrices = part.n_elems() / (part.extents[row] * part.extents[col]);
    let kernel = gpu.kernel(&TRANSPOSE, op, (part.size as u64) << 4 | n_outer as u64, || {
        format!("#define T {}\n#define OUTER {n_outer}\n", unit_name(part.size))
    })?;
    // SAFETY: as in `launch`.
    unsafe { gpu.launch(&kernel, Grid::of(n_tiles * n_matrices, THREADS), &[&what]) }?;
    Ok(())
}

/// The type of so many bytes in the kernels.
pub(crate) fn unit_name(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "Vector<u64, 2>",
    }
}
