//! How parameters are cut into strips, and where their scratch numbers lie.

use std::ops::Range;

use plimsoll_cpu::threads::SharedPtr;

use crate::base::shape::Shape;

/// How a parameter is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub is_factored: bool,
    pub n_matrices: usize,
    pub n_rows: usize,
    pub n_cols: usize,
    /// Rows of a matrix that a strip has; the last one may have fewer.
    pub strip_rows: usize,
    pub strips_per_matrix: usize,
}

impl Cut {
    pub fn of(shape: &Shape) -> Cut {
        /// Elements that make a strip worth waking a thread for.
        const STRIP_LEN: usize = 64 * 1024;
        /// Partial sums of columns take an element for as many rows.
        const LEAST_ROWS: usize = 32;
        match *shape.dims() {
            [ref outer @ .., n_rows, n_cols] => {
                let strip_rows = (STRIP_LEN / n_cols.max(1)).max(LEAST_ROWS);
                // A matrix without columns has nothing to update.
                let strips_per_matrix = if n_cols == 0 { 0 } else { n_rows.div_ceil(strip_rows) };
                let n_matrices = outer.iter().product();
                Cut { is_factored: true, n_matrices, n_rows, n_cols, strip_rows, strips_per_matrix }
            }
            // A vector is a matrix of one column that is not factored.
            _ => {
                let n_rows = shape.n_elems();
                let strips_per_matrix = n_rows.div_ceil(STRIP_LEN);
                let (n_matrices, n_cols, strip_rows) = (1, 1, STRIP_LEN);
                Cut { is_factored: false, n_matrices, n_rows, n_cols, strip_rows, strips_per_matrix }
            }
        }
    }

    pub fn n_elems(&self) -> usize {
        self.n_matrices * self.n_rows * self.n_cols
    }

    pub fn n_strips(&self) -> usize {
        self.n_matrices * self.strips_per_matrix
    }

    /// Whether columns are summed in parts.
    pub fn in_parts(&self) -> bool {
        self.is_factored && self.strips_per_matrix > 1
    }

    /// Scratch numbers: a factor for the whole, two sums per strip, a mean per matrix, parts of column sums.
    pub fn scratch_len(&self) -> usize {
        let parts = if self.in_parts() { self.n_strips() * self.n_cols } else { 0 };
        1 + 2 * self.n_strips() + self.n_matrices + parts
    }

    /// The matrix of a strip, and its rows among those of all matrices.
    pub fn rows(&self, strip: usize) -> (usize, Range<usize>) {
        let (matrix, within) = (strip / self.strips_per_matrix, strip % self.strips_per_matrix);
        let first = matrix * self.n_rows;
        let rows = within * self.strip_rows..((within + 1) * self.strip_rows).min(self.n_rows);
        (matrix, first + rows.start..first + rows.end)
    }
}

/// Which sum of squares of a strip.
#[derive(Clone, Copy, Debug)]
pub enum Sum {
    Parameter,
    Update,
}

/// A parameter with its scratch memory.
pub struct Place {
    pub idx: usize,
    pub is_single: bool,
    pub cut: Cut,
    pub scratch: SharedPtr<f64>,
}

impl Place {
    /// The factor of the update.
    pub fn factor(&self) -> *mut f64 {
        self.scratch.get()
    }

    /// A sum of squares of a strip.
    pub fn sum(&self, strip: usize, which: Sum) -> *mut f64 {
        self.scratch.get().wrapping_add(1 + 2 * strip + which as usize)
    }

    /// The mean of a matrix's row means.
    pub fn mean(&self, matrix: usize) -> *mut f64 {
        self.scratch.get().wrapping_add(1 + 2 * self.cut.n_strips() + matrix)
    }

    /// A strip's part of the column sums.
    pub fn column_sums(&self, strip: usize) -> *mut f64 {
        let parts = 1 + 2 * self.cut.n_strips() + self.cut.n_matrices;
        self.scratch.get().wrapping_add(parts + strip * self.cut.n_cols)
    }
}
