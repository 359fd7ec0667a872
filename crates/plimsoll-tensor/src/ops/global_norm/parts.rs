//! The global norm of tensors on several devices: each device adds up the squares of its own, chunk by chunk, and the first
//! one adds these sums up, in the order in which one device would. So where a tensor lies changes no bit.

use plimsoll_cuda::Gpu;

use super::{cuda, first_not_finite, n_chunks, sums_of_squares};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{IntoShape, Shape};
use crate::device::Device;
use crate::eager::context;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{Gradient, Meta, Op, OpRef, Output, Outputs, Run, one};
use crate::eager::tensor::Tensor;

/// What stands where a chunk has no bad value; else there is the negative number of its tensor, so that the greatest is of
/// the first.
pub(super) const NOTHING: f64 = f64::NEG_INFINITY;

/// For each chunk of its inputs the sum of its squares, and whether it has a bad value: `[chunks, 2]`.
#[derive(Debug)]
struct SquareSums {
    /// How many tensors come before its inputs.
    n_before: usize,
}

impl Op for SquareSums {
    fn name(&self) -> &'static str {
        "square_sums"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        if let Some((idx, odd)) = inputs.iter().enumerate().find(|(_, meta)| !meta.dtype.is_float()) {
            let idx = self.n_before + idx;
            let detail = format!("tensor {idx} is {}; a norm is of floats (see `cast`)", odd.dtype);
            return Err(Error::dtype("global_norm", detail));
        }
        let n: usize = inputs.iter().map(|meta| n_chunks(meta.n_elems())).sum();
        one([n, 2].into_shape()?, DType::F64)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("the norm of tensors on several devices is not differentiable; bring them to one")
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        inputs.iter().map(|meta| n_chunks(meta.n_elems())).sum::<usize>() * size_of::<f64>()
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let sums = sums_of_squares(run);
        let is_fine = sums.iter().all(|sum| sum.is_finite());
        let bad = if is_fine { None } else { first_not_finite(run.inputs, sums) };
        let number = |bad: usize| -((self.n_before + bad) as f64);
        let partials = run.outputs[0].ptr().cast::<[f64; 2]>();
        for (at, &sum) in sums.iter().enumerate() {
            // SAFETY: the output is fresh and has a place for each chunk, by `infer`.
            unsafe { *partials.add(at) = [sum, bad.map_or(NOTHING, number)] };
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::square_sums(run, gpu, run.outputs[0].ptr(), self.n_before)
    }
}

/// The norm and the first bad tensor, from the sums of all chunks.
#[derive(Debug)]
struct NormOfSums(DType);

impl Op for NormOfSums {
    fn name(&self) -> &'static str {
        "norm_of_sums"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        let shape = Shape::SCALAR;
        let outputs = [(self.0, shape), (DType::I64, shape)];
        Ok(outputs.into_iter().map(|(dtype, shape)| Output::New { shape, dtype }).collect())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("the norm of tensors on several devices is not differentiable; bring them to one")
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (norm, first_bad) = (&run.outputs[0], &run.outputs[1]);
        let (partials, n) = (run.inputs[0].ptr().cast::<[f64; 2]>(), run.inputs[0].n_elems() / 2);
        // SAFETY: the input is row-major, `[n, 2]` float64, by `norm_over_devices`, which alone makes this op.
        let partials = unsafe { std::slice::from_raw_parts(partials, n) };
        let total: f64 = partials.iter().map(|[sum, _]| sum).sum();
        let bad = partials.iter().map(|[_, bad]| *bad).fold(NOTHING, f64::max);
        // SAFETY: the outputs are fresh, of one element each, and of these types by `infer`.
        unsafe {
            match norm.dtype() {
                DType::F64 => *norm.ptr().cast::<f64>() = total.sqrt(),
                _ => *norm.ptr().cast::<f32>() = total.sqrt() as f32,
            }
            *first_bad.ptr().cast::<i64>() = if bad == NOTHING { -1 } else { -bad as i64 };
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let n = run.inputs[0].n_elems() / 2;
        cuda::total(run, gpu, run.inputs[0].ptr(), n)
    }
}

/// For each chunk of [`NORM_CHUNK`](super::NORM_CHUNK) elements of these tensors a row: the sum of its squares, and whether it has
/// a value that is not finite. What [`norm_of_square_sums`] makes of the rows of all chunks is the norm of
/// [`Tensor::global_norm`], to the bit; so parts of tensors that consist of whole chunks may be looked at in different places.
///
/// # Errors
/// Tensors that are not floats; memory that is full.
#[track_caller]
pub fn square_sums(tensors: &[&Tensor]) -> Result<Tensor> {
    let _line = context::at_callers_line();
    let inputs = tensors.iter().map(|tensor| Arg::Lent(tensor)).collect();
    Ok(execute(OpRef::shipped(SquareSums { n_before: 0 }), inputs)?[0].clone())
}

/// The global norm, and the index of the first tensor with a value that is not finite, or -1, from the rows of
/// [`square_sums`] of all chunks of all tensors, in their order. The norm is float32, or float64 if the tensors are.
///
/// # Errors
/// Anything else than such rows; memory that is full.
#[track_caller]
pub fn norm_of_square_sums(rows: &Tensor, is_wide: bool) -> Result<(Tensor, Tensor)> {
    let _line = context::at_callers_line();
    if rows.dtype() != DType::F64 || rows.shape().dims().last() != Some(&2) {
        let detail = format!("rows of two float64 are wanted, not {} {}", rows.dtype(), rows.shape());
        return Err(Error::shape("global_norm", detail));
    }
    let rows = rows.contiguous()?;
    let dtype = if is_wide { DType::F64 } else { DType::F32 };
    let both = execute(OpRef::shipped(NormOfSums(dtype)), [Arg::Lent(&rows)].into_iter().collect())?;
    Ok((both[0].clone(), both[1].clone()))
}

/// The norm and the first bad tensor of tensors on several devices; both are on the first tensor's.
pub(super) fn norm_over_devices(tensors: &[&Tensor]) -> Result<(Tensor, Tensor)> {
    let devices: Vec<Device> = tensors.iter().map(|tensor| tensor.device()).collect();
    let mut partials: Vec<Tensor> = Vec::new();
    let mut n_before = 0;
    for run in devices.chunk_by(|one, other| one == other) {
        let inputs = tensors[n_before..n_before + run.len()].iter().map(|tensor| Arg::Lent(tensor));
        let sums = execute(OpRef::shipped(SquareSums { n_before }), inputs.collect())?;
        partials.push(sums[0].to_device(&devices[0])?);
        n_before += run.len();
    }
    let partials = Tensor::concat(&partials.iter().collect::<Vec<_>>(), 0)?;
    norm_of_square_sums(&partials, tensors.iter().any(|tensor| tensor.dtype() == DType::F64))
}
