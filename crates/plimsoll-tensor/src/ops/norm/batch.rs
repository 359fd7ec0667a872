//! `batch_norm`: over all axes but the last, the channels.

use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::{batch_cuda as cuda, batch_kernel as kernel};
use super::{check, check_backward, check_statistics, composite_backward};
use crate::error::Result;
use crate::execute::{Arg, call, execute};
use crate::op::{Extra, Form, Gradient, Keep, Keeps, Meta, Op, OpRef, Output, Outputs, Run, Tensors, one};
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, OpInfo, Sample, floats, within};
use crate::shape::{Axes, Shape};
use crate::tape::Backward;
use crate::tensor::Tensor;

/// y = (x - mean) rstd gamma + beta for each channel. Outputs: y, mean and variance. Extras: mean and rstd.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNorm {
    pub eps: f64,
}

/// The same with given statistics: how an output is rebuilt. Inputs: x, gamma, beta, mean, rstd.
#[derive(Debug)]
struct ApplyBatchNorm;

/// From the gradient of the output to those that are wanted of x, gamma and beta. Inputs: the gradient, x, gamma, mean
/// and rstd. The first result is written over the gradient.
#[derive(Clone, Copy, Debug)]
struct BatchNormBackward {
    eps: f64,
    wanted: [bool; 3],
}

/// All axes but the last.
fn batch_axes(shape: &Shape) -> Axes {
    Axes::of(0..shape.rank() - 1)
}

/// The bytes that a forward needs: three values per channel, in the compute type.
fn forward_bytes(x: &Meta) -> usize {
    3 * x.shape().last().copied().unwrap_or(0) * x.dtype.accumulator().size()
}

impl BatchNorm {
    /// Mean and variance of wide floats in plain ops, with all axes kept.
    fn plain_statistics(x: &Tensor) -> Result<[Tensor; 2]> {
        let axes = batch_axes(x.shape());
        let mean = x.mean_keepdims(axes)?;
        let centred = x.sub(&mean)?;
        Ok([mean, centred.mul(&centred)?.mean_keepdims(axes)?])
    }

    /// The norm in plain ops, without beta; narrow floats are computed in wide ones.
    fn plain(eps: f64, x: &Tensor, gamma: &Tensor) -> Result<Tensor> {
        let (narrow, wide) = (x.dtype(), x.dtype().accumulator());
        let (x, gamma) = (x.cast(wide)?, gamma.cast(wide)?);
        let [mean, variance] = BatchNorm::plain_statistics(&x)?;
        x.sub(&mean)?.mul(&variance.affine(1.0, eps)?.rsqrt()?)?.mul(&gamma)?.cast(narrow)
    }
}

impl Op for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, gamma) = (&inputs[0], &inputs[1]);
        check("batch_norm", x, &inputs[1..])?;
        let statistics = Output::New { shape: *gamma.shape(), dtype: x.dtype.accumulator() };
        Ok(smallvec![Output::New { shape: *x.shape(), dtype: x.dtype }, statistics.clone(), statistics])
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::normalise::<T>(self.eps, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        forward_bytes(inputs[0])
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::normalise(self.eps, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::forward_bytes(inputs[0])
    }

    fn keeps(&self, wanted: &[bool]) -> Keeps {
        match wanted[0] || wanted[1] {
            true => smallvec![Keep::Input(0), Keep::Input(1), Keep::Extra(0), Keep::Extra(1)],
            false => Keeps::new(),
        }
    }

    fn extras(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[Extra; 2]> {
        if !wanted[0] && !wanted[1] {
            return SmallVec::new();
        }
        let meta = Meta::fresh(*inputs[1].shape(), inputs[0].dtype.accumulator());
        smallvec![Extra { form: Form::Statistics, meta }; 2]
    }

    fn rebuild(&self) -> Option<OpRef> {
        Some(OpRef::Static(&ApplyBatchNorm))
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let wanted = [0, 1, 2].map(|input| backward.wants(input));
        if !wanted[0] && !wanted[1] {
            let shape = *backward.input_shape(2);
            return backward.give(2, gradient.sum_to(&shape)?);
        }
        let args = smallvec![
            Arg::Given(gradient),
            Arg::Given(backward.input(0)?),
            Arg::Given(backward.input(1)?),
            Arg::Given(backward.extra(0)?),
            Arg::Given(backward.extra(1)?),
        ];
        let results = execute(OpRef::new(BatchNormBackward { eps: self.eps, wanted }), args)?;
        let inputs = (0..3).filter(|&input| wanted[input]);
        inputs.zip(results).try_for_each(|(input, result)| backward.give(input, result))
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let results = || -> Result<Tensors> {
            let y = BatchNorm::plain(self.eps, inputs[0], inputs[1])?.add(inputs[2])?;
            let wide = inputs[0].cast(inputs[0].dtype().accumulator())?;
            let [mean, variance] = BatchNorm::plain_statistics(&wide)?;
            let shape = *inputs[1].shape();
            Ok(smallvec![y, mean.reshape(shape)?, variance.reshape(shape)?])
        };
        Some(results())
    }
}

impl Op for ApplyBatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm_apply"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self.name(), inputs[0], &inputs[1..3])?;
        check_statistics(self.name(), &inputs[3..], inputs[1].shape(), inputs[0].dtype)?;
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::apply::<T>(run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::apply(self.name(), run, [&run.inputs[3], &run.inputs[4]], gpu)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        forward_bytes(inputs[0])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let [x, gamma, beta, mean, rstd] = *inputs else { unreachable!("five operands") };
        let result = || {
            let centred = x.sub(&mean.cast(x.dtype())?)?;
            centred.mul(&rstd.cast(x.dtype())?)?.mul(gamma)?.add(beta)
        };
        Some(result().map(|y| smallvec![y]))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Op for BatchNormBackward {
    fn name(&self) -> &'static str {
        "batch_norm_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, gamma) = (&inputs[1], &inputs[2]);
        check_backward(self.name(), inputs, gamma.shape())?;
        let all = [x, gamma, gamma].map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype });
        Ok(all.into_iter().zip(self.wanted).filter_map(|(output, wanted)| wanted.then_some(output)).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[1].dtype(), T => kernel::backward::<T>(self.wanted, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::backward_values(inputs[1]) * inputs[1].dtype.accumulator().size()
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::backward(self.wanted, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::backward_bytes(self.wanted, inputs)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let (gradient, x, gamma) = (inputs[0], inputs[1], inputs[2]);
        Some(composite_backward(|| BatchNorm::plain(self.eps, x, gamma), (gradient, x, gamma), self.wanted))
    }

    fn overwrites(&self) -> &'static [usize] {
        if self.wanted[0] { &[0] } else { &[] }
    }
}

/// The registry's entry of `batch_norm`.
pub(super) static INFO: OpInfo =
    OpInfo { name: "batch_norm", doc: "Batch norm over all axes but the last, for training.", samples };

/// The registry's entry of `batch_norm_apply`.
pub(super) static APPLY_INFO: OpInfo = OpInfo {
    name: "batch_norm_apply",
    doc: "The output of batch_norm rebuilt from its kept statistics.",
    samples: apply_samples,
};

/// The registry's entry of `batch_norm_backward`.
pub(super) static BACKWARD_INFO: OpInfo = OpInfo {
    name: "batch_norm_backward",
    doc: "The gradients of batch_norm from that of its output.",
    samples: backward_samples,
};

const EPS: f64 = 1e-3;

fn reference(x: &[Array]) -> Array {
    let width = x[1].shape[0];
    let column = |channel: usize| x[0].values.iter().skip(channel).step_by(width);
    Array::build(&x[0].shape, |idx| {
        let channel = idx[idx.len() - 1];
        let n = column(channel).count() as f64;
        let mean = column(channel).sum::<f64>() / n;
        let variance = column(channel).map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        (x[0].at(idx) - mean) / (variance + EPS).sqrt() * x[1].at(idx) + x[2].at(idx)
    })
}

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], torch: &str| {
        let width = shape[shape.len() - 1];
        Sample::new(name, vec![floats(shape), floats(&[width]), floats(&[width])], |x| {
            Ok(x[0].batch_norm(&x[1], &x[2], EPS)?.0)
        })
        .reference(reference)
        .torch(torch)
    };
    vec![
        sample("rows", &[5, 3], "F.batch_norm(x0, None, None, x1, x2, True, 0.1, 1e-3)")
            .refuses(vec![floats(&[2, 3]), floats(&[3]), floats(&[2])], "beta is [2] but the last axis"),
        sample(
            "images",
            &[2, 2, 3, 2],
            "F.batch_norm(x0.movedim(-1, 1), None, None, x1, x2, True, 0.1, 1e-3).movedim(1, -1)",
        ),
    ]
}

fn apply_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        let vector = || floats(&[3]);
        let inputs = vec![floats(shape), vector(), vector(), vector(), within(&[3], 0.5, 2.0)];
        Sample::new(name, inputs, |x| {
            let wide = |x: &Tensor| x.cast(x.dtype().accumulator());
            call(OpRef::Static(&ApplyBatchNorm), &[&x[0], &x[1], &x[2], &wide(&x[3])?, &wide(&x[4])?])
        })
    };
    vec![sample("rows", &[4, 3]), sample("images", &[2, 2, 2, 3])]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], wanted: [bool; 3]| {
        let width = shape[shape.len() - 1];
        let inputs = vec![floats(shape), floats(shape), floats(&[width])];
        Sample::many(name, inputs, move |x| {
            let wide = x[1].cast(x[1].dtype().accumulator())?;
            let [mean, variance] = BatchNorm::plain_statistics(&wide)?;
            let (mean, rstd) = (mean.flatten()?, variance.affine(1.0, EPS)?.rsqrt()?.flatten()?);
            let args = [&x[0], &x[1], &x[2], &mean, &rstd].into_iter().map(Arg::Lent).collect();
            Ok(execute(OpRef::new(BatchNormBackward { eps: EPS, wanted }), args)?.into_vec())
        })
    };
    vec![
        sample("all", &[4, 3], [true; 3]),
        sample("input", &[2, 3, 2], [true, false, false]),
        sample("gamma", &[4, 3], [false, true, false]),
    ]
}
