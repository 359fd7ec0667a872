//! How a reduction walks its operand: which outputs are folded together, in which leaves, by which tasks.
//!
//! Everything here is a function of shape, strides and element type.

use super::{Compute, Fold};
use crate::map::MAX_RANK;
use crate::operand::Format;
use crate::tile;

/// Room for the accumulators of one tile of outputs, or for a leaf that must be copied.
pub(super) const ROOM_BYTES: usize = 16 * 1024;

/// Room for the partial results of all outputs together.
pub(super) const PARTIAL_BYTES: usize = 128 * 1024;

/// The most outputs of one tile that are folded one by one.
const MAX_RUNS: usize = 64;

/// The most outputs that are folded together where leaves must be copied.
const COPIED_COLS: usize = 256;

/// The most rows of a leaf. Few enough that folding them one after the other is accurate.
const LEAF_ROWS: usize = 64;

/// Rows that are shorter are folded several at once, if they lie side by side.
const FULL_ROW: usize = 64;

/// Runs shorter than this are not worth folding on their own if there are as many outputs.
const SHORT_RUN: usize = 16;

/// The number of elements that one task folds. Fewer are not worth waking a thread for.
const TASK_LEN: usize = 32 * 1024;

/// With at least this many tasks by output there is enough for every thread.
const MANY_TASKS: usize = 16;

/// The most stretches that the leaves of one output are split into.
const MAX_SPLITS: usize = 64;

/// What a plan needs to know of a fold and of what is stored.
pub(super) struct Traits {
    is_ordered: bool,
    is_compute: bool,
    /// The size of an element in its compute type.
    compute_size: usize,
    acc_size: usize,
}

impl Traits {
    pub(super) fn of<F: Fold>(input: &Format) -> Traits {
        Traits {
            is_ordered: F::IS_ORDERED,
            is_compute: input.is_compute,
            compute_size: size_of::<Compute<F>>(),
            acc_size: size_of::<F::Acc>().max(1),
        }
    }
}

/// One dimension: its extent, the input's stride, and the output's (zero where it is reduced).
#[derive(Clone, Copy, Debug)]
pub(super) struct Dim {
    pub(super) extent: usize,
    pub(super) stride: isize,
    pub(super) out_stride: isize,
}

const UNIT: Dim = Dim { extent: 1, stride: 0, out_stride: 0 };

impl Dim {
    /// How far outside a dimension belongs: smaller steps are further inside, and repeated elements outermost.
    fn rank(&self) -> usize {
        self.stride.unsigned_abs().wrapping_sub(1)
    }
}

/// A few dimensions, outermost first.
#[derive(Clone, Copy, Debug)]
struct Dims {
    dims: [Dim; MAX_RANK],
    n_dims: usize,
}

impl Dims {
    const NONE: Dims = Dims { dims: [UNIT; MAX_RANK], n_dims: 0 };

    fn push(&mut self, dim: Dim) {
        self.dims[self.n_dims] = dim;
        self.n_dims += 1;
    }

    fn pop(&mut self) -> Dim {
        if self.n_dims == 0 {
            return UNIT;
        }
        self.n_dims -= 1;
        self.dims[self.n_dims]
    }

    /// Orders dimensions so that the one with the smallest steps is innermost.
    fn sort(&mut self) {
        let dims = &mut self.dims[..self.n_dims];
        for end in 1..dims.len() {
            let mut idx = end;
            while idx > 0 && dims[idx - 1].rank() < dims[idx].rank() {
                dims.swap(idx - 1, idx);
                idx -= 1;
            }
        }
    }

    /// Merges neighbours that are walked as if they were one dimension.
    fn merge(&mut self) {
        let all = *self;
        *self = Dims::NONE;
        for inner in &all.dims[..all.n_dims] {
            let extent = inner.extent as isize;
            match self.dims[..self.n_dims].last_mut() {
                Some(outer)
                    if outer.stride == inner.stride * extent
                        && outer.out_stride == inner.out_stride * extent =>
                {
                    *outer = Dim { extent: outer.extent * inner.extent, ..*inner };
                }
                _ => self.push(*inner),
            }
        }
    }

    fn n_steps(&self) -> usize {
        self.dims[..self.n_dims].iter().map(|dim| dim.extent).product()
    }

    /// The input's and the output's offset at that step of a walk over these dimensions.
    #[inline]
    fn offsets(&self, mut step: usize) -> (isize, isize) {
        let (mut offset, mut out_offset) = (0, 0);
        for dim in self.dims[..self.n_dims].iter().rev() {
            let place = (step % dim.extent) as isize;
            step /= dim.extent;
            offset += place * dim.stride;
            out_offset += place * dim.out_stride;
        }
        (offset, out_offset)
    }
}

/// The dimensions that are kept, with the strides of a contiguous output, and those that are reduced.
fn split_dims(shape: &[usize], strides: &[isize], is_reduced: &dyn Fn(usize) -> bool) -> (Dims, Dims) {
    let mut out_strides = [0; MAX_RANK];
    let mut out_stride = 1;
    for axis in (0..shape.len()).rev().filter(|&axis| !is_reduced(axis)) {
        out_strides[axis] = out_stride;
        out_stride *= shape[axis] as isize;
    }
    let (mut kept, mut reduced) = (Dims::NONE, Dims::NONE);
    for (axis, (&extent, &stride)) in
        shape.iter().zip(strides).enumerate().filter(|(_, (extent, _))| **extent != 1)
    {
        let dim = Dim { extent, stride, out_stride: out_strides[axis] };
        if is_reduced(axis) { reduced.push(dim) } else { kept.push(dim) }
    }
    (kept, reduced)
}

/// How an operand is walked: outputs in stretches along `cols`, each folded in leaves along `inner`.
#[derive(Debug)]
pub(super) struct Plan {
    kept: Dims,
    pub(super) cols: Dim,
    reduced: Dims,
    pub(super) inner: Dim,
    /// Whether a stretch of outputs is folded together.
    pub(super) by_columns: bool,
    /// Whether leaves are read in place.
    pub(super) is_direct: bool,
    /// How many rows are folded at once as one.
    pub(super) n_abreast: usize,
    /// The most outputs of a tile.
    pub(super) tile_cols: usize,
    leaf_len: usize,
    pub(super) n_outputs: usize,
    pub(super) n_reduced: usize,
    pub(super) n_tiles: usize,
    pub(super) tiles_per_task: usize,
    /// The number of leaves of each output.
    pub(super) n_leaves: usize,
    /// The number of stretches of each output's leaves that are tasks of their own; one or none if tasks take outputs.
    pub(super) n_splits: usize,
}

impl Plan {
    /// The plan of a reduction. It is compiled once, whoever asks and whatever is folded.
    pub(super) fn new(
        shape: &[usize],
        strides: &[isize],
        is_reduced: &dyn Fn(usize) -> bool,
        traits: &Traits,
    ) -> Plan {
        let (mut kept, mut reduced) = split_dims(shape, strides, is_reduced);
        let (n_outputs, n_reduced) = (kept.n_steps(), reduced.n_steps());
        if !traits.is_ordered {
            reduced.sort();
        }
        reduced.merge();
        kept.sort();
        kept.merge();
        let (cols, inner) = (kept.pop(), reduced.pop());
        let is_short = inner.extent < SHORT_RUN && cols.extent >= SHORT_RUN;
        let mut plan = Plan {
            kept,
            cols,
            reduced,
            inner,
            by_columns: cols.extent > 1 && (cols.rank() < inner.rank() || is_short),
            is_direct: false,
            n_abreast: 1,
            tile_cols: 1,
            leaf_len: 1,
            n_outputs,
            n_reduced,
            n_tiles: 0,
            tiles_per_task: 1,
            n_leaves: 0,
            n_splits: 1,
        };
        if plan.by_columns {
            plan.cut_columns(traits);
        } else {
            plan.cut_runs(traits);
        }
        plan.share(traits);
        plan
    }

    /// Decides on tiles and leaves of outputs that are folded one by one.
    fn cut_runs(&mut self, traits: &Traits) {
        self.is_direct = traits.is_compute && self.inner.stride == 1;
        let most = (TASK_LEN / self.n_reduced.max(1)).min(ROOM_BYTES / traits.acc_size).clamp(1, MAX_RUNS);
        self.tile_cols = self.cols.extent.clamp(1, most);
        self.leaf_len = tile::tile_len(traits.compute_size);
    }

    /// Decides on tiles and leaves of outputs that are folded together.
    fn cut_columns(&mut self, traits: &Traits) {
        self.is_direct = traits.is_compute && self.cols.stride == 1;
        let room = ROOM_BYTES / traits.acc_size.max(traits.compute_size);
        // Rows as long as possible, because memory is fastest when it is read page after page.
        let most_cols =
            if self.is_direct { room } else { COPIED_COLS.max(room / self.inner.extent.max(1)).min(room) };
        self.tile_cols = self.cols.extent.min(most_cols);
        let is_packed = self.cols.stride == 1 && self.inner.stride == self.cols.extent as isize;
        if is_packed && !traits.is_ordered {
            self.n_abreast = (FULL_ROW / self.cols.extent).max(1);
        }
        self.leaf_len = LEAF_ROWS * self.n_abreast;
        if !self.is_direct {
            self.leaf_len = self.leaf_len.min(room / self.tile_cols);
        }
    }

    /// Decides what a task is.
    fn share(&mut self, traits: &Traits) {
        self.n_tiles = self.kept.n_steps() * self.cols.extent.div_ceil(self.tile_cols);
        self.n_leaves = self.reduced.n_steps() * self.inner.extent.div_ceil(self.leaf_len);
        self.tiles_per_task = TASK_LEN.div_ceil(self.tile_cols * self.n_reduced.max(1));
        if self.n_tiles.div_ceil(self.tiles_per_task) < MANY_TASKS {
            let worthwhile = self.n_outputs.saturating_mul(self.n_reduced) / TASK_LEN;
            let partials = PARTIAL_BYTES / traits.acc_size / (self.n_tiles * self.tile_cols).max(1);
            self.n_splits = worthwhile.min(self.n_leaves).min(partials).min(MAX_SPLITS);
        }
    }

    /// The outputs of one tile.
    #[inline]
    pub(super) fn tile(&self, tile: usize) -> OutputTile {
        let n_col_tiles = self.cols.extent.div_ceil(self.tile_cols);
        let (offset, out_offset) = self.kept.offsets(tile / n_col_tiles);
        let col = tile % n_col_tiles * self.tile_cols;
        OutputTile {
            offset: offset + col as isize * self.cols.stride,
            out_offset: out_offset + col as isize * self.cols.out_stride,
            n_cols: self.tile_cols.min(self.cols.extent - col),
        }
    }

    /// Where a leaf of the output at `offset` begins, its length, and the index of its first element.
    #[inline]
    pub(super) fn leaf(&self, offset: isize, leaf: usize) -> (isize, usize, usize) {
        let n_inner_leaves = self.inner.extent.div_ceil(self.leaf_len);
        let (outer, start) = (leaf / n_inner_leaves, leaf % n_inner_leaves * self.leaf_len);
        let offset = offset + self.reduced.offsets(outer).0 + start as isize * self.inner.stride;
        (offset, self.leaf_len.min(self.inner.extent - start), outer * self.inner.extent + start)
    }
}

/// Outputs that are computed together: the offsets of the first in input and output, and their number.
#[derive(Clone, Copy)]
pub(super) struct OutputTile {
    pub(super) offset: isize,
    pub(super) out_offset: isize,
    pub(super) n_cols: usize,
}
