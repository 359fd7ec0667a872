//! What the kernels of both directions share: extents, how the batch is divided, rows of operands, packed weights.
//!
//! Examples do not depend on each other, so a task takes some of them through the whole sequence: threads never wait
//! for each other between steps, and what a task works on stays in its cache.

use std::ops::Range;

use plimsoll_cpu::element::Element as Stored;
use plimsoll_gemm::{self as gemm, PackedB};
use smallvec::SmallVec;

use super::cell::{Cell, GateGroup};
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Operand, saturating_product};
use crate::ops::compute::{Access, Compute};

/// About the rows of a task: with fewer the weights are read too often, with more there are too few tasks.
const TASK_ROWS: usize = 16;

/// Multiply-adds of a whole sequence below which a second thread does not pay.
const SERIAL_WORK: usize = 1 << 18;

/// The most tasks that have scratch memory of their own; further ones take turns.
const MAX_LANES: usize = 16;

/// The extents of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub cell: Cell,
    pub batch: usize,
    pub steps: usize,
    pub features: usize,
    pub hidden: usize,
}

impl Extents {
    /// Numbers of the weights' columns.
    pub fn gates(&self) -> usize {
        self.cell.n_gates() * self.hidden
    }

    /// Numbers that are saved of a step of one example.
    pub fn saved(&self) -> usize {
        self.cell.n_saved() * self.hidden
    }

    /// The shape of all numbers that are saved.
    ///
    /// # Errors
    /// More than can be counted.
    pub fn saved_shape(&self) -> Result<Shape> {
        Shape::new(&[self.batch, self.steps, self.saved()])
    }

    /// Numbers of a cell state beside the hidden state.
    pub fn cell_state(&self) -> usize {
        (self.cell.n_states() - 1) * self.hidden
    }

    /// Floating-point operations of the products of inputs (or outputs) and hidden states.
    pub fn flops(&self) -> u64 {
        saturating_product([2, self.batch, self.steps, self.gates(), self.features + self.hidden])
    }

    /// How many tasks the batch is divided into: by shape alone, and a number that few threads share evenly.
    pub fn n_tasks(&self) -> usize {
        if self.flops() / 2 <= SERIAL_WORK as u64 {
            return self.batch.min(1);
        }
        let n_tasks = self.batch.div_ceil(TASK_ROWS);
        n_tasks.next_multiple_of(if n_tasks <= 2 { 2 } else { 4 }).min(self.batch)
    }

    /// How many tasks run side by side, each with scratch memory of its own.
    pub fn n_lanes(&self) -> usize {
        self.n_tasks().min(MAX_LANES)
    }

    /// The most examples of a task.
    pub fn most_rows(&self) -> usize {
        self.batch.div_ceil(self.n_tasks().max(1))
    }

    /// The examples of a task.
    pub fn rows(&self, task: usize) -> Range<usize> {
        let n_tasks = self.n_tasks();
        self.batch * task / n_tasks..self.batch * (task + 1) / n_tasks
    }

    /// Numbers of the packed recurrent weights, part by part; with rows and columns exchanged if `turned`.
    pub fn parts_len<C: Compute>(&self, turned: bool) -> [usize; 2] {
        let mut lens = [0; 2];
        for (len, part) in lens.iter_mut().zip(self.cell.gate_groups()) {
            let n = part.n_gates * self.hidden;
            let (k, n) = if turned { (n, self.hidden) } else { (self.hidden, n) };
            *len = PackedB::<C>::bytes(k, n) / size_of::<C>();
        }
        lens
    }
}

/// Rows of numbers, one for each example and step.
pub(super) struct Rows<C> {
    first: *mut u8,
    /// Elements from one example, step and number to the next.
    strides: [isize; 3],
    access: Access<C>,
}

// SAFETY: an address is only a number; what is read and written through it is promised where that happens.
unsafe impl<C> Sync for Rows<C> {}

impl<C: Compute> Rows<C> {
    /// The rows of an operand `[batch, steps, n]`, or `[batch, n]` with the same row at every step.
    pub fn new<T: Stored<Compute = C>>(operand: &Operand<'_>) -> Rows<C> {
        let strides = match *operand.meta.layout.strides() {
            [row, step, number] => [row, step, number],
            [row, number] => [row, 0, number],
            _ => unreachable!("`infer` checks the ranks"),
        };
        Rows { first: operand.ptr(), strides, access: Access::floats::<T>() }
    }

    /// The single row of an operand of one dimension.
    pub fn row<T: Stored<Compute = C>>(operand: &Operand<'_>) -> Rows<C> {
        let strides = [0, 0, operand.meta.layout.strides()[0]];
        Rows { first: operand.ptr(), strides, access: Access::floats::<T>() }
    }

    fn at(&self, row: usize, step: usize) -> *mut u8 {
        let elements = row as isize * self.strides[0] + step as isize * self.strides[1];
        self.first.wrapping_offset(elements * self.access.size as isize)
    }

    /// Reads a row.
    ///
    /// # Safety
    /// The operand must have this row, and nobody may write to it at the same time.
    pub unsafe fn read(&self, row: usize, step: usize, to: &mut [C]) {
        // SAFETY: the caller promises the row.
        unsafe { (self.access.read)(self.at(row, step), self.strides[2], to) }
    }

    /// Writes a row.
    ///
    /// # Safety
    /// The operand must be an output that has this row, and nobody else may touch it at the same time.
    pub unsafe fn write(&self, row: usize, step: usize, from: &[C]) {
        // SAFETY: the caller promises the row, and outputs are row-major.
        unsafe { (self.access.write)(from, self.at(row, step)) }
    }
}

/// The recurrent weights, packed part by part.
pub(super) type PackedGateGroups<'a, C> = SmallVec<[(&'static GateGroup, PackedB<'a, C>); 2]>;

/// Packs the recurrent weights into `memory`, as [`Extents::parts_len`] says.
///
/// # Safety
/// The operand must be the weights `[hidden, gates]`, and the memory the caller's own.
pub(super) unsafe fn pack_parts<'a, T>(
    extents: &Extents,
    weights: &Operand<'_>,
    turned: bool,
    memory: [&'a mut [T::Real]; 2],
) -> PackedGateGroups<'a, T::Real>
where
    T: gemm::Element<Real: Compute>,
{
    let hidden = extents.hidden;
    let mut parts = PackedGateGroups::new();
    for (part, memory) in extents.cell.gate_groups().iter().zip(memory) {
        let mut columns = matrix_of::<T>(weights);
        columns.first = columns.first.wrapping_offset((part.gate * hidden) as isize * columns.col_stride);
        let n = part.n_gates * hidden;
        let (weights, k, n) = if turned { (exchanged(columns), n, hidden) } else { (columns, hidden, n) };
        // SAFETY: the columns are some of the weights'.
        parts.push((part, unsafe { PackedB::pack(weights, k, n, bytes_of(memory)) }));
    }
    parts
}

/// An operand of two dimensions as a matrix.
pub(super) fn matrix_of<T>(operand: &Operand<'_>) -> gemm::MatRef<T> {
    let strides = operand.meta.layout.strides();
    let first = operand.ptr().cast::<T>().cast_const();
    gemm::MatRef { first, row_stride: strides[0], col_stride: strides[1], batch_stride: 0 }
}

fn exchanged<T>(matrix: gemm::MatRef<T>) -> gemm::MatRef<T> {
    gemm::MatRef { row_stride: matrix.col_stride, col_stride: matrix.row_stride, ..matrix }
}

/// A row-major matrix to read, with rows of so many numbers.
pub(super) fn matrix<C>(numbers: &[C], row_len: usize) -> gemm::MatRef<C> {
    gemm::MatRef { first: numbers.as_ptr(), row_stride: row_len as isize, col_stride: 1, batch_stride: 0 }
}

/// A row-major matrix to write, with rows of so many numbers.
pub(super) fn matrix_mut<C>(numbers: &mut [C], row_len: usize) -> gemm::MatMut<C> {
    gemm::MatMut { first: numbers.as_mut_ptr(), row_stride: row_len as isize, col_stride: 1, batch_stride: 0 }
}

/// The bytes of some scratch memory.
pub(super) fn bytes_of<C: Compute>(numbers: &mut [C]) -> &mut [u8] {
    // SAFETY: floats have no padding, every byte is one of a float, and scratch memory holds no values to be kept.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Cuts scratch memory into slices of so many numbers.
///
/// # Safety
/// There must be as many numbers as `pieces_len` says, and they must be the caller's own.
pub(super) unsafe fn cut_slices<'a, C, const N: usize>(at: *mut C, lens: [usize; N]) -> [&'a mut [C]; N] {
    // SAFETY: the caller promises room for all pieces, which are disjoint.
    unsafe {
        let pieces = crate::ops::compute::cut(at, lens);
        std::array::from_fn(|idx| std::slice::from_raw_parts_mut(pieces[idx], lens[idx]))
    }
}
