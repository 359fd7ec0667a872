//! Operands: where the numbers of A and B come from, and how they are packed into panels.
//!
//! A and B are treated alike. A *lane* is what a product keeps of an operand (a row of A, a column of B), *depth*
//! is what it sums over. A panel holds a few lanes over a stretch of depth, with the lanes side by side, which
//! is the order in which a micro-kernel reads them. A convolution supplies its weights as an [`Operand`] of its own.

use std::ops::Range;

use crate::element::{Access, Element, Real};
use crate::isa::Kernels;
use crate::pack_kernel::Groups;
use crate::staging::Staging;
use crate::tile::MAX_WIDTH;

/// A source of packed panels.
pub(crate) trait Operand<T>: Sync {
    /// Packs the lanes `lanes` over the depths `depth` of product `batch` into `panel`.
    ///
    /// `panel` has `depth.len()` groups of `width` numbers, `width >= lanes.len()`. Number `i` of group `p` becomes
    /// lane `lanes.start + i` at depth `depth.start + p`, or zero beyond the last lane. Whatever was in `panel` is
    /// overwritten.
    fn pack(&self, batch: usize, lanes: Range<usize>, depth: Range<usize>, width: usize, panel: &mut [T]);
}

/// A matrix in memory with any strides: zero repeats a lane or a depth, negative walks backwards.
pub(crate) struct Strided<T: 'static> {
    /// The element of product 0, lane 0, depth 0.
    pub first: *const u8,
    /// Elements from one lane to the next.
    pub lane_stride: isize,
    /// Elements from one depth to the next.
    pub depth_stride: isize,
    /// Elements from one product of the batch to the next.
    pub batch_stride: isize,
    /// How elements are read.
    pub access: Access<T>,
    /// How they are transposed.
    pub kernels: &'static Kernels<T>,
}

// SAFETY: a strided matrix is only read, and whoever made it promised that it may be.
unsafe impl<T> Sync for Strided<T> {}

impl<T: Real> Strided<T> {
    /// A matrix of elements `E` with strides from one lane, depth and product to the next.
    pub fn new<E: Element<Real = T>>(
        first: *const E,
        strides: [isize; 3],
        kernels: &'static Kernels<T>,
    ) -> Self {
        let [lane_stride, depth_stride, batch_stride] = strides;
        let access = Access::of::<E>();
        Self { first: first.cast(), lane_stride, depth_stride, batch_stride, access, kernels }
    }

    /// The matrix with lanes for depths and depths for lanes.
    pub fn transposed(self) -> Self {
        Self { lane_stride: self.depth_stride, depth_stride: self.lane_stride, ..self }
    }

    /// The address of one element.
    ///
    /// # Safety
    /// The element must lie within the matrix.
    pub unsafe fn at(&self, batch: usize, lane: usize, depth: usize) -> *const u8 {
        let elements = batch as isize * self.batch_stride
            + lane as isize * self.lane_stride
            + depth as isize * self.depth_stride;
        // SAFETY: the caller promises that the element lies within the matrix.
        unsafe { self.first.offset(elements * self.access.size as isize) }
    }
}

impl<T: Real> Operand<T> for Strided<T> {
    fn pack(&self, batch: usize, lanes: Range<usize>, depth: Range<usize>, width: usize, panel: &mut [T]) {
        if self.lane_stride == 1 || self.depth_stride.unsigned_abs() > self.lane_stride.unsigned_abs() {
            self.pack_group_by_group(batch, lanes, depth, width, panel);
        } else {
            self.pack_lane_by_lane(batch, lanes, depth, width, panel);
        }
    }
}

impl<T: Real> Strided<T> {
    /// Packs a matrix whose lanes are nearer to each other in memory than its depths.
    fn pack_group_by_group(
        &self,
        batch: usize,
        lanes: Range<usize>,
        depth: Range<usize>,
        width: usize,
        panel: &mut [T],
    ) {
        if self.access.same && self.lane_stride == 1 {
            // SAFETY: the lanes and depths asked for lie within the matrix, and hold numbers `T`.
            return unsafe {
                let first = self.at(batch, lanes.start, depth.start).cast();
                let groups = Groups { first, stride: self.depth_stride, n_lanes: lanes.len() };
                (self.kernels.copy)(groups, width, panel);
            };
        }
        for (p, group) in depth.zip(panel.chunks_exact_mut(width)) {
            let (used, unused) = group.split_at_mut(lanes.len());
            // SAFETY: the lanes and depths asked for lie within the matrix.
            unsafe { (self.access.read)(self.at(batch, lanes.start, p), self.lane_stride, used) };
            unused.fill(T::default());
        }
    }

    /// Packs a matrix whose depths are nearer to each other in memory than its lanes.
    fn pack_lane_by_lane(
        &self,
        batch: usize,
        lanes: Range<usize>,
        depth: Range<usize>,
        width: usize,
        panel: &mut [T],
    ) {
        let n_lanes = lanes.len();
        let mut rows = [std::ptr::null(); MAX_WIDTH];
        if self.access.same && self.depth_stride == 1 {
            // SAFETY: the lanes and depths asked for lie within the matrix, and hold numbers `T`.
            unsafe {
                lanes.zip(&mut rows).for_each(|(lane, row)| *row = self.at(batch, lane, depth.start).cast());
                return (self.kernels.transpose)(&rows[..n_lanes], width, panel);
            }
        }
        const STRETCH: usize = 32;
        let mut staging = Staging::<T, MAX_WIDTH, STRETCH>::new();
        for start in depth.clone().step_by(STRETCH) {
            let len = STRETCH.min(depth.end - start);
            for ((lane, numbers), row) in lanes.clone().zip(staging.rows(n_lanes, len)).zip(&mut rows) {
                // SAFETY: the lanes and depths asked for lie within the matrix.
                unsafe { (self.access.read)(self.at(batch, lane, start), self.depth_stride, numbers) };
                *row = numbers.as_ptr();
            }
            let panel = &mut panel[(start - depth.start) * width..][..len * width];
            // SAFETY: each row has as many numbers as this stretch of the panel has groups.
            unsafe { (self.kernels.transpose)(&rows[..n_lanes], width, panel) };
        }
    }
}
