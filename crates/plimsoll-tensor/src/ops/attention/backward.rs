//! The backward kernel: tiles of scores are formed again, and each adds its part to all three gradients.
//!
//! Heads are computed side by side. Within one, blocks of keys are taken in order and for each of them the blocks of
//! queries, so that every sum has one order.

use std::ops::Range;

use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_gemm as gemm;

use super::tiles::{BLOCK, Extents, Matrices, Scoring, Tile, dot, matrix, turned, written};
use crate::ops::compute::{Access, Compute, cut, pieces_len};

/// Bytes of scratch memory of all lanes; there is one lane at least.
const MAX_BYTES: usize = 16 << 20;

/// One call of the kernel.
pub(super) struct Backward<C> {
    pub extents: Extents,
    /// The gradient of the output, and the output.
    pub gradient: Matrices<C>,
    pub output: Matrices<C>,
    pub q: Matrices<C>,
    pub k: Matrices<C>,
    pub v: Matrices<C>,
    /// The logarithms of the sums of exponentials: a column for each head.
    pub log_sums: Matrices<C>,
    pub scoring: Scoring<C>,
    /// The gradients of queries, keys and values, row-major, and how they are written.
    pub results: [SharedPtr<u8>; 3],
    pub access: Access<C>,
}

/// The scratch memory of one lane.
struct Scratch<C> {
    /// Weights of a tile, then the gradients of its scores; and the gradients of the weights.
    weights: *mut C,
    score_grads: *mut C,
    /// For each query, its logarithm, and the product of its output and the output's gradient.
    log_sums: *mut C,
    dots: *mut C,
    /// Tiles of operands that are narrower than the compute type.
    widened: *mut C,
    /// Sums of results that are narrower than the compute type.
    sums: *mut C,
    /// For the products, and its length in bytes.
    products: *mut C,
    products_len: usize,
}

/// The lengths of a lane's pieces of scratch memory, in the order of [`Scratch`].
fn lens<C: Compute>(extents: &Extents, widens: bool) -> [usize; 7] {
    let Extents { n_queries, n_keys, depth, width, .. } = *extents;
    let [rows, cols] = extents.tile();
    let products = extents.product_bytes::<C, 5>(|m, n| {
        [[m, n, depth], [m, n, width], [n, width, m], [n, depth, m], [m, depth, n]]
    });
    let if_widened = |len: usize| if widens { len } else { 0 };
    [
        rows * cols,
        rows * cols,
        n_queries,
        n_queries,
        if_widened((rows + cols) * (depth + width)),
        if_widened(n_queries * depth + n_keys * (depth + width)),
        products.div_ceil(size_of::<C>()),
    ]
}

fn n_lanes<C: Compute>(extents: &Extents, widens: bool) -> usize {
    let bytes = pieces_len(lens::<C>(extents, widens)) * size_of::<C>();
    extents.n_lanes(extents.n_heads()).min((MAX_BYTES / bytes.max(1)).max(1))
}

/// Bytes of scratch memory of all lanes; `widens` says that operands are narrower than the compute type.
pub(super) fn workspace<C: Compute>(extents: &Extents, widens: bool) -> usize {
    n_lanes::<C>(extents, widens) * pieces_len(lens::<C>(extents, widens)) * size_of::<C>()
}

/// One head on its way.
struct Head<'a, C> {
    idx: usize,
    scratch: &'a Scratch<C>,
    /// The sums of the gradients of queries, keys and values.
    sums: [*mut C; 3],
}

impl<C: Compute> Backward<C> {
    /// Computes all gradients.
    ///
    /// # Safety
    /// The operands must be as the extents say, and `workspace` as long as [`workspace`] says.
    pub unsafe fn run(&self, workspace: *mut u8) {
        let widens = !self.access.is_same;
        let n_lanes = n_lanes::<C>(&self.extents, widens);
        let lens = lens::<C>(&self.extents, widens);
        let workspace = SharedPtr::new(workspace.cast::<C>());
        threads::parallel(n_lanes, |lane| {
            // SAFETY: every lane has a stretch of the workspace to itself.
            let pieces = unsafe { cut(workspace.get().add(lane * pieces_len(lens)), lens) };
            let [weights, score_grads, log_sums, dots, widened, sums, products] = pieces;
            let products_len = lens[6] * size_of::<C>();
            let scratch =
                Scratch { weights, score_grads, log_sums, dots, widened, sums, products, products_len };
            // The products of tiles are too small to be shared among threads.
            threads::with_threads(1, || {
                for head in (lane..self.extents.n_heads()).step_by(n_lanes) {
                    // SAFETY: nobody else computes this head, or has this scratch memory.
                    unsafe { self.head(head, &scratch) };
                }
            });
        });
    }

    /// The lengths of one head's gradients of queries, keys and values.
    fn result_lens(&self) -> [usize; 3] {
        let Extents { n_queries, n_keys, depth, width, .. } = self.extents;
        [n_queries * depth, n_keys * depth, n_keys * width]
    }

    /// Computes the gradients of one head.
    ///
    /// # Safety
    /// The head must be one of the operands', the scratch memory nobody else's.
    unsafe fn head(&self, idx: usize, scratch: &Scratch<C>) {
        let Extents { n_queries, n_keys, .. } = self.extents;
        let lens = self.result_lens();
        let mut places =
            [0, 1, 2].map(|of| self.results[of].get().wrapping_add(idx * lens[of] * self.access.size));
        let mut sums = places.map(<*mut u8>::cast::<C>);
        if !self.access.is_same {
            sums = [0, lens[0], lens[0] + lens[1]].map(|start| scratch.sums.wrapping_add(start));
        }
        // SAFETY: the results and the scratch memory have room for each head's sums and rows.
        unsafe {
            for (sums, len) in sums.iter().zip(lens) {
                std::slice::from_raw_parts_mut(*sums, len).fill(C::ZERO);
            }
            for row in 0..n_queries {
                self.log_sums.read(idx, row, 0, std::slice::from_mut(&mut *scratch.log_sums.add(row)));
                *scratch.dots.add(row) = self.product_with_output(idx, row);
            }
            let head = Head { idx, scratch, sums };
            for start in (0..n_keys).step_by(BLOCK) {
                self.keys(&head, start..n_keys.min(start + BLOCK));
            }
            if !self.access.is_same {
                for ((sums, len), place) in sums.iter().zip(lens).zip(&mut places) {
                    (self.access.write)(std::slice::from_raw_parts(*sums, len), *place);
                }
            }
        }
    }

    /// The product of a row of the output and its gradient.
    ///
    /// # Safety
    /// The row must be the head's.
    unsafe fn product_with_output(&self, head: usize, row: usize) -> C {
        let (mut lhs, mut rhs) = ([C::ZERO; BLOCK], [C::ZERO; BLOCK]);
        let mut sum = C::ZERO;
        for start in (0..self.extents.width).step_by(BLOCK) {
            let len = BLOCK.min(self.extents.width - start);
            // SAFETY: the stretch is a part of the row.
            unsafe {
                self.gradient.read(head, row, start, &mut lhs[..len]);
                self.output.read(head, row, start, &mut rhs[..len]);
            }
            sum += dot(&lhs[..len], &rhs[..len]);
        }
        sum
    }

    /// Adds the parts of a block of keys.
    ///
    /// # Safety
    /// See [`Backward::head`]; the columns must be some of the keys.
    unsafe fn keys(&self, head: &Head<'_, C>, cols: Range<usize>) {
        let Extents { n_queries, n_keys, depth, width, .. } = self.extents;
        let [_, n_cols] = self.extents.tile();
        let for_v = head.scratch.widened.wrapping_add(n_cols * depth);
        let for_rows = for_v.wrapping_add(n_cols * width);
        // SAFETY: the caller promises the columns, and the widened tiles have room.
        let operands = unsafe {
            [
                self.k.rows(head.idx, cols.clone(), head.scratch.widened),
                self.v.rows(head.idx, cols.clone(), for_v),
            ]
        };
        for start in (0..n_queries).step_by(BLOCK) {
            let rows = start..n_queries.min(start + BLOCK);
            if self.scoring.visible(&rows, n_keys) > cols.start {
                let tile = Tile { head: head.idx, rows, cols: cols.clone() };
                // SAFETY: the tile is one of the head's.
                unsafe { self.tile(head, &tile, operands, for_rows) };
            }
        }
    }

    /// Adds the parts of one tile.
    ///
    /// # Safety
    /// See [`Backward::keys`]; `for_rows` must have room for the rows of two operands if they are narrow.
    unsafe fn tile(&self, head: &Head<'_, C>, tile: &Tile, [k, v]: [gemm::MatRef<C>; 2], for_rows: *mut C) {
        let Extents { depth, width, .. } = self.extents;
        let (m, n) = (tile.rows.len(), tile.cols.len());
        let scratch = head.scratch;
        let [dq, dk, dv] = head.sums;
        let add = gemm::Epilogue { accumulate: true, ..gemm::Epilogue::NONE };
        // SAFETY: the tile lies within the operands, the sums and the mask; the pieces have room for a tile.
        unsafe {
            let q = self.q.rows(tile.head, tile.rows.clone(), for_rows);
            let gradient = self.gradient.rows(tile.head, tile.rows.clone(), for_rows.wrapping_add(m * depth));
            let memory = std::slice::from_raw_parts_mut(scratch.products.cast::<u8>(), scratch.products_len);
            let mut multiply = |[m, n, k]: [usize; 3], a, b, c, epilogue: &_| {
                gemm::gemm(&gemm::Shape { batch: 1, m, n, k }, a, b, c, epilogue, memory);
            };
            let (weights_to, score_grads_to) = (matrix(scratch.weights, n), matrix(scratch.score_grads, n));
            multiply([m, n, depth], q, turned(k), weights_to, &gemm::Epilogue::NONE);
            multiply([m, n, width], gradient, turned(v), score_grads_to, &gemm::Epilogue::NONE);
            let weights = std::slice::from_raw_parts_mut(scratch.weights, m * n);
            self.scoring.finish(tile, weights);
            weigh(weights, n, std::slice::from_raw_parts(scratch.log_sums.add(tile.rows.start), m));
            let of_weights = written(&weights_to);
            multiply(
                [n, width, m],
                turned(of_weights),
                gradient,
                matrix(dv.add(tile.cols.start * width), width),
                &add,
            );
            let score_grads = std::slice::from_raw_parts(scratch.score_grads.cast_const(), m * n);
            let weights = std::slice::from_raw_parts_mut(scratch.weights, m * n);
            let dots = std::slice::from_raw_parts(scratch.dots.add(tile.rows.start), m);
            score_grad(weights, n, score_grads, dots, self.scoring.scale);
            multiply(
                [n, depth, m],
                turned(of_weights),
                q,
                matrix(dk.add(tile.cols.start * depth), depth),
                &add,
            );
            multiply([m, depth, n], of_weights, k, matrix(dq.add(tile.rows.start * depth), depth), &add);
        }
    }
}

/// Turns scores into weights: exponentials below the logarithms of the rows' sums.
#[inline(never)]
fn weigh<C: Compute>(scores: &mut [C], n_cols: usize, log_sums: &[C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (row, &log_sum) in scores.chunks_exact_mut(n_cols).zip(log_sums) {
                for score in row {
                    *score = (*score - log_sum).exp();
                }
            }
        },
    );
}

/// Turns weights into the gradients of raw products, from the gradients of the weights.
#[inline(never)]
fn score_grad<C: Compute>(weights: &mut [C], n_cols: usize, score_grads: &[C], dots: &[C], scale: C) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((weights, score_grads), &dot) in
                weights.chunks_exact_mut(n_cols).zip(score_grads.chunks_exact(n_cols)).zip(dots)
            {
                for (weight, &score_grad) in weights.iter_mut().zip(score_grads) {
                    *weight = *weight * (score_grad - dot) * scale;
                }
            }
        },
    );
}
