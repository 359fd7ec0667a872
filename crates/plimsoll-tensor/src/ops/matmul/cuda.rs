//! Products on a GPU, by its library.
//!
//! The library reads matrices that are row-major or the transpose of a row-major one, at even, positive distances. Whatever
//! lies so is read in place; the rest (columns at a distance, flipped or repeated rows) is copied into scratch memory.

use plimsoll_cuda::{Epilogue, Gpu, Matmul, MatmulOperands, Matrix, Profile};

use super::Calls;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::Activation;
use crate::ops::cuda::finish::finish;
use crate::ops::cuda::{copy, scalar};

/// Copies in scratch memory begin at multiples of this, so that the library's widest loads fit.
const ALIGNMENT: usize = 256;

/// The library may sum the columns of a product in so many parts, each a result of f32 in scratch memory.
const MOST_PARTS: usize = 8;

/// Whether the library is asked to sum columns while it multiplies; else a kernel of ours reads the matrix once more.
const LIBRARY_SUMS_COLUMNS: bool = true;

/// What follows each sum.
#[derive(Clone, Copy, Default)]
pub(in crate::ops) struct After<'a> {
    /// A number per column.
    pub bias: Option<&'a Operand<'a>>,
    /// One whose derivative is read from its output.
    pub activation: Activation,
}

/// A product whose operands the library can read.
struct Readable {
    /// The operands, those that are copied row-major.
    operands: [Meta; 2],
    is_copied: [bool; 2],
    calls: Calls,
}

impl Readable {
    fn of(operands: &[&Meta; 2]) -> Result<Readable> {
        let calls = Calls::of(operands)?;
        let is_copied = [0, 1].map(|idx| matrix(&calls.layouts[idx], calls.shape.batch).is_none());
        if is_copied == [false; 2] {
            return Ok(Readable { operands: operands.map(|meta| *meta), is_copied, calls });
        }
        let own = |idx: usize| match is_copied[idx] {
            true => Meta::fresh(*operands[idx].shape(), operands[idx].dtype),
            false => *operands[idx],
        };
        let operands = [own(0), own(1)];
        let calls = Calls::of(&[&operands[0], &operands[1]])?;
        Ok(Readable { operands, is_copied, calls })
    }

    /// Bytes of scratch memory for the copies.
    fn copied_bytes(&self) -> [usize; 2] {
        [0, 1].map(|idx| match self.is_copied[idx] {
            true => self.operands[idx].n_bytes().next_multiple_of(ALIGNMENT),
            false => 0,
        })
    }
}

/// How the last two axes of a layout lie, if the library can read them; the axis before them tells matrices apart.
fn matrix(layout: &Layout, batch: usize) -> Option<Matrix> {
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    let inner = dims.len() - 2;
    let ([rows, cols], [by_row, by_col]) =
        ([dims[inner], dims[inner + 1]], [strides[inner], strides[inner + 1]]);
    let by_matrix = if inner > 0 && batch > 1 { strides[inner - 1] } else { 0 };
    let batch_stride = usize::try_from(by_matrix).ok()?;
    // Row-major if elements of a row are neighbours and rows do not overlap; an axis of one element has no stride.
    let lies = |rows: usize, cols: usize, by_row: isize, by_col: isize| {
        let stride = if rows == 1 { cols } else { usize::try_from(by_row).ok()? };
        ((cols == 1 || by_col == 1) && stride >= cols).then_some(stride)
    };
    let plain = lies(rows, cols, by_row, by_col);
    let turned = || lies(cols, rows, by_col, by_row).map(|row_stride| (true, row_stride));
    let (transposed, row_stride) = plain.map(|row_stride| (false, row_stride)).or_else(turned)?;
    Some(Matrix { transposed, row_stride, batch_stride })
}

/// The library's own scratch memory.
fn library_bytes(calls: &Calls, profile: &Profile) -> usize {
    let n_elems = calls.shape.batch * calls.shape.m * calls.shape.n;
    let parts = n_elems.saturating_mul(MOST_PARTS * size_of::<f32>());
    parts.min(profile.matmul_workspace).next_multiple_of(ALIGNMENT)
}

/// The scratch memory that [`product`] needs for operands of that form.
pub(in crate::ops) fn workspace(operands: &[&Meta; 2], profile: &Profile) -> usize {
    let Ok(readable) = Readable::of(operands) else { return 0 };
    let [a, b] = readable.copied_bytes();
    library_bytes(&readable.calls, profile) + a + b
}

/// Multiplies the first two inputs, seen as `operands` says, into the first output.
pub(in crate::ops) fn product(
    run: &Run<'_>,
    gpu: &Gpu,
    op: &'static str,
    operands: &[&Meta; 2],
    after: After<'_>,
) -> Result<()> {
    let output = &run.outputs[0];
    if output.n_elems() == 0 {
        return Ok(());
    }
    if Calls::of(operands)?.shape.k == 0 {
        // SAFETY: the output is fresh and as long as its meta says.
        unsafe { gpu.fill(op, output.ptr(), 0, output.meta.n_bytes()) }?;
        return finish(gpu, op, output, after.bias, after.activation);
    }
    let (fused, left) = split(output.dtype(), after);
    let bias = fused.bias.map_or(std::ptr::null_mut(), Operand::ptr);
    match multiply(run, gpu, op, operands, fused.epilogue(), bias)? {
        true => finish(gpu, op, output, left.bias, left.activation),
        false => Err(Error::device(op, format!("the GPU's library has no algorithm for {operands:?}"))),
    }
}

/// As [`product`], and the sums of the second input's columns into `sums`. False says that the library does not know how to
/// make the two together, and that only the product was made.
pub(in crate::ops) fn product_and_sums(
    run: &Run<'_>,
    gpu: &Gpu,
    op: &'static str,
    operands: &[&Meta; 2],
    sums: &Operand,
) -> Result<bool> {
    let output = &run.outputs[0];
    let has_terms = output.n_elems() > 0 && operands[1].n_elems() > 0;
    if LIBRARY_SUMS_COLUMNS
        && has_terms
        && output.dtype().size() == 2
        && multiply(run, gpu, op, operands, Epilogue::ColumnSums, sums.ptr())?
    {
        return Ok(true);
    }
    product(run, gpu, op, operands, After::default()).map(|()| false)
}

/// The products by the library; false if it has no algorithm for them. There is at least one, of at least one term.
fn multiply(
    run: &Run<'_>,
    gpu: &Gpu,
    op: &'static str,
    operands: &[&Meta; 2],
    epilogue: Epilogue,
    bias: *mut u8,
) -> Result<bool> {
    let output = &run.outputs[0];
    let readable = Readable::of(operands)?;
    let Calls { shape, .. } = readable.calls;
    let library_bytes = library_bytes(&readable.calls, gpu.profile());
    let [a_bytes, _] = readable.copied_bytes();
    let copies =
        [run.workspace.wrapping_add(library_bytes), run.workspace.wrapping_add(library_bytes + a_bytes)];
    let mut first = [run.inputs[0].ptr(), run.inputs[1].ptr()];
    for idx in (0..2).filter(|&idx| readable.is_copied[idx]) {
        let from = run.inputs[idx].viewed(operands[idx]);
        copy(gpu, op, &from, &Operand::new(copies[idx], &readable.operands[idx]))?;
        first[idx] = copies[idx];
    }
    let size = output.dtype().size();
    let described = readable.describe(output.dtype(), epilogue);
    for call in 0..readable.calls.outer.n_elems() {
        let at = |idx: usize| first[idx].wrapping_offset(readable.calls.start(idx, call) * size as isize);
        let operands = MatmulOperands {
            a: at(0),
            b: at(1),
            c: output.ptr().wrapping_add(call * shape.batch * shape.m * shape.n * size),
            bias,
            workspace: run.workspace,
            workspace_bytes: library_bytes,
        };
        // SAFETY: the addresses and strides are those of layouts that `execute` has checked or of copies in scratch memory
        // that `workspace` has asked for; the products of this call are a part of the fresh output, and the bias, read or
        // written, has a number per column.
        if !unsafe { gpu.try_matmul(op, &described, &operands) }? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Readable {
    /// The products of one call, as the library is told.
    fn describe(&self, dtype: DType, epilogue: Epilogue) -> Matmul {
        let shape = &self.calls.shape;
        let of = |idx: usize| {
            let described = matrix(&self.calls.layouts[idx], shape.batch);
            described.unwrap_or_else(|| unreachable!("copied where it is not readable"))
        };
        Matmul {
            m: shape.m,
            n: shape.n,
            k: shape.k,
            batch: shape.batch,
            input: scalar(dtype),
            output: scalar(dtype),
            a: of(0),
            b: of(1),
            c: Matrix { transposed: false, row_stride: shape.n, batch_stride: shape.m * shape.n },
            alpha: 1.0,
            beta: 0.0,
            tf32: false,
            epilogue,
        }
    }
}

impl After<'_> {
    fn epilogue(&self) -> Epilogue {
        match (self.bias.is_some(), self.activation) {
            (false, _) => Epilogue::None,
            (true, Activation::Relu) => Epilogue::BiasRelu,
            (true, _) => Epilogue::Bias,
        }
    }
}

/// What the library does with each sum, and what is left to do afterwards. It knows bias and relu, but not in f64.
fn split<'a>(dtype: DType, after: After<'a>) -> (After<'a>, After<'a>) {
    let nothing = After::default();
    match (dtype, after.bias, after.activation) {
        (DType::F64, _, _) | (_, None, _) => (nothing, after),
        (_, Some(_), Activation::Relu) => (after, nothing),
        (_, Some(_), activation) => {
            (After { activation: Activation::None, ..after }, After { bias: None, activation })
        }
    }
}
