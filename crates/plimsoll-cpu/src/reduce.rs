//! Reductions over any axes of a strided operand into a contiguous output.
//!
//! What is reduced is a [`Fold`]; how memory is walked is decided here from shape and strides alone. If the reduced
//! elements lie side by side, each output folds its own runs. If outputs lie side by side, or the runs are very short, a
//! stretch of outputs is folded together, row by row, so that reads stay contiguous and vectorise either way.
//!
//! Elements are folded in leaves of fixed size, and leaves are merged in a binary tree over their order. Rounding errors
//! therefore grow with the logarithm of the length, and the bits do not depend on the number of threads: threads take
//! outputs, or where there are few outputs fixed stretches of leaves whose results are merged in order. Those partial
//! results are few and lie on the stack; no workspace is needed.

use std::marker::PhantomData;
use std::ops::Range;

use crate::element::Element;
use crate::map::{MAX_RANK, Src};
use crate::threads::SharedPtr;
use crate::tile::{self, Patch, Tile};
use crate::{simd, threads};

pub use crate::folds::*;

/// A reduction of many values to one.
///
/// Mark all methods `#[inline(always)]`: they are inlined into code for wider instructions.
pub trait Fold: Sync {
    /// What lies in memory.
    type In: Element;
    /// What is known about the elements seen so far.
    type Acc: Copy + Send + Sync;
    /// What is written.
    type Out: Element;

    /// Whether `idx` matters, so that reduced axes must be walked in their own order.
    const IS_ORDERED: bool = false;

    /// What is known when nothing was seen.
    fn empty(&self) -> Self::Acc;

    /// What is known of one value; `idx` is its row-major index along the reduced axes, if the fold is ordered.
    fn one(&self, value: Compute<Self>, idx: usize) -> Self::Acc;

    /// Joins what is known about two stretches of elements, the first before the second.
    fn merge(&self, first: Self::Acc, second: Self::Acc) -> Self::Acc;

    /// The result for `n` elements.
    fn finish(&self, acc: Self::Acc, n: usize) -> Self::Out;

    /// Folds one run of at most a tile's length; `first` is the index of its first element.
    ///
    /// Unless it is overridden, values are merged in interleaved lanes: well for folds to which order is nothing.
    #[inline(always)]
    fn run(&self, values: &[Compute<Self>], first: usize) -> Self::Acc {
        in_lanes(
            values,
            self.empty(),
            #[inline(always)]
            |value, idx| self.one(value, first + idx),
            #[inline(always)]
            |a, b| self.merge(a, b),
        )
    }

    /// Folds each column of some rows into its element of `accs`, which are empty; `first` is the first row's index.
    #[inline(always)]
    fn columns(&self, rows: Rows<'_, Compute<Self>>, first: usize, accs: &mut [Self::Acc]) {
        for (idx, row) in rows.iter().enumerate() {
            for (acc, &value) in accs.iter_mut().zip(row) {
                *acc = self.merge(*acc, self.one(value, first + idx));
            }
        }
    }
}

/// What a fold's elements are computed in.
pub type Compute<F> = <<F as Fold>::In as Element>::Compute;

/// Folds a slice in independent lanes that are merged pairwise at the end, so that the loop vectorises. `one` is given
/// each value with its index.
#[inline(always)]
pub fn in_lanes<T: Copy, A: Copy>(
    values: &[T],
    empty: A,
    one: impl Fn(T, usize) -> A,
    merge: impl Fn(A, A) -> A,
) -> A {
    const N_LANES: usize = 32;
    let (chunks, rest) = values.as_chunks::<N_LANES>();
    let n_chunked = values.len() - rest.len();
    let mut tail = empty;
    for (idx, &value) in rest.iter().enumerate() {
        tail = merge(tail, one(value, n_chunked + idx));
    }
    if chunks.is_empty() {
        return tail;
    }
    let mut lanes = [empty; N_LANES];
    for (chunk_idx, chunk) in chunks.iter().enumerate() {
        for lane in 0..N_LANES {
            lanes[lane] = merge(lanes[lane], one(chunk[lane], chunk_idx * N_LANES + lane));
        }
    }
    let mut width = N_LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = merge(lanes[lane], lanes[lane + width]);
        }
    }
    merge(lanes[0], tail)
}

/// Some rows of equal length, each of them contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    /// Where the first row begins. Every row is valid for reads while the rows are borrowed.
    first: *const T,
    n_rows: usize,
    n_cols: usize,
    /// From one row's beginning to the next one's, in elements.
    stride: isize,
    borrowed: PhantomData<&'a [T]>,
}

impl<'a, T: Copy> Rows<'a, T> {
    /// The rows in order.
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = &'a [T]> {
        (0..self.n_rows).map(
            #[inline(always)]
            move |idx| {
                // SAFETY: one of the rows.
                unsafe {
                    std::slice::from_raw_parts(self.first.offset(idx as isize * self.stride), self.n_cols)
                }
            },
        )
    }

    /// The number of rows.
    #[inline(always)]
    pub fn n_rows(self) -> usize {
        self.n_rows
    }

    /// The same rows cut down to some of their columns.
    ///
    /// # Panics
    /// There are fewer columns.
    #[inline(always)]
    pub fn cut(self, columns: Range<usize>) -> Rows<'a, T> {
        assert!(columns.start <= columns.end && columns.end <= self.n_cols, "columns that the rows have");
        // SAFETY: that column lies inside the first row, or at its end.
        Rows { first: unsafe { self.first.add(columns.start) }, n_cols: columns.len(), ..self }
    }
}

/// Reduces the axes for which `is_reduced` holds. The output is contiguous over the other axes, in their order.
///
/// # Safety
/// For every index of `shape` the element of `input` is valid for reads. `output` is valid for writes of one element for
/// each index along the axes that are not reduced, and overlaps `input` nowhere.
pub unsafe fn reduce<F: Fold>(
    fold: &F,
    shape: &[usize],
    is_reduced: impl Fn(usize) -> bool,
    input: Src<'_, F::In>,
    output: *mut F::Out,
) {
    let plan = Plan::new(shape, input.strides, is_reduced, &Traits::of::<F>());
    if plan.n_outputs == 0 {
        return;
    }
    let reduction = Reduction {
        fold,
        plan: &plan,
        input: SharedPtr::new(input.ptr.cast_mut()),
        output: SharedPtr::new(output),
    };
    if plan.n_splits > 1 {
        // SAFETY: the caller's promise.
        unsafe { reduction.in_splits() }
    } else {
        // SAFETY: the caller's promise.
        unsafe { reduction.by_outputs() }
    }
}

/// The most outputs that are folded together.
const MAX_COLS: usize = 256;

/// The most rows of a leaf. Few enough that folding them one after the other is accurate.
const LEAF_ROWS: usize = 64;

/// The most outputs that are folded together where leaves must be copied into a tile.
const GATHERED_COLS: usize = 64;

/// Runs shorter than this are not worth folding on their own if there are many outputs.
const SHORT_RUN: usize = 16;

/// The number of elements that one task folds. Fewer are not worth waking a thread for.
const TASK_LEN: usize = 32 * 1024;

/// With at least this many tasks by output there is enough for every thread.
const MANY_TASKS: usize = 16;

/// The most stretches that the leaves of one output are split into.
const MAX_SPLITS: usize = 64;

/// The most partial results of all outputs together.
const MAX_PARTIALS: usize = 2048;

/// What a plan needs to know of a fold.
struct Traits {
    is_ordered: bool,
    is_compute: bool,
    tile_len: usize,
}

impl Traits {
    fn of<F: Fold>() -> Traits {
        Traits {
            is_ordered: F::IS_ORDERED,
            is_compute: F::In::IS_COMPUTE,
            tile_len: tile::tile_len(size_of::<Compute<F>>()),
        }
    }
}

/// One dimension: its extent, the input's stride, and the output's (zero where it is reduced).
#[derive(Clone, Copy, Debug)]
struct Dim {
    extent: usize,
    stride: isize,
    out_stride: isize,
}

const UNIT: Dim = Dim { extent: 1, stride: 0, out_stride: 0 };

impl Dim {
    /// The stride for ordering: smaller is further inside, and repeated elements are outermost.
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

/// How an operand is walked: outputs in stretches along `cols`, each folded in leaves along `inner`.
#[derive(Debug)]
struct Plan {
    kept: Dims,
    cols: Dim,
    reduced: Dims,
    inner: Dim,
    /// Whether a stretch of outputs is folded together.
    by_columns: bool,
    /// Whether leaves are read in place.
    is_direct: bool,
    tile_cols: usize,
    leaf_len: usize,
    n_outputs: usize,
    n_reduced: usize,
    n_tiles: usize,
    tiles_per_task: usize,
    n_leaves: usize,
    n_splits: usize,
}

impl Plan {
    fn new(shape: &[usize], strides: &[isize], is_reduced: impl Fn(usize) -> bool, traits: &Traits) -> Plan {
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
        let by_columns = cols.extent > 1 && (cols.rank() < inner.rank() || is_short);
        let is_direct = traits.is_compute && 1 == if by_columns { cols.stride } else { inner.stride };
        let (tile_cols, leaf_len) = if !by_columns {
            (cols.extent.clamp(1, (TASK_LEN / n_reduced.max(1)).clamp(1, MAX_COLS)), traits.tile_len)
        } else if is_direct {
            (cols.extent.min(MAX_COLS), LEAF_ROWS)
        } else {
            let tile_cols = cols.extent.min(GATHERED_COLS);
            (tile_cols, LEAF_ROWS.min(traits.tile_len / tile_cols))
        };
        let n_tiles = kept.n_steps() * cols.extent.div_ceil(tile_cols);
        let n_leaves = reduced.n_steps() * inner.extent.div_ceil(leaf_len);
        let tiles_per_task = TASK_LEN.div_ceil(tile_cols * n_reduced.max(1)).max(1);
        let n_tasks = n_tiles.div_ceil(tiles_per_task);
        let n_splits = if n_tasks >= MANY_TASKS {
            1
        } else {
            let worthwhile = n_outputs.saturating_mul(n_reduced) / TASK_LEN;
            worthwhile.min(n_leaves).min(MAX_PARTIALS / (n_tiles * tile_cols).max(1)).min(MAX_SPLITS)
        };
        Plan {
            kept,
            cols,
            reduced,
            inner,
            by_columns,
            is_direct,
            tile_cols,
            leaf_len,
            n_outputs,
            n_reduced,
            n_tiles,
            tiles_per_task,
            n_leaves,
            n_splits,
        }
    }

    /// The outputs of one tile.
    #[inline]
    fn tile(&self, tile: usize) -> OutputTile {
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
    fn leaf(&self, offset: isize, leaf: usize) -> (isize, usize, usize) {
        let n_inner_leaves = self.inner.extent.div_ceil(self.leaf_len);
        let (outer, start) = (leaf / n_inner_leaves, leaf % n_inner_leaves * self.leaf_len);
        let offset = offset + self.reduced.offsets(outer).0 + start as isize * self.inner.stride;
        (offset, self.leaf_len.min(self.inner.extent - start), outer * self.inner.extent + start)
    }
}

/// The dimensions that are kept, with the strides of a contiguous output, and those that are reduced.
fn split_dims(shape: &[usize], strides: &[isize], is_reduced: impl Fn(usize) -> bool) -> (Dims, Dims) {
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

/// Outputs that are computed together: the offsets of the first in input and output, and their number.
#[derive(Clone, Copy)]
struct OutputTile {
    offset: isize,
    out_offset: isize,
    n_cols: usize,
}

/// One call of [`reduce`].
struct Reduction<'a, F: Fold> {
    fold: &'a F,
    plan: &'a Plan,
    input: SharedPtr<F::In>,
    output: SharedPtr<F::Out>,
}

impl<F: Fold> Reduction<'_, F> {
    /// Each task folds some outputs wholly.
    ///
    /// # Safety
    /// That of [`reduce`].
    unsafe fn by_outputs(&self) {
        let plan = self.plan;
        threads::parallel(plan.n_tiles.div_ceil(plan.tiles_per_task), |task| {
            let first = task * plan.tiles_per_task;
            let mut accs = [self.fold.empty(); MAX_COLS];
            for tile in first..plan.n_tiles.min(first + plan.tiles_per_task) {
                let tile = plan.tile(tile);
                let accs = &mut accs[..tile.n_cols];
                // SAFETY: the tile is one of the plan's, and no other task has it.
                unsafe {
                    self.accumulate(tile, 0..plan.n_leaves, accs);
                    self.finish(tile, accs);
                }
            }
        });
    }

    /// Each task folds one stretch of the leaves of one tile; then the stretches are merged.
    ///
    /// # Safety
    /// That of [`reduce`].
    unsafe fn in_splits(&self) {
        let plan = self.plan;
        let n_splits = plan.n_splits;
        let mut partials = [self.fold.empty(); MAX_PARTIALS];
        let shared = SharedPtr::new(partials.as_mut_ptr());
        let first_of = |tile: usize, split: usize| (tile * n_splits + split) * plan.tile_cols;
        debug_assert!(first_of(plan.n_tiles, 0) <= MAX_PARTIALS, "every stretch has its own partial results");
        threads::parallel(plan.n_tiles * n_splits, |task| {
            let (idx, split) = (task / n_splits, task % n_splits);
            let tile = plan.tile(idx);
            let leaves = split * plan.n_leaves / n_splits..(split + 1) * plan.n_leaves / n_splits;
            // SAFETY: these partial results belong to this task alone, and the leaves to the plan.
            unsafe {
                let accs =
                    std::slice::from_raw_parts_mut(shared.get().add(first_of(idx, split)), tile.n_cols);
                self.accumulate(tile, leaves, accs);
            }
        });
        for idx in 0..plan.n_tiles {
            let tile = plan.tile(idx);
            let (all, n_cols) = (&mut partials[first_of(idx, 0)..first_of(idx + 1, 0)], tile.n_cols);
            let (accs, others) = all.split_at_mut(plan.tile_cols);
            for other in others.chunks_exact(plan.tile_cols) {
                self.merge(&mut accs[..n_cols], &other[..n_cols]);
            }
            // SAFETY: the tile is one of the plan's.
            unsafe { self.finish(tile, &accs[..n_cols]) };
        }
    }

    #[inline]
    fn merge(&self, accs: &mut [F::Acc], others: &[F::Acc]) {
        for (acc, &other) in accs.iter_mut().zip(others) {
            *acc = self.fold.merge(*acc, other);
        }
    }

    /// # Safety
    /// The tile belongs to the plan, and nothing else writes its outputs.
    #[inline]
    unsafe fn finish(&self, tile: OutputTile, accs: &[F::Acc]) {
        for (col, &acc) in accs.iter().enumerate() {
            let offset = tile.out_offset + col as isize * self.plan.cols.out_stride;
            // SAFETY: an output of the tile.
            unsafe { self.output.get().offset(offset).write(self.fold.finish(acc, self.plan.n_reduced)) };
        }
    }

    /// Folds some leaves of every output of a tile.
    ///
    /// # Safety
    /// Tile and leaves belong to the plan.
    unsafe fn accumulate(&self, tile: OutputTile, leaves: Range<usize>, accs: &mut [F::Acc]) {
        if leaves.is_empty() {
            accs.fill(self.fold.empty());
        } else if self.plan.by_columns {
            // SAFETY: the caller's promise.
            unsafe { self.column_tree(tile.offset, leaves, accs) };
        } else {
            for (col, acc) in accs.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *acc = unsafe {
                    self.row_tree(tile.offset + col as isize * self.plan.cols.stride, leaves.clone())
                };
            }
        }
    }

    /// Folds some leaves of the output whose elements begin at `offset`.
    ///
    /// # Safety
    /// The leaves belong to the plan, and there is at least one.
    unsafe fn row_tree(&self, offset: isize, leaves: Range<usize>) -> F::Acc {
        if leaves.len() > 1 {
            let middle = leaves.start + leaves.len() / 2;
            // SAFETY: both halves are leaves of the plan.
            let (first, second) = unsafe {
                (self.row_tree(offset, leaves.start..middle), self.row_tree(offset, middle..leaves.end))
            };
            return self.fold.merge(first, second);
        }
        let (offset, len, first) = self.plan.leaf(offset, leaves.start);
        // SAFETY: the leaf's elements belong to the input.
        let src = unsafe { self.input.get().offset(offset) };
        if self.plan.is_direct {
            // SAFETY: the leaf's elements lie side by side, in their compute type.
            return unsafe { self.run(src.cast(), len, first) };
        }
        let mut tile = Tile::uninit();
        let patch = Patch { n_rows: 1, n_cols: len, row_stride: 0, col_stride: self.plan.inner.stride };
        // SAFETY: the leaf's elements belong to the input, and a leaf fits into a tile.
        unsafe {
            tile::gather::<F::In>(src.cast(), patch, tile.as_mut_ptr());
            self.run(tile.as_mut_ptr().cast(), len, first)
        }
    }

    /// # Safety
    /// `values` is valid for reads of `len` values.
    #[inline]
    unsafe fn run(&self, values: *const Compute<F>, len: usize, first: usize) -> F::Acc {
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts(values, len) };
        let fold = self.fold;
        simd::vectorize(
            #[inline(always)]
            move || fold.run(values, first),
        )
    }

    /// Folds some leaves of the outputs side by side whose elements begin at `offset`.
    ///
    /// # Safety
    /// The leaves belong to the plan, and there is at least one.
    unsafe fn column_tree(&self, offset: isize, leaves: Range<usize>, accs: &mut [F::Acc]) {
        if leaves.len() > 1 {
            let middle = leaves.start + leaves.len() / 2;
            let mut second = [self.fold.empty(); MAX_COLS];
            let second = &mut second[..accs.len()];
            // SAFETY: both halves are leaves of the plan.
            unsafe {
                self.column_tree(offset, leaves.start..middle, accs);
                self.column_tree(offset, middle..leaves.end, second);
            }
            return self.merge(accs, second);
        }
        accs.fill(self.fold.empty());
        let (offset, n_rows, first) = self.plan.leaf(offset, leaves.start);
        let n_cols = accs.len();
        // SAFETY: the leaf's elements belong to the input.
        let src = unsafe { self.input.get().offset(offset) };
        let row_stride = self.plan.inner.stride;
        if self.plan.is_direct {
            let rows = Rows { first: src.cast(), n_rows, n_cols, stride: row_stride, borrowed: PhantomData };
            return self.columns(rows, first, accs);
        }
        let mut tile = Tile::uninit();
        let patch = Patch { n_rows, n_cols, row_stride, col_stride: self.plan.cols.stride };
        // SAFETY: the leaf's elements belong to the input, and a leaf fits into a tile.
        unsafe { tile::gather::<F::In>(src.cast(), patch, tile.as_mut_ptr()) };
        let first_row = tile.as_mut_ptr().cast_const().cast();
        let rows = Rows { first: first_row, n_rows, n_cols, stride: n_cols as isize, borrowed: PhantomData };
        self.columns(rows, first, accs);
    }

    /// Folds rows with the widest instructions.
    #[inline]
    fn columns(&self, rows: Rows<'_, Compute<F>>, first: usize, accs: &mut [F::Acc]) {
        let fold = self.fold;
        simd::vectorize(
            #[inline(always)]
            move || fold.columns(rows, first, accs),
        );
    }
}

#[cfg(test)]
mod tests;
