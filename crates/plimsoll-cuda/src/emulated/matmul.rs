//! Matrix products by plain loops.

use super::number::{Sum, load, store, to_tf32};
use crate::matmul::{Epilogue, Matmul, MatmulOperands, Matrix, Scalar};

/// Computes a product as `Matmul` describes it.
///
/// # Safety
/// The addresses are valid for what the product reads and writes.
pub unsafe fn run(matmul: &Matmul, operands: &MatmulOperands) {
    for batch in 0..matmul.batch {
        // SAFETY: the caller promises it.
        unsafe {
            match matmul.input {
                Scalar::F64 => product::<f64>(matmul, operands, batch),
                Scalar::F16 | Scalar::BF16 | Scalar::F32 => product::<f32>(matmul, operands, batch),
            }
        }
    }
}

impl Matrix {
    /// Where the element of that row and column of that matrix of the batch lies.
    fn idx(&self, batch: usize, row: usize, column: usize) -> usize {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        batch * self.batch_stride + row * self.row_stride + column
    }
}

/// One matrix of the batch, with sums of type `S`.
///
/// # Safety
/// As for `run`.
unsafe fn product<S: Sum>(matmul: &Matmul, operands: &MatmulOperands, batch: usize) {
    let Matmul { m, n, k, .. } = *matmul;
    let read = |matrix: &Matrix, from: *const u8, row, column| {
        // SAFETY: rows and columns are those of the matrix.
        let value = unsafe { load(matmul.input, from, matrix.idx(batch, row, column)) };
        S::round(if matmul.tf32 && matmul.input == Scalar::F32 { to_tf32(value) } else { value })
    };
    let mut rhs = Vec::with_capacity(k * n);
    for depth in 0..k {
        rhs.extend((0..n).map(|column| read(&matmul.b, operands.b, depth, column)));
    }
    if matmul.epilogue == Epilogue::ColumnSums {
        for column in 0..n {
            let sum = (0..k).fold(S::default(), |sum, depth| sum + rhs[depth * n + column]);
            // SAFETY: there is room for a number per column.
            unsafe { store(matmul.output, operands.bias, column, sum.into()) };
        }
    }
    let mut sums = vec![S::default(); n];
    for row in 0..m {
        sums.fill(S::default());
        for depth in 0..k {
            let factor = read(&matmul.a, operands.a, row, depth);
            for (sum, &value) in sums.iter_mut().zip(&rhs[depth * n..]) {
                *sum = *sum + factor * value;
            }
        }
        for (column, &sum) in sums.iter().enumerate() {
            // SAFETY: the row and the column are those of c.
            unsafe { finish(matmul, operands, matmul.c.idx(batch, row, column), column, sum) };
        }
    }
}

/// Scales a sum, adds what is there, and writes what the epilogue makes of it.
///
/// # Safety
/// As for `run`; `idx` is that of an element of c in that column.
unsafe fn finish<S: Sum>(matmul: &Matmul, operands: &MatmulOperands, idx: usize, column: usize, sum: S) {
    let mut value = S::round(matmul.alpha) * sum;
    // SAFETY: the element belongs to c; the bias has a number per column.
    unsafe {
        if matmul.beta != 0.0 {
            value = value + S::round(matmul.beta) * S::round(load(matmul.output, operands.c, idx));
        }
        if matches!(matmul.epilogue, Epilogue::Bias | Epilogue::BiasRelu) {
            value = value + S::round(load(matmul.output, operands.bias, column));
        }
        let value: f64 = value.into();
        let value = match matmul.epilogue {
            Epilogue::None | Epilogue::Bias | Epilogue::ColumnSums => value,
            Epilogue::BiasRelu => {
                if value < 0.0 {
                    0.0
                } else {
                    value
                }
            }
        };
        store(matmul.output, operands.c, idx, value);
    }
}
