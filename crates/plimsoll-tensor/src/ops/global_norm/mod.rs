//! `global_norm`: one norm over all elements of many tensors, and the first tensor that holds a value that is not finite.
//!
//! Clipping and loss scaling ask for it once per step, over every gradient of a model. All tensors are one sequence of
//! chunks, cut by shape alone; threads take stretches of it, so that a hundred small tensors cost no more than one of
//! their size. Squares are added up in f64: those of finite 32-bit floats cannot overflow there, so a sum that is not
//! finite is how a bad value is found, without a second look at the good ones.

mod cuda;
mod parts;

use std::ops::Range;

use plimsoll_cpu::element::Element;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{self, SharedPtr};
use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

pub use parts::{norm_of_square_sums, square_sums};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};
use crate::eager::context;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{Meta, Op, OpRef, Operand, Output, Outputs, Run, SavedRef, SavedRefs};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::{for_floats, offset_of};
use crate::ops::registry::{Array, Input, OpInfo, Sample, Values, floats, input};

/// The elements whose squares make one partial sum.
pub const NORM_CHUNK: usize = 16 * 1024;

/// The elements that one task visits, more or less.
const TASK_LEN: usize = 8 * NORM_CHUNK;

/// The root of the sum of the squares of all elements, and the index of the first input with a value that is not finite,
/// or -1.
#[derive(Debug)]
struct GlobalNorm;

impl Op for GlobalNorm {
    fn name(&self) -> &'static str {
        "global_norm"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        if let Some((idx, odd)) = inputs.iter().enumerate().find(|(_, meta)| !meta.dtype.is_float()) {
            return Err(Error::dtype(
                "global_norm",
                format!("tensor {idx} is {}; a norm is of floats (see `cast`)", odd.dtype),
            ));
        }
        let wide = inputs.iter().any(|meta| meta.dtype == DType::F64);
        let dtype = if wide { DType::F64 } else { DType::F32 };
        let shape = Shape::SCALAR;
        Ok(smallvec![Output::New { shape, dtype }, Output::New { shape, dtype: DType::I64 }])
    }

    /// A partial sum for each chunk.
    fn workspace(&self, inputs: &[&Meta]) -> usize {
        inputs.iter().map(|meta| n_chunks(meta.n_elems())).sum::<usize>() * size_of::<f64>()
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (norm, first_bad) = (&run.outputs[0], &run.outputs[1]);
        let sums = sums_of_squares(run);
        let total: f64 = sums.iter().sum();
        let bad = if total.is_finite() { None } else { first_not_finite(run.inputs, sums) };
        // SAFETY: the outputs are fresh, of one element each, and of these types by `infer`.
        unsafe {
            match norm.dtype() {
                DType::F64 => *norm.ptr().cast::<f64>() = total.sqrt(),
                _ => *norm.ptr().cast::<f32>() = total.sqrt() as f32,
            }
            *first_bad.ptr().cast::<i64>() = bad.map_or(-1, |idx| idx as i64);
        }
        Ok(())
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        inputs.iter().map(|meta| n_chunks(meta.n_elems())).sum::<usize>() * cuda::PARTIAL_BYTES
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::run(run, gpu)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let inputs = (0..wanted.len()).filter(|&idx| wanted[idx]).map(SavedRef::Input);
        inputs.chain([SavedRef::Output(0)]).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let norm = backward.output(0)?;
        // Of zeros alone the gradient is taken as zero.
        let not_zero = norm.add(&norm.eq(0.0)?.cast(norm.dtype())?)?;
        let share = backward.gradient()?.div(&not_zero)?;
        for idx in
            (0..backward.n_inputs()).filter(|&idx| backward.wants(idx)).collect::<SmallVec<[usize; 8]>>()
        {
            let gradient = backward.input(idx)?.mul(&share.cast(backward.input_dtype(idx))?)?;
            backward.set_grad(idx, gradient)?;
        }
        Ok(())
    }
}

fn n_chunks(n_elems: usize) -> usize {
    n_elems.div_ceil(NORM_CHUNK)
}

/// The sum of squares of every chunk, in the order of the inputs.
fn sums_of_squares<'a>(run: &Run<'a>) -> &'a [f64] {
    // SAFETY: this is the only slice of the call's scratch memory.
    let workspace = unsafe { run.workspace_bytes() };
    let n_sums = workspace.len() / size_of::<f64>();
    if n_sums == 0 {
        return &[];
    }
    let sums = SharedPtr::new(workspace.as_mut_ptr().cast::<f64>());
    let n_elems: usize = run.inputs.iter().map(Operand::n_elems).sum();
    let inputs = SharedInputs(run.inputs);
    threads::parallel(n_elems.div_ceil(TASK_LEN), |task| {
        let stretch = task * TASK_LEN..(task + 1) * TASK_LEN;
        for_each_chunk(inputs.get(), stretch, |input, chunk, number| {
            let sum = for_floats!(input.dtype(), T => sum_of_chunk::<T>(input, chunk));
            // SAFETY: the workspace has a sum for each chunk, and each chunk is in one stretch. Blocks are aligned for f64.
            unsafe { *sums.get().add(number) = sum };
        });
    });
    // SAFETY: every chunk's sum is written above.
    unsafe { std::slice::from_raw_parts(sums.get(), n_sums) }
}

/// The inputs of a kernel, for all its tasks.
struct SharedInputs<'a>(&'a [Operand<'a>]);

impl<'a> SharedInputs<'a> {
    fn get(&self) -> &'a [Operand<'a>] {
        self.0
    }
}

// SAFETY: operands are addresses and layouts; tasks read the inputs, which nobody writes meanwhile.
unsafe impl Sync for SharedInputs<'_> {}

/// Calls `f` with the input, the elements and the number of every chunk that begins inside a stretch of all elements.
fn for_each_chunk(
    inputs: &[Operand],
    stretch: Range<usize>,
    mut f: impl FnMut(&Operand, Range<usize>, usize),
) {
    let (mut start, mut number) = (0, 0);
    for input in inputs {
        if start >= stretch.end {
            return;
        }
        let len = input.n_elems();
        let n_before = stretch.start.saturating_sub(start).div_ceil(NORM_CHUNK);
        for chunk in n_before..n_chunks(len) {
            let first = chunk * NORM_CHUNK;
            if start + first >= stretch.end {
                break;
            }
            f(input, first..len.min(first + NORM_CHUNK), number + chunk);
        }
        start += len;
        number += n_chunks(len);
    }
}

fn sum_of_chunk<T: Element<Compute: Real>>(input: &Operand, chunk: Range<usize>) -> f64 {
    let mut sum = 0.0;
    for_each_piece::<T>(input, chunk, |values| sum += sum_of_squares(values));
    sum
}

/// Calls `f` with the elements of a chunk, some at a time: in the order of memory if they fill it without gaps, else in
/// row-major order.
fn for_each_piece<T: Element>(input: &Operand, chunk: Range<usize>, mut f: impl FnMut(&[T])) {
    let first = input.ptr().cast::<T>().cast_const();
    if is_dense(input) {
        // SAFETY: the input fills as many elements from its first on as it has.
        return f(unsafe { std::slice::from_raw_parts(first.add(chunk.start), chunk.len()) });
    }
    let (shape, strides) = (input.shape(), input.meta.layout.strides());
    let mut piece = [T::default(); 256];
    for start in chunk.clone().step_by(piece.len()) {
        let n = piece.len().min(chunk.end - start);
        for (flat, value) in (start..).zip(&mut piece[..n]) {
            // SAFETY: the offset is that of an element.
            *value = unsafe { *first.offset(offset_of(shape, strides, flat)) };
        }
        f(&piece[..n]);
    }
}

/// Whether the elements fill their memory without gaps, in whatever order of the axes.
fn is_dense(input: &Operand) -> bool {
    let layout = &input.meta.layout;
    let mut axes: SmallVec<[usize; MAX_RANK]> = (0..layout.shape().rank()).collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse(layout.strides()[axis]));
    layout.permuted(&axes).is_contiguous()
}

#[inline(never)]
fn sum_of_squares<T: Element<Compute: Real>>(values: &[T]) -> f64 {
    simd::vectorize(
        #[inline(always)]
        || {
            in_lanes(
                values,
                0.0,
                #[inline(always)]
                |value, _| {
                    let value = value.widen().to_f64();
                    value * value
                },
                |a, b| a + b,
            )
        },
    )
}

/// The first input with a value that is not finite. Sums that are finite need no second look; the others may be so
/// because the squares of large f64 values are.
fn first_not_finite(inputs: &[Operand], sums: &[f64]) -> Option<usize> {
    let mut number = 0;
    inputs.iter().position(|input| {
        let chunks = n_chunks(input.n_elems());
        let mut suspicious = (0..chunks).filter(|chunk| !sums[number + chunk].is_finite());
        let is_bad = suspicious.any(|chunk| {
            let elements = chunk * NORM_CHUNK..input.n_elems().min((chunk + 1) * NORM_CHUNK);
            for_floats!(input.dtype(), T => has_bad::<T>(input, elements))
        });
        number += chunks;
        is_bad
    })
}

fn has_bad<T: Element<Compute: Real>>(input: &Operand, chunk: Range<usize>) -> bool {
    let mut found = false;
    for_each_piece::<T>(input, chunk, |values| {
        found |= values.iter().any(|value| !value.widen().to_f64().is_finite());
    });
    found
}

impl Tensor {
    /// The norm over all elements of all tensors, and the index of the first tensor that holds a value that is not
    /// finite, or -1. Both are scalars on the device: the norm float32, or float64 if a tensor is; the index int64. The
    /// tensors may have different shapes and float dtypes, and be on several devices: then both are on the first one's.
    ///
    /// # Errors
    /// No tensor, tensors that are not floats; memory that is full.
    #[doc = example!("global_norm")]
    #[doc(alias("clip_grad_norm", "clip_by_global_norm"))]
    #[track_caller]
    pub fn global_norm(tensors: &[&Tensor]) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        if tensors.is_empty() {
            return Err(Error::argument("global_norm", "no tensors; there must be at least one"));
        }
        let first = tensors[0].device();
        if tensors.iter().any(|tensor| tensor.device() != first) {
            return parts::norm_over_devices(tensors);
        }
        let both =
            execute(OpRef::fixed(&GlobalNorm), tensors.iter().map(|tensor| Arg::Lent(tensor)).collect())?;
        let [norm, first_bad] =
            both.into_vec().try_into().unwrap_or_else(|_| unreachable!("a norm and an index"));
        Ok((norm, first_bad))
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[&OpInfo {
    name: "global_norm",
    doc: "The norm over all elements of many tensors, and the first with a value that is not finite.",
    samples,
}];

fn samples() -> Vec<Sample> {
    let sample = |name: &str, inputs: Vec<Input>| {
        let n_inputs = inputs.len();
        let names: Vec<String> = (0..n_inputs).map(|idx| format!("x{idx}.flatten()")).collect();
        Sample::many(name, inputs, |x| {
            Tensor::global_norm(&x.iter().collect::<Vec<_>>()).map(|(norm, bad)| vec![norm, bad])
        })
        .references(|x| {
            let squares: f64 = x.iter().flat_map(|x| &x.values).map(|x| x * x).sum();
            vec![Array::new(&[], vec![squares.sqrt()]), Array::new(&[], vec![-1.0])]
        })
        .torch(format!("(torch.cat(({},)).norm(), torch.tensor(-1))", names.join(", ")))
    };
    vec![
        sample("three tensors", vec![floats(&[2, 3]), floats(&[4]), floats(&[1, 2, 2])])
            .example("let (norm, not_finite) = Tensor::global_norm(&[&x0, &x1, &x2])")
            .refuses(vec![floats(&[2]), input(&[3], Values::Indices(4))], "tensor 1 is int64")
            .refuses(vec![], "no tensors"),
        sample("one tensor", vec![floats(&[3, 4])]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm_of(tensors: &[&Tensor]) -> Result<(f64, i64)> {
        let (norm, first_bad) = Tensor::global_norm(tensors)?;
        Ok((norm.to_f64_vec()?[0], first_bad.item::<i64>()?))
    }

    #[test]
    fn the_first_bad_tensor_is_named() -> Result<()> {
        let good = Tensor::ones(40_000)?;
        let with = |value: f32| {
            let mut values = vec![0.5f32; 20_000];
            values[17_000] = value;
            Tensor::from_vec(values)
        };
        assert_eq!(norm_of(&[&good, &good])?.1, -1);
        assert_eq!(norm_of(&[&good, &with(f32::NAN)?, &with(f32::INFINITY)?])?.1, 1);
        let (norm, first_bad) = norm_of(&[&good, &good, &with(f32::NEG_INFINITY)?])?;
        assert_eq!((norm, first_bad), (f64::INFINITY, 2));
        assert_eq!(norm_of(&[&good, &with(f32::NAN)?.cast(DType::F16)?])?.1, 1);
        Ok(())
    }

    #[test]
    fn the_gradient_at_zero_is_zero() -> Result<()> {
        let x = Tensor::zeros(3)?;
        let tape = crate::autograd::GradientTape::new();
        tape.watch(&x)?;
        let (norm, _) = tape.record(|| Tensor::global_norm(&[&x]))?;
        assert_eq!(tape.gradient(&norm, [&x])?[0].to_vec::<f32>()?, [0.0; 3]);
        Ok(())
    }

    #[test]
    fn large_finite_values_are_not_bad() -> Result<()> {
        let large = Tensor::full(4, 3e30)?;
        assert_eq!(norm_of(&[&large])?, (f64::from(6e30f32), -1));
        let (norm, first_bad) = norm_of(&[&Tensor::full_of(4, 1e200, DType::F64)?])?;
        assert_eq!((norm, first_bad), (f64::INFINITY, -1));
        Ok(())
    }

    #[test]
    fn every_element_counts_once_wherever_the_cuts_are() -> Result<()> {
        let sizes = [1, 0, 16_384, 16_385, 3, 131_072, 7, 300_001];
        let tensors: Vec<Tensor> = sizes.iter().map(|&n| Tensor::ones(n)).collect::<Result<_>>()?;
        let n_elems: usize = sizes.iter().sum();
        assert_eq!(
            norm_of(&tensors.iter().collect::<Vec<_>>())?,
            (f64::from((n_elems as f64).sqrt() as f32), -1)
        );
        let strided = Tensor::ones([300, 200])?.narrow(1, 3, 100)?;
        assert_eq!(norm_of(&[&strided, &strided.t()?])?.0, f64::from(60_000f32.sqrt()));
        Ok(())
    }
}
