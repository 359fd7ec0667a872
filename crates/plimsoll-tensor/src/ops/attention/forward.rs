//! The forward kernel: blocks of queries against blocks of keys, with a running maximum and sum.

use std::ops::Range;

use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_cpu::{element::Number, math::Real, simd};
use plimsoll_gemm as gemm;

use super::tiles::{BLOCK, Extents, Matrices, Scoring, Tile, matrix, turned, written};
use crate::ops::compute::{Access, Compute, cut, pieces_len};

/// One call of the kernel.
pub(super) struct Forward<C> {
    pub extents: Extents,
    pub q: Matrices<C>,
    pub k: Matrices<C>,
    pub v: Matrices<C>,
    pub scoring: Scoring<C>,
    /// The output, row-major, and how it is written.
    pub output: SharedPtr<u8>,
    pub access: Access<C>,
    /// The logarithm of the sum of exponentials of each row; null if nobody reads it.
    pub log_sums: SharedPtr<C>,
}

/// The scratch memory of one lane.
struct Scratch<C> {
    scores: *mut C,
    sums: *mut C,
    greatest: *mut C,
    totals: *mut C,
    q: *mut C,
    k: *mut C,
    v: *mut C,
    products: *mut C,
}

/// The lengths of a lane's pieces of scratch memory, in the order of [`Scratch`].
fn lens<C: Compute>(extents: &Extents, widens: bool) -> [usize; 8] {
    let Extents { depth, width, .. } = *extents;
    let [rows, cols] = extents.tile();
    let products = extents.product_bytes::<C, 2>(|m, n| [[m, n, depth], [m, width, n]]);
    let widened = usize::from(widens);
    [
        rows * cols,
        rows * width,
        rows,
        rows,
        widened * rows * depth,
        widened * cols * depth,
        widened * cols * width,
        products.div_ceil(size_of::<C>()),
    ]
}

/// Bytes of scratch memory of all lanes; `widens` says that operands are narrower than the compute type.
pub(super) fn workspace<C: Compute>(extents: &Extents, widens: bool) -> usize {
    let n_tasks = extents.n_heads() * extents.n_blocks();
    extents.n_lanes(n_tasks) * pieces_len(lens::<C>(extents, widens)) * size_of::<C>()
}

impl<C: Compute> Forward<C> {
    /// Computes all outputs.
    ///
    /// # Safety
    /// The operands must be as the extents say, and `workspace` as long as [`workspace`] says.
    pub unsafe fn run(&self, workspace: *mut u8) {
        let n_tasks = self.extents.n_heads() * self.extents.n_blocks();
        let n_lanes = self.extents.n_lanes(n_tasks);
        let lens = lens::<C>(&self.extents, !self.access.is_same);
        let workspace = SharedPtr::new(workspace.cast::<C>());
        threads::parallel(n_lanes, |lane| {
            // SAFETY: every lane has a stretch of the workspace to itself.
            let scratch = unsafe {
                let [scores, sums, greatest, totals, q, k, v, products] =
                    cut(workspace.get().add(lane * pieces_len(lens)), lens);
                Scratch { scores, sums, greatest, totals, q, k, v, products }
            };
            let products_len = lens[7] * size_of::<C>();
            // The products of tiles are too small to be shared among threads.
            threads::with_threads(1, || {
                for task in (lane..n_tasks).step_by(n_lanes) {
                    let start = task % self.extents.n_blocks() * BLOCK;
                    let rows = start..self.extents.n_queries.min(start + BLOCK);
                    // SAFETY: the rows are some of the head's, and nobody else computes them.
                    unsafe { self.block(task / self.extents.n_blocks(), rows, &scratch, products_len) };
                }
            });
        });
    }

    /// Computes the outputs of one block of queries.
    ///
    /// # Safety
    /// The rows must be the head's; the scratch memory must be nobody else's.
    unsafe fn block(&self, head: usize, rows: Range<usize>, scratch: &Scratch<C>, products_len: usize) {
        let Extents { n_keys, depth, width, .. } = self.extents;
        let n_rows = rows.len();
        // SAFETY: the pieces have these lengths.
        let (sums, greatest, totals, products, q) = unsafe {
            (
                std::slice::from_raw_parts_mut(scratch.sums, n_rows * width),
                std::slice::from_raw_parts_mut(scratch.greatest, n_rows),
                std::slice::from_raw_parts_mut(scratch.totals, n_rows),
                std::slice::from_raw_parts_mut(scratch.products.cast::<u8>(), products_len),
                self.q.rows(head, rows.clone(), scratch.q),
            )
        };
        sums.fill(C::ZERO);
        greatest.fill(C::LEAST);
        totals.fill(C::ZERO);
        let visible = self.scoring.visible(&rows, n_keys);
        for start in (0..visible).step_by(BLOCK) {
            let cols = start..n_keys.min(start + BLOCK);
            let n_cols = cols.len();
            // SAFETY: the columns are some of the head's keys; the pieces have room for a tile.
            unsafe {
                let k = self.k.rows(head, cols.clone(), scratch.k);
                let v = self.v.rows(head, cols.clone(), scratch.v);
                let shape = gemm::Shape { batch: 1, m: n_rows, n: n_cols, k: depth };
                let weights = matrix(scratch.scores, n_cols);
                gemm::gemm(&shape, q, turned(k), weights, &gemm::Epilogue::NONE, products);
                let scores = std::slice::from_raw_parts_mut(scratch.scores, n_rows * n_cols);
                self.scoring.finish(&Tile { head, rows: rows.clone(), cols }, scores);
                absorb(scores, n_cols, greatest, totals, sums, width);
                let shape = gemm::Shape { batch: 1, m: n_rows, n: width, k: n_cols };
                let add = gemm::Epilogue { accumulate: true, ..gemm::Epilogue::NONE };
                gemm::gemm(&shape, written(&weights), v, matrix(scratch.sums, width), &add, products);
            }
        }
        // SAFETY: the rows of the output are this task's own.
        unsafe { self.write(head, &rows, greatest, totals, sums) };
    }

    /// Divides the sums by the totals and writes them. A query that may see no key gets zeros, and an infinite
    /// logarithm, so that backward finds weights of zero.
    ///
    /// # Safety
    /// The rows must be the head's, and written by nobody else.
    unsafe fn write(&self, head: usize, rows: &Range<usize>, greatest: &[C], totals: &[C], sums: &mut [C]) {
        let Extents { n_queries, width, .. } = self.extents;
        for (idx, row) in rows.clone().enumerate() {
            let (total, place) = (totals[idx], head * n_queries + row);
            let is_blind = total == C::ZERO;
            let factor = if is_blind { C::ZERO } else { total.recip() };
            let sums = &mut sums[idx * width..][..width];
            sums.iter_mut().for_each(|sum| *sum = *sum * factor);
            // SAFETY: the output has a row at this place.
            unsafe { (self.access.write)(sums, self.output.get().add(place * width * self.access.size)) };
            if !self.log_sums.get().is_null() {
                let log_sum = if is_blind { C::GREATEST } else { greatest[idx] + total.ln() };
                // SAFETY: there is one logarithm for each row.
                unsafe { *self.log_sums.get().add(place) = log_sum };
            }
        }
    }
}

/// Turns a tile of scores into exponentials below the rows' greatest scores so far, and fades what was summed up
/// before to the same reference.
#[inline(never)]
fn absorb<C: Compute>(
    scores: &mut [C],
    n_cols: usize,
    greatest: &mut [C],
    totals: &mut [C],
    sums: &mut [C],
    width: usize,
) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (idx, row) in scores.chunks_exact_mut(n_cols).enumerate() {
                let high = in_lanes(row, greatest[idx], |score, _| score, Number::max);
                // A row that has seen nothing yet has no finite score to compare with.
                let reference = if high == C::LEAST { C::ZERO } else { high };
                for score in row.iter_mut() {
                    *score = Real::exp(*score - reference);
                }
                let fade = Real::exp(greatest[idx] - reference);
                totals[idx] = totals[idx] * fade + in_lanes(row, C::ZERO, |x, _| x, |a, b| a + b);
                greatest[idx] = high;
                for sum in &mut sums[idx * width..][..width] {
                    *sum = *sum * fade;
                }
            }
        },
    );
}
