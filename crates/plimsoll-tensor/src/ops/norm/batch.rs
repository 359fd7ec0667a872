//! `batch_norm`: over all axes but the last, the channels; with relu behind it, if it is asked for.
//!
//! Relu belongs to the op because of what is kept: backward tells from the norm's input where relu's was positive, so that
//! neither relu's output nor a mask is kept for it.

use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::batch_add_relu::BatchNormAddRelu;
use super::{batch_cuda as cuda, batch_kernel as kernel};
use super::{check, check_backward, check_statistics, composite_backward};
use crate::base::axes::Axes;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, call, execute};
use crate::eager::op::{AuxOutput, Form, Gradient, Meta, Op, OpRef, SavedRef, SavedRefs};
use crate::eager::op::{Output, Outputs, Rebuild, Run, TakesMade, Tensors, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::Activation;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{expect_dtype, expect_shape};
use crate::ops::registry::{Array, OpInfo, Sample, floats, within};

/// y = (x - mean) rstd gamma + beta for each channel, or relu of that. Outputs: y, mean and variance. Auxiliary outputs: mean
/// and rstd.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNorm {
    pub eps: f64,
    pub has_relu: bool,
}

/// What is done to the norm before it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Nothing,
    Relu,
    /// The fourth input is added, and relu taken of that.
    AddRelu,
}

impl Behind {
    fn relu(has_relu: bool) -> Behind {
        if has_relu { Behind::Relu } else { Behind::Nothing }
    }
}

/// The same with given statistics: how an output is rebuilt. Inputs: x, gamma, beta, mean, rstd.
#[derive(Debug)]
struct ApplyBatchNorm {
    has_relu: bool,
}

/// From the gradient of the output to those that are wanted of x, gamma and beta. Inputs: the gradient, x, gamma, mean
/// and rstd; with relu, beta, too, and that tells the two apart. The first result is written over the gradient.
#[derive(Clone, Copy, Debug)]
struct BatchNormBackward {
    eps: f64,
    wanted: [bool; 3],
}

/// All axes but the last; none of a single number, which `infer` refuses.
pub(super) fn batch_axes(shape: &Shape) -> Axes {
    Axes::of(0..shape.rank().saturating_sub(1))
}

/// The bytes that a forward needs: three values per channel, in the compute type.
pub(super) fn forward_bytes(x: &Meta) -> usize {
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

    /// Whether backward reads the input. Without relu the gradient of beta is a sum of that of the output.
    pub fn reads_input(self, wanted: &[bool]) -> bool {
        wanted[0] || wanted[1] || self.has_relu
    }

    /// Sets the gradients of x, gamma and beta that are wanted, from that of the output.
    pub fn set_gradients(self, backward: &mut Backward<'_>, gradient: Tensor) -> Result<()> {
        let wanted = [0, 1, 2].map(|input| backward.wants(input));
        if !self.reads_input(&wanted) {
            let shape = *backward.input_shape(2);
            return backward.set_grad(2, gradient.sum_to(&shape)?);
        }
        let mut args: SmallVec<_> = smallvec![
            Arg::Given(gradient),
            Arg::Given(backward.input(0)?),
            Arg::Given(backward.input(1)?),
            Arg::Given(backward.aux(0)?),
            Arg::Given(backward.aux(1)?),
        ];
        if self.has_relu {
            args.push(Arg::Given(backward.input(2)?));
        }
        let results = execute(OpRef::shipped(BatchNormBackward { eps: self.eps, wanted }), args)?;
        let inputs = (0..3).filter(|&input| wanted[input]);
        inputs.zip(results).try_for_each(|(input, result)| backward.set_grad(input, result))
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
        let behind = Behind::relu(self.has_relu);
        for_floats!(run.inputs[0].dtype(), T => kernel::normalise::<T>(self.eps, behind, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        forward_bytes(inputs[0])
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::normalise(self.name(), self.eps, Behind::relu(self.has_relu), run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::forward_bytes(inputs[0])
    }

    fn takes_made(&self, _inputs: &[&Meta]) -> Option<TakesMade> {
        Some(TakesMade::Written { over_output: false })
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        if !self.reads_input(wanted) {
            return SavedRefs::new();
        }
        let mut saved: SavedRefs =
            smallvec![SavedRef::Input(0), SavedRef::Input(1), SavedRef::Aux(0), SavedRef::Aux(1)];
        saved.extend(self.has_relu.then_some(SavedRef::Input(2)));
        saved
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        if !self.reads_input(wanted) {
            return SmallVec::new();
        }
        let meta = Meta::fresh(*inputs[1].shape(), inputs[0].dtype.accumulator());
        smallvec![AuxOutput { form: Form::Statistics, meta }; 2]
    }

    fn with_add_relu(&self) -> Option<OpRef> {
        (!self.has_relu).then(|| OpRef::shipped(BatchNormAddRelu { norm: *self }))
    }

    fn rebuild(&self) -> Option<Rebuild> {
        let apply = match self.has_relu {
            true => OpRef::fixed(&ApplyBatchNorm { has_relu: true }),
            false => OpRef::fixed(&ApplyBatchNorm { has_relu: false }),
        };
        Rebuild::first(apply, 3, 2)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        self.set_gradients(backward, gradient)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let results = || -> Result<Tensors> {
            let y = BatchNorm::plain(self.eps, inputs[0], inputs[1])?.add(inputs[2])?;
            let y = if self.has_relu { y.into_relu()? } else { y };
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
        let behind = Behind::relu(self.has_relu);
        for_floats!(run.inputs[0].dtype(), T => kernel::apply::<T>(behind, run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::apply(self.name(), Behind::relu(self.has_relu), run, [&run.inputs[3], &run.inputs[4]], gpu)
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
            let y = centred.mul(&rstd.cast(x.dtype())?)?.mul(gamma)?.add(beta)?;
            if self.has_relu { y.into_relu() } else { Ok(y) }
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
        check_backward(self.name(), &inputs[..5], gamma.shape())?;
        for beta in &inputs[5..] {
            expect_shape(self.name(), "beta", beta, gamma.shape())?;
            expect_dtype(self.name(), "beta", beta, gamma.dtype)?;
        }
        let all = [x, gamma, gamma].map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype });
        Ok(all.into_iter().zip(self.wanted).filter_map(|(output, wanted)| wanted.then_some(output)).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[1].dtype(), T => kernel::backward::<T>(self.wanted, run));
        Ok(())
    }

    fn takes_made(&self, _inputs: &[&Meta]) -> Option<TakesMade> {
        self.wanted[0].then_some(TakesMade::Written { over_output: true })
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::backward_values(inputs) * inputs[1].dtype.accumulator().size()
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
        let plain = || BatchNorm::plain(self.eps, x, gamma);
        let results = || match inputs.get(5) {
            None => composite_backward(plain, (gradient, x, gamma), self.wanted),
            Some(beta) => {
                let passed = Activation::Relu.plain_back(gradient, &plain()?.add(*beta)?)?;
                composite_backward(plain, (&passed, x, gamma), self.wanted)
            }
        };
        Some(results())
    }

    fn overwrites(&self) -> &'static [usize] {
        if self.wanted[0] { &[0] } else { &[] }
    }
}

/// The registry's entry of `batch_norm`.
pub(super) const INFO: OpInfo =
    OpInfo { name: "batch_norm", doc: "Batch norm over all axes but the last, for training.", samples };

/// The registry's entry of `batch_norm_apply`.
pub(super) const APPLY_INFO: OpInfo = OpInfo {
    name: "batch_norm_apply",
    doc: "The output of batch_norm rebuilt from its saved statistics.",
    samples: apply_samples,
};

/// The registry's entry of `batch_norm_backward`.
pub(super) const BACKWARD_INFO: OpInfo = OpInfo {
    name: "batch_norm_backward",
    doc: "The gradients of batch_norm from that of its output.",
    samples: backward_samples,
};

pub(super) const EPS: f64 = 1e-3;

pub(super) fn reference(x: &[Array]) -> Array {
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
    const ROWS: &str = "F.batch_norm(x0, None, None, x1, x2, True, 0.1, 1e-3)";
    const IMAGES: &str =
        "F.batch_norm(x0.movedim(-1, 1), None, None, x1, x2, True, 0.1, 1e-3).movedim(1, -1)";
    let inputs = |shape: &[usize]| {
        let width = shape[shape.len() - 1];
        vec![floats(shape), floats(&[width]), floats(&[width])]
    };
    let plain = |name: &str, shape: &[usize], torch: &str| {
        Sample::new(name, inputs(shape), |x| Ok(x[0].batch_norm(&x[1], &x[2], EPS)?.0))
            .reference(reference)
            .torch(torch)
            .example("let (normed, mean, variance) = x0.batch_norm(&x1, &x2, 1e-3)")
    };
    let with_relu = |name: &str, shape: &[usize], torch: &str| {
        Sample::new(name, inputs(shape), |x| Ok(x[0].batch_norm_relu(&x[1], &x[2], EPS)?.0))
            .reference(|x| reference(x).map(|y| y.max(0.0)))
            .torch(format!("F.relu({torch})"))
            .example("let (normed, mean, variance) = x0.batch_norm_relu(&x1, &x2, 1e-3)")
    };
    let refused = || vec![floats(&[2, 3]), floats(&[3]), floats(&[2])];
    vec![
        plain("rows", &[5, 3], ROWS).refuses(refused(), "beta is [2] but the last axis"),
        plain("images", &[2, 2, 3, 2], IMAGES),
        with_relu("relu_rows", &[5, 3], ROWS).refuses(refused(), "beta is [2] but the last axis"),
        with_relu("relu_images", &[2, 2, 3, 2], IMAGES),
    ]
}

fn apply_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], has_relu: bool| {
        let vector = || floats(&[3]);
        let inputs = vec![floats(shape), vector(), vector(), vector(), within(&[3], 0.5, 2.0)];
        Sample::new(name, inputs, move |x| {
            let wide = |x: &Tensor| x.cast(x.dtype().accumulator());
            let args = [&x[0], &x[1], &x[2], &wide(&x[3])?, &wide(&x[4])?];
            call(OpRef::shipped(ApplyBatchNorm { has_relu }), &args)
        })
    };
    vec![
        sample("rows", &[4, 3], false),
        sample("images", &[2, 2, 2, 3], false),
        sample("relu_images", &[2, 2, 2, 3], true),
    ]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], has_relu: bool, wanted: [bool; 3]| {
        let vector = || floats(&[shape[shape.len() - 1]]);
        let mut inputs = vec![floats(shape), floats(shape), vector()];
        inputs.extend(has_relu.then(vector));
        Sample::many(name, inputs, move |x| {
            let wide = x[1].cast(x[1].dtype().accumulator())?;
            let [mean, variance] = BatchNorm::plain_statistics(&wide)?;
            let (mean, rstd) = (mean.flatten()?, variance.affine(1.0, EPS)?.rsqrt()?.flatten()?);
            let args =
                [&x[0], &x[1], &x[2], &mean, &rstd].into_iter().chain(&x[3..]).map(Arg::Lent).collect();
            Ok(execute(OpRef::shipped(BatchNormBackward { eps: EPS, wanted }), args)?.into_vec())
        })
    };
    vec![
        sample("all", &[4, 3], false, [true; 3]),
        sample("input", &[2, 3, 2], false, [true, false, false]),
        sample("gamma", &[4, 3], false, [false, true, false]),
        sample("relu_all", &[4, 3], true, [true; 3]),
        sample("relu_input", &[2, 3, 2], true, [true, false, false]),
        sample("relu_parameters", &[4, 3], true, [false, true, true]),
    ]
}
