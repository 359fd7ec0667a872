//! What the attention kernels share: extents, tiles of operands and the work on scores.
//!
//! Scores exist one tile at a time, so memory is linear in the sequence. Operands that compute as themselves are
//! multiplied where they lie, whatever their strides; narrower ones are widened tile by tile.

use std::ops::Range;

use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_gemm as gemm;

use crate::base::error::Result;
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::op::{self, Meta, saturating_product};
use crate::ops::compute::{Access, Compute};

/// Rows and columns of a tile of scores: two of them and their operands stay in the second-level cache.
pub(super) const BLOCK: usize = 64;

/// The most tasks that have scratch memory of their own; further ones take turns.
const MAX_LANES: usize = 16;

/// Multiply-adds below which a second thread does not pay.
const SERIAL_WORK: usize = 1 << 17;

/// The extents of all operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    /// The dimensions before the last two; all operands have them.
    pub lead: Shape,
    /// Queries and keys.
    pub n_queries: usize,
    pub n_keys: usize,
    /// The length of a query and a key, and of a value.
    pub depth: usize,
    pub width: usize,
}

impl Extents {
    /// The extents of a query, a key and a value tensor that `infer` has checked.
    pub fn of(q: &Meta, k: &Meta, v: &Meta) -> Extents {
        let rank = q.shape().rank();
        Extents {
            lead: q.shape().leading(rank - 2),
            n_queries: q.shape()[rank - 2],
            n_keys: k.shape()[rank - 2],
            depth: q.shape()[rank - 1],
            width: v.shape()[rank - 1],
        }
    }

    /// Heads, counted over all leading dimensions.
    pub fn n_heads(&self) -> usize {
        self.lead.n_elems()
    }

    /// A shape of the leading dimensions and these.
    ///
    /// # Errors
    /// More elements than can be counted.
    pub fn with<const N: usize>(&self, dims: [usize; N]) -> Result<Shape> {
        self.lead.followed_by(&dims)
    }

    /// Blocks of queries.
    pub fn n_blocks(&self) -> usize {
        self.n_queries.div_ceil(BLOCK)
    }

    /// Floating-point operations of the two products of forward; causal attention does half of them. Each score is made, also
    /// where it is of nothing.
    pub fn flops(&self, causal: bool) -> u64 {
        let length = (self.depth + self.width).max(1);
        let factors = [2, self.n_heads(), self.n_queries, self.n_keys, length];
        saturating_product(factors) / if causal { 2 } else { 1 }
    }

    /// Rows and columns of the largest tile of scores.
    pub fn tile(&self) -> [usize; 2] {
        [self.n_queries.min(BLOCK), self.n_keys.min(BLOCK)]
    }

    /// How many tasks run side by side, each with scratch memory of its own, out of `n_tasks`.
    pub fn n_lanes(&self, n_tasks: usize) -> usize {
        let work = saturating_product([self.n_heads(), self.n_queries, self.n_keys, self.depth + self.width]);
        if work <= SERIAL_WORK as u64 { n_tasks.min(1) } else { n_tasks.min(MAX_LANES) }
    }

    /// Bytes that the products of tiles need: `product` gives the shape of each from the rows and columns of a tile.
    pub fn product_bytes<C: Compute, const N: usize>(
        &self,
        products: impl Fn(usize, usize) -> [[usize; 3]; N],
    ) -> usize {
        let sizes = |n: usize| [n.min(BLOCK), n % BLOCK];
        let tiles = sizes(self.n_queries).map(|rows| sizes(self.n_keys).map(|cols| products(rows, cols)));
        let bytes = |&[m, n, k]: &[usize; 3]| gemm::workspace::<C>(&gemm::Shape { batch: 1, m, n, k });
        tiles.iter().flatten().flatten().map(bytes).max().unwrap_or(0)
    }
}

/// The access to truth values, as what is added to scores: nothing where true, minus infinity where false.
pub(super) fn truths<C: Compute>() -> Access<C> {
    Access { size: 1, is_same: false, read: read_truths::<C>, write: |_, _| {} }
}

/// # Safety
/// Every element that the stride leads to must be readable.
unsafe fn read_truths<C: Compute>(from: *const u8, stride: isize, to: &mut [C]) {
    for (idx, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller promises that the elements are readable.
        let truth = unsafe { *from.offset(idx as isize * stride) };
        *to = if truth != 0 { C::ZERO } else { C::LEAST };
    }
}

/// A matrix for each head.
pub(super) struct Matrices<C> {
    first: *const u8,
    layout: Layout,
    access: Access<C>,
}

// SAFETY: the matrices are only read, and `execute` hands out operands that are valid while the op runs.
unsafe impl<C> Sync for Matrices<C> {}

impl<C: Compute> Matrices<C> {
    /// The matrices of an operand of two dimensions or more.
    pub fn new(operand: &op::Operand, access: Access<C>) -> Matrices<C> {
        Matrices { first: operand.ptr().cast_const(), layout: operand.meta.layout, access }
    }

    /// The vectors of an operand of one dimension or more, each as a column.
    pub fn columns(operand: &op::Operand, access: Access<C>) -> Matrices<C> {
        let layout = operand.meta.layout.unsqueezed(operand.shape().rank());
        Matrices { first: operand.ptr().cast_const(), layout, access }
    }

    fn strides(&self) -> [isize; 2] {
        let rank = self.layout.strides().len();
        [self.layout.strides()[rank - 2], self.layout.strides()[rank - 1]]
    }

    /// The address of an element.
    fn at(&self, head: usize, row: usize, col: usize) -> *const u8 {
        let (dims, strides) = (self.layout.shape().dims(), self.layout.strides());
        let rank = dims.len();
        let mut elements = row as isize * strides[rank - 2] + col as isize * strides[rank - 1];
        let mut rest = head;
        for axis in (0..rank - 2).rev() {
            elements += (rest % dims[axis]) as isize * strides[axis];
            rest /= dims[axis];
        }
        self.first.wrapping_offset(elements * self.access.size as isize)
    }

    /// Some rows of a head's matrix: where they lie, or widened into `scratch`.
    ///
    /// # Safety
    /// The rows must be the head's, and `scratch` must have room for them if the elements are narrow.
    pub unsafe fn rows(&self, head: usize, rows: Range<usize>, scratch: *mut C) -> gemm::MatRef<C> {
        let [row_stride, col_stride] = self.strides();
        if self.access.is_same {
            let first = self.at(head, rows.start, 0).cast();
            return gemm::MatRef { first, row_stride, col_stride, batch_stride: 0 };
        }
        let n_cols = self.layout.shape()[self.layout.shape().rank() - 1];
        for (idx, row) in rows.enumerate() {
            // SAFETY: the caller promises the row and the room.
            unsafe {
                let to = std::slice::from_raw_parts_mut(scratch.add(idx * n_cols), n_cols);
                (self.access.read)(self.at(head, row, 0), col_stride, to);
            }
        }
        gemm::MatRef { first: scratch, row_stride: n_cols as isize, col_stride: 1, batch_stride: 0 }
    }

    /// Reads a stretch of a row of a head's matrix.
    ///
    /// # Safety
    /// The stretch must lie within the matrix.
    pub unsafe fn read(&self, head: usize, row: usize, col: usize, to: &mut [C]) {
        // SAFETY: the caller promises the stretch.
        unsafe { (self.access.read)(self.at(head, row, col), self.strides()[1], to) }
    }
}

/// A tile of scores: queries `rows` against keys `cols`.
pub(super) struct Tile {
    pub head: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

/// What becomes of raw products of queries and keys.
pub(super) struct Scoring<C> {
    pub causal: bool,
    pub scale: C,
    /// Added to the scores.
    pub mask: Option<Matrices<C>>,
}

impl<C: Compute> Scoring<C> {
    /// The keys that some queries may see.
    pub fn visible(&self, rows: &Range<usize>, n_keys: usize) -> usize {
        if self.causal { rows.end.min(n_keys) } else { n_keys }
    }

    /// Scales and masks a tile of products.
    ///
    /// # Safety
    /// The tile must lie within the mask.
    pub unsafe fn finish(&self, tile: &Tile, scores: &mut [C]) {
        let scale = self.scale;
        simd::vectorize(
            #[inline(always)]
            || scores.iter_mut().for_each(|score| *score = *score * scale),
        );
        let cuts = self.causal && tile.cols.end > tile.rows.start + 1;
        if self.mask.is_none() && !cuts {
            return;
        }
        let mut added = [C::ZERO; BLOCK];
        let added = &mut added[..tile.cols.len()];
        for (row, scores) in tile.rows.clone().zip(scores.chunks_exact_mut(tile.cols.len())) {
            if let Some(mask) = &self.mask {
                // SAFETY: the caller promises that the tile lies within the mask.
                unsafe { mask.read(tile.head, row, tile.cols.start, added) };
                scores.iter_mut().zip(&*added).for_each(|(score, &added)| *score += added);
            }
            if self.causal {
                let seen = (row + 1).saturating_sub(tile.cols.start).min(scores.len());
                scores[seen..].fill(C::LEAST);
            }
        }
    }
}

/// A row-major matrix of so many columns, to be written.
pub(super) fn matrix<C>(first: *mut C, n_cols: usize) -> gemm::MatMut<C> {
    gemm::MatMut { first, row_stride: n_cols as isize, col_stride: 1, batch_stride: 0 }
}

/// A matrix that was written, to be read.
pub(super) fn written<C>(matrix: &gemm::MatMut<C>) -> gemm::MatRef<C> {
    let gemm::MatMut { first, row_stride, col_stride, batch_stride } = *matrix;
    gemm::MatRef { first, row_stride, col_stride, batch_stride }
}

/// A matrix with rows and columns exchanged.
pub(super) fn turned<C>(matrix: gemm::MatRef<C>) -> gemm::MatRef<C> {
    gemm::MatRef { row_stride: matrix.col_stride, col_stride: matrix.row_stride, ..matrix }
}

/// The sum of products of two rows.
pub(super) fn dot<C: Compute>(lhs: &[C], rhs: &[C]) -> C {
    simd::vectorize(
        #[inline(always)]
        || in_lanes(lhs, C::ZERO, |x, idx| x * rhs[idx], |a, b| a + b),
    )
}
