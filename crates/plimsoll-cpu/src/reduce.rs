//! Reductions over any axes of a strided operand into a contiguous output.
//!
//! What is reduced is a [`Fold`]; how memory is walked is decided here from shape and strides alone. If the reduced
//! elements lie side by side, each output folds its own runs. If outputs lie side by side, or the runs are very short, a
//! stretch of outputs is folded together, row by row, so that reads stay contiguous and vectorise either way.
//!
//! Elements are folded in leaves of fixed size, and leaves are merged in a tree over their order. Rounding errors
//! therefore grow with the logarithm of the length, and the bits do not depend on the number of threads: threads take
//! outputs, or where there are few outputs fixed stretches of leaves whose results are merged in order. Those partial
//! results are few and lie on the stack; no workspace is needed.

use std::marker::PhantomData;
use std::ops::Range;

use crate::element::Element;
use crate::operand::Operand;
use crate::threads::SharedPtr;
use crate::tile::{Patch, Tile};
use crate::{simd, threads};

mod folds;
mod made;
mod plan;
use plan::{OutputTile, PARTIAL_BYTES, Plan, ROOM_BYTES, Traits};

pub use folds::*;
pub use made::{Source, Stretches, reduce_made};

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

    /// The result for `n` elements, before it is stored.
    fn finish(&self, acc: Self::Acc, n: usize) -> <Self::Out as Element>::Compute;

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
    // Behind this barrier the lanes are an array in memory. Without it the compiler follows the merges below back into
    // the loop above and takes its vectors apart (maxima became four times slower).
    let mut lanes = std::hint::black_box(lanes);
    for width in [16, 8, 4, 2, 1] {
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
/// ```
/// use plimsoll_cpu::operand::Operand;
/// use plimsoll_cpu::reduce::{Sum, reduce};
///
/// let matrix = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let mut column_sums = [0.0f32; 3];
/// let input = Operand::new(matrix.as_ptr(), &[3, 1]);
/// let output = Operand::new(column_sums.as_mut_ptr(), &[]);
/// // SAFETY: the strides stay inside the array, and three columns have three sums.
/// unsafe { reduce(&Sum::<f32, f32>::new(), &[2, 3], |axis| axis == 0, input, output) };
/// assert_eq!(column_sums, [5.0, 7.0, 9.0]);
/// ```
///
/// Whatever dtype is stored, the fold knows its compute type: f16, bf16 and f32 are reduced by the same code. The strides of the
/// output are not looked at.
///
/// # Safety
/// `input` and `output` compute in the types of the fold. For every index of `shape` the element of `input` is valid for reads.
/// `output` is valid for writes of one element for each index along the axes that are not reduced, and overlaps `input` nowhere.
pub unsafe fn reduce<F: Fold>(
    fold: &F,
    shape: &[usize],
    is_reduced: impl Fn(usize) -> bool,
    input: Operand<'_>,
    output: Operand<'_>,
) {
    let plan = Plan::new(shape, input.strides, &is_reduced, &Traits::of::<F>(&input.format));
    // SAFETY: the caller's promise.
    unsafe { Reduction { fold, plan: &plan, input, source: None, output }.run() };
}

/// Room for the accumulators of one tile of outputs, or for a leaf that must be copied.
type Room = Tile<ROOM_BYTES>;

/// One call of [`reduce`].
struct Reduction<'a, F: Fold> {
    fold: &'a F,
    plan: &'a Plan,
    input: Operand<'a>,
    /// What makes the elements of the input, in row-major order, where they do not lie in memory.
    source: Option<&'a dyn Source>,
    output: Operand<'a>,
}

impl<F: Fold> Reduction<'_, F> {
    /// # Safety
    /// That of [`reduce`].
    unsafe fn run(&self) {
        if self.plan.n_outputs == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { if self.plan.n_splits > 1 { self.in_splits() } else { self.by_outputs() } }
    }

    /// Each task folds some outputs wholly.
    ///
    /// # Safety
    /// That of [`reduce`].
    unsafe fn by_outputs(&self) {
        let plan = self.plan;
        threads::parallel(plan.n_tiles.div_ceil(plan.tiles_per_task), |task| {
            let first = task * plan.tiles_per_task;
            let mut room = Room::uninit();
            for tile in first..plan.n_tiles.min(first + plan.tiles_per_task) {
                let tile = plan.tile(tile);
                let accs = self.empty(&mut room, tile.n_cols);
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
        let mut partials = Tile::<PARTIAL_BYTES>::uninit();
        let partials = self.empty(&mut partials, plan.n_tiles * n_splits * plan.tile_cols);
        let shared = SharedPtr::new(partials.as_mut_ptr());
        let first_of = |tile: usize, split: usize| (tile * n_splits + split) * plan.tile_cols;
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
            let (accs, others) =
                partials[first_of(idx, 0)..first_of(idx + 1, 0)].split_at_mut(plan.tile_cols);
            let accs = &mut accs[..tile.n_cols];
            for other in others.chunks_exact(plan.tile_cols) {
                self.merge(accs, other);
            }
            // SAFETY: the tile is one of the plan's.
            unsafe { self.finish(tile, accs) };
        }
    }

    /// Empty accumulators in a tile.
    ///
    /// # Panics
    /// The tile has no room for them.
    #[inline]
    fn empty<'a, const N_BYTES: usize>(&self, room: &'a mut Tile<N_BYTES>, n: usize) -> &'a mut [F::Acc] {
        assert!(n * size_of::<F::Acc>() <= N_BYTES && align_of::<F::Acc>() <= align_of::<Room>());
        let first = room.as_mut_ptr().cast::<F::Acc>();
        for idx in 0..n {
            // SAFETY: the tile has room and alignment for `n` accumulators.
            unsafe { first.add(idx).write(self.fold.empty()) };
        }
        // SAFETY: they have just been written.
        unsafe { std::slice::from_raw_parts_mut(first, n) }
    }

    /// Merges accumulators with those of later elements.
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
        const AT_ONCE: usize = 32;
        let col_stride = self.plan.cols.out_stride;
        for (part, accs) in accs.chunks(AT_ONCE).enumerate() {
            let mut results = [<F::Out as Element>::Compute::default(); AT_ONCE];
            for (result, &acc) in results.iter_mut().zip(accs) {
                *result = self.fold.finish(acc, self.plan.n_reduced);
            }
            let patch = Patch { n_rows: 1, n_cols: accs.len(), row_stride: 0, col_stride };
            // SAFETY: outputs of the tile, and as many results in the type that they are computed in.
            unsafe {
                let place = self.output.at(tile.out_offset + (part * AT_ONCE) as isize * col_stride);
                (self.output.format.scatter)(results.as_ptr().cast(), place, patch);
            }
        }
    }

    /// Folds some leaves of every output of a tile into accumulators that are empty.
    ///
    /// # Safety
    /// Tile and leaves belong to the plan.
    unsafe fn accumulate(&self, tile: OutputTile, leaves: Range<usize>, accs: &mut [F::Acc]) {
        let plan = self.plan;
        if leaves.is_empty() {
            // Nothing is known of no elements.
        } else if plan.by_columns {
            // SAFETY: the caller's promise.
            unsafe { self.column_tree(tile.offset, leaves, accs) };
        } else if plan.n_leaves == 1
            && let Some(source) = self.source
        {
            // SAFETY: the caller's promise.
            unsafe { self.made_leaves(source, tile.offset, accs) };
        } else if plan.n_leaves == 1 && plan.is_direct {
            // SAFETY: the caller's promise.
            unsafe { self.single_leaves(tile.offset, accs) };
        } else {
            for (col, acc) in accs.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *acc =
                    unsafe { self.row_tree(tile.offset + col as isize * plan.cols.stride, leaves.clone()) };
            }
        }
    }

    /// Folds outputs of one leaf each, which is read in place.
    ///
    /// # Safety
    /// The elements of the first output begin at `offset`, and there are as many outputs as accumulators.
    unsafe fn single_leaves(&self, offset: isize, accs: &mut [F::Acc]) {
        let (fold, len, stride) = (self.fold, self.plan.inner.extent, self.plan.cols.stride);
        // SAFETY: the caller's promise.
        let first = unsafe { self.input.at(offset) }.cast::<Compute<F>>();
        simd::vectorize(
            #[inline(always)]
            move || {
                for (col, acc) in accs.iter_mut().enumerate() {
                    // SAFETY: the output's elements lie side by side, in their compute type.
                    let values =
                        unsafe { std::slice::from_raw_parts(first.offset(col as isize * stride), len) };
                    *acc = fold.run(values, 0);
                }
            },
        );
    }

    /// Folds some leaves of the output whose elements begin at `offset`.
    ///
    /// # Safety
    /// The leaves belong to the plan, and there is at least one.
    unsafe fn row_tree(&self, offset: isize, leaves: Range<usize>) -> F::Acc {
        if leaves.len() > 1 {
            let mut acc = self.fold.empty();
            for child in children(leaves) {
                // SAFETY: leaves of the plan.
                acc = self.fold.merge(acc, unsafe { self.row_tree(offset, child) });
            }
            return acc;
        }
        let (offset, len, first) = self.plan.leaf(offset, leaves.start);
        match self.source {
            // SAFETY: the leaf's elements belong to the input.
            None => unsafe { self.row_leaf(self.input.at(offset), self.plan.inner.stride, len, first) },
            // SAFETY: the caller's promise.
            Some(source) => unsafe { self.made_leaf(source, offset, len, first) },
        }
    }

    /// Folds a leaf of an output, whose elements begin at `src` and are so far apart.
    ///
    /// # Safety
    /// They are valid for reads, and no more than a leaf has.
    unsafe fn row_leaf(&self, src: *const u8, stride: isize, len: usize, first: usize) -> F::Acc {
        if self.plan.is_direct {
            // SAFETY: the leaf's elements lie side by side, in their compute type.
            return unsafe { self.fold_run(src.cast(), len, first) };
        }
        let mut tile = <Tile>::uninit();
        let patch = Patch { n_rows: 1, n_cols: len, row_stride: 0, col_stride: stride };
        // SAFETY: the leaf's elements belong to the input, and a leaf fits into a tile.
        unsafe {
            (self.input.format.gather)(src, patch, tile.as_mut_ptr());
            self.fold_run(tile.as_mut_ptr().cast(), len, first)
        }
    }

    /// # Safety
    /// `values` is valid for reads of `len` values.
    #[inline]
    unsafe fn fold_run(&self, values: *const Compute<F>, len: usize, first: usize) -> F::Acc {
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
        if leaves.len() == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.column_leaf(offset, leaves.start, accs) };
        }
        let mut room = Room::uninit();
        for child in children(leaves) {
            let child_accs = self.empty(&mut room, accs.len());
            // SAFETY: leaves of the plan.
            unsafe { self.column_tree(offset, child, child_accs) };
            self.merge(accs, child_accs);
        }
    }

    /// # Safety
    /// The leaf belongs to the plan.
    unsafe fn column_leaf(&self, offset: isize, leaf: usize, accs: &mut [F::Acc]) {
        let (offset, n_rows, first) = self.plan.leaf(offset, leaf);
        let (row_stride, col_stride) = (self.plan.inner.stride, self.plan.cols.stride);
        match self.source {
            // SAFETY: the leaf's elements belong to the input.
            None => unsafe {
                self.column_patch(self.input.at(offset), n_rows, row_stride, col_stride, first, accs);
            },
            // SAFETY: the caller's promise.
            Some(source) => unsafe { self.made_columns(source, offset, n_rows, first, accs) },
        }
    }

    /// Folds the columns of some rows, which begin at `src`: as many columns as accumulators.
    ///
    /// # Safety
    /// The elements are valid for reads, and no more than a leaf has.
    unsafe fn column_patch(
        &self,
        src: *const u8,
        n_rows: usize,
        row_stride: isize,
        col_stride: isize,
        first: usize,
        accs: &mut [F::Acc],
    ) {
        let n_cols = accs.len();
        if self.plan.is_direct {
            let rows = Rows { first: src.cast(), n_rows, n_cols, stride: row_stride, borrowed: PhantomData };
            return self.columns(rows, first, accs);
        }
        let mut room = Room::uninit();
        let patch = Patch { n_rows, n_cols, row_stride, col_stride };
        // SAFETY: the elements belong to the input, and the plan's leaves fit into the room.
        unsafe { (self.input.format.gather)(src, patch, room.as_mut_ptr()) };
        let first_row = room.as_mut_ptr().cast_const().cast();
        let rows = Rows { first: first_row, n_rows, n_cols, stride: n_cols as isize, borrowed: PhantomData };
        self.columns(rows, first, accs);
    }

    /// Folds the columns of a leaf.
    #[inline]
    fn columns(&self, rows: Rows<'_, Compute<F>>, first: usize, accs: &mut [F::Acc]) {
        let (n_rows, n_cols, n_abreast) = (rows.n_rows, rows.n_cols, self.plan.n_abreast);
        if n_abreast == 1 || rows.stride != n_cols as isize {
            return self.vectorized_columns(rows, first, accs);
        }
        // Rows that are short and lie side by side are folded several at once, as one row of many columns.
        let mut room = Room::uninit();
        let wide = Rows {
            n_rows: n_rows / n_abreast,
            n_cols: n_cols * n_abreast,
            stride: rows.stride * n_abreast as isize,
            ..rows
        };
        let wide_accs = self.empty(&mut room, wide.n_cols);
        self.vectorized_columns(wide, first, wide_accs);
        for part in wide_accs.chunks_exact(n_cols) {
            self.merge(accs, part);
        }
        let n_done = wide.n_rows * n_abreast;
        // SAFETY: that row is one of the rows, or the end of the last.
        let first_left = unsafe { rows.first.offset(n_done as isize * rows.stride) };
        let left = Rows { first: first_left, n_rows: n_rows - n_done, ..rows };
        let left_accs = self.empty(&mut room, n_cols);
        self.vectorized_columns(left, first + n_done, left_accs);
        self.merge(accs, left_accs);
    }

    /// Folds columns with the widest instructions.
    #[inline]
    fn vectorized_columns(&self, rows: Rows<'_, Compute<F>>, first: usize, accs: &mut [F::Acc]) {
        if rows.n_rows == 0 {
            return;
        }
        let fold = self.fold;
        simd::vectorize(
            #[inline(always)]
            move || fold.columns(rows, first, accs),
        );
    }
}

/// Cuts leaves into at most eight stretches of equal length, but for the last, as the children of a node of the tree.
fn children(leaves: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    const FAN_OUT: usize = 8;
    let mut span = 1;
    while span * FAN_OUT < leaves.len() {
        span *= FAN_OUT;
    }
    leaves.clone().step_by(span).map(move |start| start..leaves.end.min(start + span))
}

#[cfg(test)]
mod tests;
