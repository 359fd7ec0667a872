//! Matrices in every layout, and a plain-loop product of them.

use plimsoll_gemm::{MatMut, MatRef, Shape};

use crate::support::{Number, Random};

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Rows one after the other.
    Rows,
    /// Columns one after the other.
    Columns,
    /// Rows with room between them, every second element used.
    Spread,
    /// Rows from last to first, columns from last to first.
    Backwards,
    /// One row, repeated.
    OneRow,
    /// One column, repeated.
    OneColumn,
}

impl Layout {
    pub const READABLE: [Self; 6] =
        [Self::Rows, Self::Columns, Self::Spread, Self::Backwards, Self::OneRow, Self::OneColumn];
    pub const WRITABLE: [Self; 4] = [Self::Rows, Self::Columns, Self::Spread, Self::Backwards];

    /// Row stride, column stride, elements of one matrix, index of its first element.
    fn strides(self, rows: usize, cols: usize) -> (isize, isize, usize, usize) {
        let (r, c) = (rows as isize, cols as isize);
        let len = rows * cols;
        match self {
            Self::Rows => (c, 1, len, 0),
            Self::Columns => (1, r, len, 0),
            Self::Spread => (2 * c + 3, 2, rows * (2 * cols + 3), 0),
            Self::Backwards => (-c, -1, len, len.saturating_sub(1)),
            Self::OneRow => (0, 1, cols, 0),
            Self::OneColumn => (1, 0, rows, 0),
        }
    }
}

/// A batch of matrices between guards.
pub struct Matrix<E> {
    data: Vec<E>,
    first: usize,
    row_stride: isize,
    col_stride: isize,
    batch_stride: isize,
}

const GUARD: usize = 64;

impl<E: Number> Matrix<E> {
    pub fn random(random: &mut Random, layout: Layout, batch: usize, rows: usize, cols: usize) -> Self {
        let (row_stride, col_stride, len, first) = layout.strides(rows, cols);
        let data = (0..2 * GUARD + batch * len).map(|_| E::from_f64(random.next())).collect();
        Self { data, first: GUARD + first, row_stride, col_stride, batch_stride: len as isize }
    }

    fn idx(&self, batch: usize, row: usize, col: usize) -> usize {
        let offset = batch as isize * self.batch_stride
            + row as isize * self.row_stride
            + col as isize * self.col_stride;
        (self.first as isize + offset) as usize
    }

    pub fn get(&self, batch: usize, row: usize, col: usize) -> f64 {
        self.data[self.idx(batch, row, col)].to_f64()
    }

    pub fn as_ref(&self) -> MatRef<E> {
        MatRef {
            first: self.data[self.first.min(self.data.len() - 1)..].as_ptr(),
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            batch_stride: self.batch_stride,
        }
    }

    pub fn as_mut(&mut self) -> MatMut<E> {
        // The pointer is made from the whole vector, because strides may lead backwards from it.
        let first = self.data.as_mut_ptr().wrapping_add(self.first);
        MatMut {
            first,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            batch_stride: self.batch_stride,
        }
    }

    /// All elements, guards and gaps included.
    pub fn all(&self) -> &[E] {
        &self.data
    }

    /// Asserts that nothing differs from `before` but the matrix itself.
    pub fn assert_only_matrix_changed(&self, before: &[E], batch: usize, rows: usize, cols: usize) {
        let mut own = vec![false; self.data.len()];
        for b in 0..batch {
            for row in 0..rows {
                for col in 0..cols {
                    own[self.idx(b, row, col)] = true;
                }
            }
        }
        for (idx, own) in own.into_iter().enumerate() {
            assert!(own || self.data[idx] == before[idx], "element {idx} outside of C was written");
        }
    }
}

/// What one element of C should be, and how far from it a good result may be.
pub struct Expected {
    pub value: f64,
    pub tolerance: f64,
}

/// The sum of one element of C in f64, and its tolerance.
pub fn reference<E: Number>(
    shape: &Shape,
    a: &Matrix<E>,
    b: &Matrix<E>,
    extra: f64,
    (batch, row, col): (usize, usize, usize),
) -> Expected {
    let mut value = extra;
    let mut size = extra.abs() + 1e-3;
    for p in 0..shape.k {
        let term = a.get(batch, row, p) * b.get(batch, p, col);
        value += term;
        size += term.abs();
    }
    // Sums are formed in f32 or f64; only the result is rounded to the element. Equal terms, as broadcasting makes
    // them, are all rounded the same way, so the bound grows with the depth.
    let sum_epsilon = if size_of::<E::Real>() == 8 { f64::EPSILON } else { f32::EPSILON as f64 };
    let tolerance = size * sum_epsilon * (2.0 + shape.k as f64 / 16.0) + value.abs() * E::EPSILON;
    Expected { value, tolerance }
}
