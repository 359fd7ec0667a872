//! The op on a GPU: chunk by chunk, a product, a kernel for the losses of its rows, and two products more.

use plimsoll_cuda::{Epilogue, Gpu, Grid, Matmul, MatmulOperands, Matrix, Profile, Scalar, Template};

use super::{Extents, FACTOR, LinearCrossEntropy, ROWS_GRADIENT, WEIGHTS_GRADIENT};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Meta;
use crate::eager::op::{Op, Operand, Run};
use crate::ops::cross_entropy::sparse::refusal;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::cuda::{CODE_BITS, c_name, code, scalar};

static LOSSES: Template = Template { name: "losses", text: include_str!("linear.cu") };
static MEAN: Template = Template { name: "mean", text: include_str!("mean.cu") };

/// The bytes that the logits of a chunk take: enough for the products to run at full speed.
const CHUNK_BYTES: usize = 256 << 20;
const LOSSES_THREADS: u32 = 512;
const MEAN_THREADS: u32 = 1024;

/// How the scratch memory is cut: a loss per row, the logits of a chunk, the weights' gradient in the accumulator's dtype
/// where chunks are added up in it, what the products need.
pub(super) struct Room {
    chunk: usize,
    losses: usize,
    logits: usize,
    sums: usize,
    product: usize,
}

impl Room {
    pub fn of(extents: &Extents, dtype: DType, profile: &Profile) -> Room {
        let chunk = extents.chunk(dtype, CHUNK_BYTES);
        let accumulator = dtype.accumulator();
        let sums = match chunk < extents.rows && accumulator != dtype {
            true => extents.k * extents.classes * accumulator.size(),
            false => 0,
        };
        Room {
            chunk,
            losses: (extents.rows * accumulator.size()).next_multiple_of(512),
            logits: (chunk * extents.classes * dtype.size()).next_multiple_of(512),
            sums: sums.next_multiple_of(512),
            product: profile.matmul_workspace,
        }
    }

    pub fn n_bytes(&self) -> usize {
        self.losses + self.logits + self.sums + self.product
    }
}

/// A call on its way.
struct Call<'a> {
    op: LinearCrossEntropy,
    gpu: &'a Gpu,
    extents: Extents,
    dtype: DType,
    labels: &'a Operand<'a>,
    losses: *mut u8,
    logits: *mut u8,
    product: (*mut u8, usize),
    /// Where the kernels note labels that are no classes, and the number of the call.
    faults: (*mut u8, u64),
    /// The gradients are multiplied by this power of two, so that sums over many rows stay in the range of 16 bits.
    scale: f64,
}

pub(super) fn run(op: LinearCrossEntropy, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
    let [x, w, labels] = run.inputs else { unreachable!("three operands") };
    let extents = op.extents(&[x.meta, w.meta, labels.meta])?;
    let dtype = x.dtype();
    let room = Room::of(&extents, dtype, gpu.profile());
    let (memory, _) = run.workspace();
    let logits = memory.wrapping_add(room.losses);
    let sums = logits.wrapping_add(room.logits);
    let half_bits = extents.rows.max(1).ilog2() / 2;
    let call = Call {
        op,
        gpu,
        extents,
        dtype,
        labels,
        losses: memory,
        logits,
        product: (sums.wrapping_add(room.sums), room.product),
        faults: run.may_refuse(op.name(), refusal(&op.labels, extents.classes))?,
        scale: 0.5f64.powi(half_bits as i32),
    };
    let wanted = |aux: usize| run.aux_outputs.get(aux).filter(|gradient| gradient.n_elems() > 0);
    let (to_x, to_w) = (wanted(ROWS_GRADIENT), wanted(WEIGHTS_GRADIENT));
    for (first, rows) in extents.chunks(room.chunk) {
        let x = x.ptr().wrapping_add(first * extents.k * dtype.size());
        call.forward(x, w.ptr(), rows)?;
        call.rows(first, rows, to_x.is_some() || to_w.is_some())?;
        if let Some(gradient) = to_x {
            call.to_rows(w.ptr(), gradient.ptr().wrapping_add(first * extents.k * dtype.size()), rows)?;
        }
        if let Some(gradient) = to_w {
            let (to, output) = match room.sums {
                0 => (gradient.ptr(), dtype),
                _ => (sums, dtype.accumulator()),
            };
            call.to_weights(x, to, output, rows, first > 0)?;
        }
    }
    if let (Some(gradient), true) = (to_w, room.sums > 0) {
        call.round(sums, gradient)?;
    }
    call.finish(&run.outputs[0], run.aux_outputs.get(FACTOR))
}

impl Call<'_> {
    fn matrix(&self, columns: usize, transposed: bool) -> Matrix {
        Matrix { transposed, row_stride: columns, batch_stride: 0 }
    }

    /// The columns of the weights as they lie.
    fn weight_columns(&self) -> usize {
        if self.op.by_class { self.extents.k } else { self.extents.classes }
    }

    fn product(&self, matmul: Matmul, a: *mut u8, b: *mut u8, c: *mut u8) -> Result<()> {
        let operands = MatmulOperands {
            a,
            b,
            c,
            bias: std::ptr::null_mut(),
            workspace: self.product.0,
            workspace_bytes: self.product.1,
        };
        // SAFETY: operands are row-major and as large as `infer` has checked; the scratch memory has room for a chunk.
        unsafe { self.gpu.matmul(self.op.name(), &matmul, &operands) }?;
        Ok(())
    }

    /// A product of this dtype, to be completed.
    fn plain(&self, m: usize, n: usize, k: usize, a: Matrix, b: Matrix) -> Matmul {
        let input: Scalar = scalar(self.dtype);
        Matmul {
            m,
            n,
            k,
            batch: 1,
            input,
            output: input,
            a,
            b,
            c: self.matrix(n, false),
            alpha: 1.0,
            beta: 0.0,
            tf32: false,
            epilogue: Epilogue::None,
        }
    }

    fn forward(&self, x: *mut u8, w: *mut u8, rows: usize) -> Result<()> {
        let Extents { k, classes, .. } = self.extents;
        let weights = self.matrix(self.weight_columns(), self.op.by_class);
        self.product(self.plain(rows, classes, k, self.matrix(k, false), weights), x, w, self.logits)
    }

    fn to_rows(&self, w: *mut u8, gradient: *mut u8, rows: usize) -> Result<()> {
        let Extents { k, classes, .. } = self.extents;
        let weights = self.matrix(self.weight_columns(), !self.op.by_class);
        let product = self.plain(rows, k, classes, self.matrix(classes, false), weights);
        self.product(Matmul { alpha: self.scale, ..product }, self.logits, w, gradient)
    }

    fn to_weights(&self, x: *mut u8, to: *mut u8, output: DType, rows: usize, adds: bool) -> Result<()> {
        let Extents { k, classes, .. } = self.extents;
        let (local_grads, x_rows) =
            (self.matrix(classes, self.op.by_class), self.matrix(k, !self.op.by_class));
        let (product, a, b) = match self.op.by_class {
            true => (self.plain(classes, k, rows, local_grads, x_rows), self.logits, x),
            false => (self.plain(k, classes, rows, x_rows, local_grads), x, self.logits),
        };
        let beta = if adds { 1.0 } else { 0.0 };
        self.product(Matmul { alpha: self.scale, beta, output: scalar(output), ..product }, a, b, to)
    }

    /// The labels' parameters of the kernels: the one that is ignored, and whether one is.
    fn ignored(&self) -> (i64, u32) {
        (self.op.ignored.unwrap_or(0), u32::from(self.op.ignored.is_some()))
    }

    fn rows(&self, first: usize, rows: usize, is_recorded: bool) -> Result<()> {
        let accumulator = self.dtype.accumulator();
        let mut v = 16 / self.dtype.size();
        while !self.extents.classes.is_multiple_of(v) {
            v /= 2;
        }
        let variant = (((code(self.dtype) << CODE_BITS | code(self.labels.dtype())) << 4 | v as u64) << 1)
            | u64::from(is_recorded);
        let kernel = self.gpu.kernel(&LOSSES, self.op.name(), variant, || {
            let infinity = if accumulator == DType::F64 {
                "__longlong_as_double(0x7ff0000000000000ll)"
            } else {
                "__int_as_float(0x7f800000)"
            };
            format!(
                "#define T {}\n#define A {}\n#define L {}\n#define V {v}\n#define RECORDED {}\n\
                 #define INFINITY_OF_A {infinity}\n",
                c_name(self.dtype),
                c_name(accumulator),
                c_name(self.labels.dtype()),
                u8::from(is_recorded)
            )
        })?;
        let labels = self.labels.ptr().wrapping_add(first * self.labels.dtype().size());
        let losses = self.losses.wrapping_add(first * accumulator.size());
        let (ignored, ignores) = self.ignored();
        let (first, (cell, call)) = (first as u64, self.faults);
        let grid = Grid::of(rows, LOSSES_THREADS);
        // SAFETY: the chunk has so many rows of so many classes, labels and losses one number for each row.
        unsafe {
            self.gpu.launch(
                &kernel,
                grid,
                &[
                    &self.logits,
                    &labels,
                    &losses,
                    &self.extents.classes,
                    &ignored,
                    &ignores,
                    &first,
                    &cell,
                    &call,
                ],
            )
        }?;
        Ok(())
    }

    /// Rounds the sums of all chunks to the gradient's dtype.
    fn round(&self, sums: *mut u8, gradient: &Operand) -> Result<()> {
        let meta = Meta::fresh(*gradient.shape(), self.dtype.accumulator());
        let sums = Operand::new(sums, &meta);
        let kernel = Elementwise {
            op: self.op.name(),
            inputs: &[&sums],
            outputs: &[gradient],
            numbers: &[],
            words: &[],
            variant: 0,
        };
        kernel.run(self.gpu, || "y0 = x0;".to_owned())
    }

    fn finish(&self, mean: &Operand, factor: Option<&Operand>) -> Result<()> {
        let accumulator = self.dtype.accumulator();
        let variant = code(accumulator) << CODE_BITS | code(self.labels.dtype());
        let kernel = self.gpu.kernel(&MEAN, self.op.name(), variant, || {
            format!("#define A {}\n#define L {}\n", c_name(accumulator), c_name(self.labels.dtype()))
        })?;
        let (ignored, ignores) = self.ignored();
        let factor = factor.map_or(std::ptr::null_mut(), Operand::ptr);
        let params = (self.losses, self.labels.ptr(), self.extents.rows, mean.ptr());
        // SAFETY: losses and labels have one number for each row; the outputs are one number each.
        unsafe {
            self.gpu.launch(
                &kernel,
                Grid::of(1, MEAN_THREADS),
                &[&params.0, &params.1, &params.2, &ignored, &ignores, &self.scale, &params.3, &factor],
            )
        }?;
        Ok(())
    }
}
