//! A matrix times a vector: products with one row or one column.
//!
//! Packing would read and write the matrix once more than the product itself, so nothing is packed but the
//! vector. The matrix is read along whichever of its sides lies side by side in memory. A long depth is cut into
//! parts whose sums are added in order afterwards, so that there are tasks even when there are few lanes.

use plimsoll_cpu::threads;

use crate::Shape;
use crate::element::{Element, Real};
use crate::isa::Kernels;
use crate::matvec_kernel::ByVector;
use crate::operand::Strided;
use crate::output::Output;
use crate::plan::part;
use crate::tasks::{Shared, each};

/// Most depth of a part.
const PART_DEPTH: usize = 4096;

/// Lanes of a task.
const TASK_LANES: usize = 512;

/// Numbers of a matrix below which a second thread does not pay.
const SERIAL_WORK: usize = 1 << 16;

/// The most products of a batch that run side by side.
const MAX_SIDE_BY_SIDE: usize = 16;

/// Numbers that are brought together on the stack when they do not lie side by side as they should.
const STAGED: usize = 4 * TASK_LANES;

/// How a product is cut up.
pub(crate) struct MatVecPlan {
    batch: usize,
    n_lanes: usize,
    depth: usize,
    /// Parts of the depth.
    parts: usize,
    /// Products of the batch that run at once, each on one thread; none means one after the other on all threads.
    side_by_side: Option<usize>,
    /// Bytes for one product: the vector, and a sum for each lane and part.
    bytes: usize,
}

impl MatVecPlan {
    /// The plan for products of elements `E`, if the shape is a matrix times a vector.
    pub fn new<E: Element>(shape: &Shape) -> Option<Self> {
        let n_lanes = match (shape.m, shape.n) {
            (m, 1) => m,
            (1, n) => n,
            _ => return None,
        };
        let parts = shape.k.div_ceil(PART_DEPTH).max(1);
        let work = n_lanes.saturating_mul(shape.k);
        let side_by_side = if work.saturating_mul(shape.batch) <= SERIAL_WORK {
            Some(1)
        } else if shape.batch > 1 && work <= 16 * SERIAL_WORK {
            Some(shape.batch.min(MAX_SIDE_BY_SIDE))
        } else {
            None
        };
        let bytes = ((shape.k + parts * n_lanes) * size_of::<E::Real>()).next_multiple_of(64);
        Some(Self { batch: shape.batch, n_lanes, depth: shape.k, parts, side_by_side, bytes })
    }

    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        self.bytes * self.side_by_side.unwrap_or(1)
    }
}

/// A batch of products, ready to be run.
pub(crate) struct MatVec<'a, T: 'static> {
    pub plan: MatVecPlan,
    pub kernels: &'static Kernels<T>,
    pub matrix: Strided<T>,
    /// A matrix with one lane.
    pub vector: Strided<T>,
    /// A matrix with one row and as many columns as there are lanes.
    pub output: Output<'a, T>,
}

impl<T: Real> MatVec<'_, T> {
    /// Runs all products of the batch.
    ///
    /// # Safety
    /// `workspace` must have the bytes that the plan asks for, aligned to 64, and C must be nobody else's.
    pub unsafe fn run(&self, workspace: *mut u8) {
        let batch = self.plan.batch;
        let memory = Shared(workspace);
        match self.plan.side_by_side {
            Some(n) => threads::parallel(n, |idx| {
                // SAFETY: the plan's workspace has room for each of them.
                let memory = unsafe { memory.get().add(idx * self.plan.bytes) }.cast();
                part(0..batch, n, idx).for_each(|idx| self.one(idx, true, memory));
            }),
            None => (0..batch).for_each(|idx| self.one(idx, false, memory.get().cast())),
        }
    }

    /// Runs one product.
    fn one(&self, batch: usize, serial: bool, memory: *mut T) {
        let MatVecPlan { n_lanes, depth, parts, .. } = self.plan;
        // SAFETY: the memory has room for the vector, and then for the sums.
        let (vector, sums) = unsafe {
            let vector = std::slice::from_raw_parts_mut(memory, depth);
            (self.vector.access.read)(self.vector.at(batch, 0, 0), self.vector.depth_stride, vector);
            (&*vector, Shared(memory.add(depth)))
        };
        let n_blocks = n_lanes.div_ceil(TASK_LANES);
        each(serial, n_blocks * parts, |task| {
            let lane = task % n_blocks * TASK_LANES;
            let depth = part(0..depth, parts, task / n_blocks);
            // SAFETY: each task has its own sums.
            unsafe {
                let sums = sums.get().add(task / n_blocks * n_lanes + lane);
                let sums = std::slice::from_raw_parts_mut(sums, TASK_LANES.min(n_lanes - lane));
                sums.fill(T::default());
                self.block(batch, lane, depth.start, &vector[depth], sums);
                if parts == 1 {
                    self.output.write_row(batch, 0, lane, sums);
                }
            }
        });
        if parts > 1 {
            // SAFETY: all sums are complete, and each lane's total is added up in place by its own task.
            each(serial, n_blocks, |block| unsafe {
                let lane = block * TASK_LANES;
                let total =
                    std::slice::from_raw_parts_mut(sums.get().add(lane), TASK_LANES.min(n_lanes - lane));
                for idx in 1..parts {
                    let part = std::slice::from_raw_parts(sums.get().add(idx * n_lanes + lane), total.len());
                    for (total, part) in total.iter_mut().zip(part) {
                        *total += *part;
                    }
                }
                self.output.write_row(batch, 0, lane, total);
            });
        }
    }

    /// Adds to each sum its lane's product with a stretch of the vector that begins at depth `start`.
    ///
    /// # Safety
    /// The lanes and depths must lie within the matrix.
    unsafe fn block(&self, batch: usize, lane: usize, start: usize, vector: &[T], sums: &mut [T]) {
        let matrix = &self.matrix;
        let along_lanes = matrix.lane_stride.unsigned_abs() < matrix.depth_stride.unsigned_abs();
        let (near, far) = match along_lanes {
            true => (matrix.lane_stride, matrix.depth_stride),
            false => (matrix.depth_stride, matrix.lane_stride),
        };
        let kernel = if along_lanes { self.kernels.combine } else { self.kernels.dots };
        if matrix.access.same && near == 1 {
            // SAFETY: the caller promises that the block lies within the matrix, whose elements are `T`.
            return unsafe {
                kernel(ByVector {
                    first: matrix.at(batch, lane, start).cast(),
                    stride: far,
                    n_lanes: sums.len(),
                    depth: vector.len(),
                    vector: vector.as_ptr(),
                    sums: sums.as_mut_ptr(),
                });
            };
        }
        let mut staged = [T::default(); STAGED];
        let (most_lanes, most_depth) = if along_lanes { (TASK_LANES, 4) } else { (4, TASK_LANES) };
        for (idx, sums) in sums.chunks_mut(most_lanes).enumerate() {
            let lane = lane + idx * most_lanes;
            for (idx, vector) in vector.chunks(most_depth).enumerate() {
                let start = start + idx * most_depth;
                let (n_far, n_near) =
                    if along_lanes { (vector.len(), sums.len()) } else { (sums.len(), vector.len()) };
                for (i, staged) in staged.chunks_mut(TASK_LANES).take(n_far).enumerate() {
                    let (lane, depth) = if along_lanes { (lane, start + i) } else { (lane + i, start) };
                    // SAFETY: as above.
                    unsafe {
                        (matrix.access.read)(matrix.at(batch, lane, depth), near, &mut staged[..n_near])
                    };
                }
                // SAFETY: the staged numbers are those of the block, in rows of equal length.
                unsafe {
                    kernel(ByVector {
                        first: staged.as_ptr(),
                        stride: TASK_LANES as isize,
                        n_lanes: sums.len(),
                        depth: vector.len(),
                        vector: vector.as_ptr(),
                        sums: sums.as_mut_ptr(),
                    });
                }
            }
        }
    }
}
