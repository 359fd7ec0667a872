//! The op on the CPU: chunk by chunk, a product, the losses of its rows, and two products more for the gradients.

use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_cpu::element::{CastTo, Element, Number};
use plimsoll_cpu::lanes::Room as LaneRoom;
use plimsoll_cpu::math::Real;
use plimsoll_gemm as gemm;

use super::{Extents, FACTOR, LinearCrossEntropy, ROWS_GRADIENT, WEIGHTS_GRADIENT};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::op::{Meta, Op, Operand, Run};
use crate::ops::cross_entropy::sparse::{backward_lane, refusal};
use crate::ops::lanes::{Exponentials, LanePtr, last_axis};

/// The bytes that the logits of a chunk take, about: enough for the products to be fast, and no more than caches help with.
const CHUNK_BYTES: usize = 8 << 20;

/// How the scratch memory is cut: a loss per row, the logits of a chunk, what the products need.
pub(super) struct Room {
    chunk: usize,
    losses: usize,
    logits: usize,
    product: usize,
}

impl Room {
    pub fn of<T: gemm::Element>(extents: &Extents) -> Room {
        let dtype_size = size_of::<T>();
        let chunk = extents.chunk(dtype_of_size(dtype_size), CHUNK_BYTES);
        let shapes = [forward(extents, chunk), to_rows(extents, chunk), to_weights(extents, chunk, false)];
        // The last chunk may have fewer rows, whose products are cut in another way.
        let last = extents.rows - (extents.rows.saturating_sub(1)) / chunk * chunk;
        let last_shapes = [forward(extents, last), to_rows(extents, last), to_weights(extents, last, false)];
        let transposed = [to_weights(extents, chunk, true), to_weights(extents, last, true)];
        let product = shapes.iter().chain(&last_shapes).chain(&transposed).map(gemm::workspace::<T>).max();
        Room {
            chunk,
            losses: (extents.rows * size_of::<f64>()).next_multiple_of(64),
            logits: (chunk * extents.classes * dtype_size).next_multiple_of(64),
            product: product.unwrap_or(0),
        }
    }

    pub fn n_bytes(&self) -> usize {
        self.losses + self.logits + self.product
    }
}

/// A dtype of that size: the length of a chunk depends on nothing else.
fn dtype_of_size(n_bytes: usize) -> DType {
    match n_bytes {
        2 => DType::BF16,
        4 => DType::F32,
        _ => DType::F64,
    }
}

fn forward(extents: &Extents, rows: usize) -> gemm::Shape {
    gemm::Shape { batch: 1, m: rows, n: extents.classes, k: extents.k }
}

fn to_rows(extents: &Extents, rows: usize) -> gemm::Shape {
    gemm::Shape { batch: 1, m: rows, n: extents.k, k: extents.classes }
}

fn to_weights(extents: &Extents, rows: usize, by_class: bool) -> gemm::Shape {
    match by_class {
        true => gemm::Shape { batch: 1, m: extents.classes, n: extents.k, k: rows },
        false => gemm::Shape { batch: 1, m: extents.k, n: extents.classes, k: rows },
    }
}

/// A row-major matrix, or its transpose.
fn matrix<T>(first: *const T, columns: usize, transposed: bool) -> gemm::MatRef<T> {
    let (row_stride, col_stride) = if transposed { (1, columns as isize) } else { (columns as isize, 1) };
    gemm::MatRef { first, row_stride, col_stride, batch_stride: 0 }
}

fn matrix_mut<T>(first: *mut T, columns: usize) -> gemm::MatMut<T> {
    gemm::MatMut { first, row_stride: columns as isize, col_stride: 1, batch_stride: 0 }
}

pub(super) fn run<T>(op: LinearCrossEntropy, run: &mut Run<'_>) -> Result<()>
where
    T: gemm::Element + Element<Compute: Real + CastTo<f64>>,
    f64: CastTo<T::Compute>,
{
    let [x, w, labels] = run.inputs else { unreachable!("three operands") };
    let extents = op.extents(&[x.meta, w.meta, labels.meta])?;
    let (dtype, labels) = (x.dtype(), Labels::of(labels));
    let Extents { k, classes, .. } = extents;
    let room = Room::of::<T>(&extents);
    // SAFETY: this is the only slice of the call's scratch memory.
    let memory = unsafe { run.workspace_bytes() };
    let (losses, memory) = memory.split_at_mut(room.losses);
    let (logits, product) = memory.split_at_mut(room.logits);
    let (losses, logits) = (losses.as_mut_ptr().cast::<f64>(), logits.as_mut_ptr().cast::<T>());
    let wanted = |aux: usize| run.aux_outputs.get(aux).filter(|gradient| gradient.n_elems() > 0);
    let (to_x, to_w) = (wanted(ROWS_GRADIENT), wanted(WEIGHTS_GRADIENT));
    let first_of = |operand: &Operand| operand.ptr().cast::<T>();
    for (first, rows) in extents.chunks(room.chunk) {
        let x = matrix(first_of(x).wrapping_add(first * k).cast_const(), k, false);
        let w = |transposed: bool| {
            let columns = if op.by_class { k } else { classes };
            matrix(first_of(w).cast_const(), columns, transposed != op.by_class)
        };
        let c = matrix_mut(logits, classes);
        // SAFETY: operands are row-major and as large as `infer` has checked, the scratch memory has room for a chunk.
        unsafe { gemm::gemm::<T>(&forward(&extents, rows), x, w(false), c, &gemm::Epilogue::NONE, product) };
        let logits_meta = Meta::fresh(Shape::within_bounds([rows, classes]), dtype);
        let losses_meta = Meta::fresh(Shape::within_bounds([rows]), DType::F64);
        let chunk = Chunk {
            logits: Operand::new(logits.cast(), &logits_meta),
            losses: Operand::new(losses.wrapping_add(first).cast(), &losses_meta),
            first,
            is_recorded: to_x.is_some() || to_w.is_some(),
        };
        if let Some(row) = chunk.losses::<T>(op, labels) {
            return Err(refusal(&op.labels, classes).error(op.name(), row, labels.at(row)));
        }
        if let Some(gradient) = to_x {
            let c = matrix_mut(first_of(gradient).wrapping_add(first * k), k);
            let a = matrix(logits.cast_const(), classes, false);
            let shape = to_rows(&extents, rows);
            // SAFETY: as above; these rows of the gradient are this chunk's.
            unsafe { gemm::gemm::<T>(&shape, a, w(true), c, &gemm::Epilogue::NONE, product) };
        }
        if let Some(gradient) = to_w {
            let local_grads = matrix(logits.cast_const(), classes, op.by_class);
            let (a, b) = if op.by_class { (local_grads, x) } else { (transpose(x), local_grads) };
            let c = matrix_mut(first_of(gradient), if op.by_class { k } else { classes });
            let epilogue = gemm::Epilogue { accumulate: first > 0, ..gemm::Epilogue::NONE };
            let shape = to_weights(&extents, rows, op.by_class);
            // SAFETY: as above.
            unsafe { gemm::gemm::<T>(&shape, a, b, c, &epilogue, product) };
        }
    }
    finish::<T>(op, run, labels, losses, extents.rows);
    Ok(())
}

fn transpose<T>(matrix: gemm::MatRef<T>) -> gemm::MatRef<T> {
    gemm::MatRef { row_stride: matrix.col_stride, col_stride: matrix.row_stride, ..matrix }
}

/// The mean of the losses, and the factor that makes gradients of their sum those of the mean.
fn finish<T>(op: LinearCrossEntropy, run: &Run<'_>, labels: Labels, losses: *const f64, rows: usize)
where
    T: Element,
    f64: CastTo<T::Compute>,
{
    let is_counted = |row: &usize| op.ignored.is_none_or(|ignored| labels.at(*row) != ignored);
    let count = (0..rows).filter(is_counted).count() as f64;
    // SAFETY: the scratch memory has a number for each row, written before.
    let sum: f64 = (0..rows).map(|row| unsafe { *losses.add(row) }).sum();
    let write = |to: &Operand, value: f64| {
        // SAFETY: outputs and auxiliary outputs of one number each, of the compute type, that are nobody else's.
        unsafe { *to.ptr().cast::<T::Compute>() = value.cast() };
    };
    write(&run.outputs[0], sum / count);
    if let Some(factor) = run.aux_outputs.get(FACTOR) {
        write(factor, 1.0 / count);
    }
}

/// The label of each row, of one of the two dtypes that `infer` lets through.
#[derive(Clone, Copy)]
enum Labels {
    I64(LanePtr<i64>),
    I32(LanePtr<i32>),
}

impl Labels {
    fn of(labels: &Operand) -> Labels {
        match labels.dtype() {
            DType::I64 => Labels::I64(LanePtr::new(labels)),
            _ => Labels::I32(LanePtr::new(labels)),
        }
    }

    fn at(self, row: usize) -> i64 {
        // SAFETY: labels are contiguous, one for each row, and nobody writes them now.
        unsafe {
            match self {
                Labels::I64(labels) => labels.get(row as isize),
                Labels::I32(labels) => i64::from(labels.get(row as isize)),
            }
        }
    }
}

/// The logits of some rows, from row `first` of all on.
struct Chunk<'a> {
    logits: Operand<'a>,
    losses: Operand<'a>,
    first: usize,
    /// Whether the logits become their own gradient.
    is_recorded: bool,
}

impl Chunk<'_> {
    /// Computes the losses, and turns logits into gradients of their sum. Returns the first row whose label is no class.
    fn losses<T>(&self, op: LinearCrossEntropy, labels: Labels) -> Option<usize>
    where
        T: Element<Compute: Real + CastTo<f64>>,
    {
        let lanes = last_axis(self.logits.shape(), [&self.logits.meta.layout]);
        let (logits, losses) = (LanePtr::<T>::new(&self.logits), LanePtr::<f64>::new(&self.losses));
        let first_wrong = AtomicUsize::new(usize::MAX);
        let (first, is_recorded) = (self.first, self.is_recorded);
        lanes.for_each(|lane| {
            let [offset] = lanes.offsets(lane);
            let label = labels.at(first + lane);
            // SAFETY: a lane of the chunk, which belongs to this task.
            let x = unsafe { logits.lane(offset, 1, lanes.len) };
            let log_sum_exp = Exponentials::of(&x, &mut LaneRoom::new()).log();
            let is_ignored = op.ignored == Some(label);
            let class = usize::try_from(label).ok().filter(|&class| class < lanes.len && !is_ignored);
            if class.is_none() && !is_ignored {
                first_wrong.fetch_min(first + lane, Ordering::Relaxed);
            }
            // SAFETY: an element of that lane.
            let logit = |class: usize| unsafe { logits.get(offset + class as isize) }.widen();
            let (loss, weight) = match class {
                Some(class) => (log_sum_exp - logit(class), T::Compute::ONE),
                None => (T::Compute::ZERO, T::Compute::ZERO),
            };
            // SAFETY: this lane's number, and its logits, whose pieces are copied before they are written over.
            unsafe {
                losses.set(lane as isize, loss.cast());
                if is_recorded {
                    let result = logits.lane(offset, 1, lanes.len);
                    backward_lane(&x.copied(true), class.unwrap_or(usize::MAX), weight, log_sum_exp, &result);
                }
            }
        });
        match first_wrong.into_inner() {
            usize::MAX => None,
            row => Some(row),
        }
    }
}
