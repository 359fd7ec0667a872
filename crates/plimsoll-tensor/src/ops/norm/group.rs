//! `group_norm`: over all places of an example and the channels of a group.

use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::{check, check_backward, check_statistics, composite_backward};
use super::{group_cuda as cuda, group_kernel as kernel};
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, call, execute};
use crate::eager::op::{AuxOutput, Form, Gradient, Meta, Op, OpRef, SavedRef, SavedRefs};
use crate::eager::op::{Output, Outputs, Rebuild, Run, Tensors, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, OpInfo, Sample, floats, within};

/// y = (x - mean) rstd gamma + beta with the statistics of each example's groups of channels. Auxiliary outputs: mean and
/// rstd, both `[examples, groups]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupNorm {
    pub groups: usize,
    pub eps: f64,
}

/// The same with given statistics: how an output is rebuilt. Inputs: x, gamma, beta, mean, rstd.
#[derive(Clone, Copy, Debug)]
struct ApplyGroupNorm {
    groups: usize,
}

/// From the gradient of the output to those that are wanted of x, gamma and beta. Inputs: the gradient, x, gamma, mean
/// and rstd. The first result is written over the gradient.
#[derive(Clone, Copy, Debug)]
struct GroupNormBackward {
    norm: GroupNorm,
    wanted: [bool; 3],
}

/// Refuses an input without examples and channels, channels that do not make so many groups, and parameters that do not
/// fit.
fn check_groups(op: &'static str, groups: usize, x: &Meta, parameters: &[&Meta]) -> Result<()> {
    check(op, x, parameters)?;
    let shape = x.shape();
    if shape.rank() < 2 {
        return Err(Error::shape(op, format!("the input is {shape}; it must be [examples, .., channels]")));
    }
    let channels = shape[shape.rank() - 1];
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(Error::argument(op, format!("{channels} channels do not make {groups} equal groups")));
    }
    // Without channels there may be more groups than elements; the kernels name a shape that has them for an axis.
    shape.with_dim(shape.rank() - 1, groups)?;
    Ok(())
}

/// The shape of one number per example and group.
fn per_group(x: &Meta, groups: usize) -> Shape {
    Shape::within_bounds([x.shape().first().copied().unwrap_or(0), groups])
}

/// A tensor as `[examples, places, groups, channels of a group]`.
fn grouped(x: &Tensor, groups: usize) -> Result<Tensor> {
    let &[examples, ref places @ .., channels] = x.shape().dims() else {
        let detail = format!("the input is {}; it must be [examples, .., channels]", x.shape());
        return Err(Error::shape("group_norm", detail));
    };
    x.reshape([examples, places.iter().product(), groups, channels / groups])
}

impl GroupNorm {
    /// Mean and variance of wide floats in plain ops, `[examples, 1, groups, 1]`.
    fn plain_statistics(self, x: &Tensor) -> Result<[Tensor; 2]> {
        let x = grouped(x, self.groups)?;
        let mean = x.mean_keepdims([1, 3])?;
        let centred = x.sub(&mean)?;
        Ok([mean, centred.mul(&centred)?.mean_keepdims([1, 3])?])
    }

    /// The norm in plain ops, without beta; narrow floats are computed in wide ones.
    fn plain(self, x: &Tensor, gamma: &Tensor) -> Result<Tensor> {
        let (shape, narrow, wide) = (*x.shape(), x.dtype(), x.dtype().accumulator());
        let (x, gamma) = (x.cast(wide)?, gamma.cast(wide)?);
        let [mean, variance] = self.plain_statistics(&x)?;
        let rstd = variance.affine(1.0, self.eps)?.rsqrt()?;
        let normalised = grouped(&x, self.groups)?.sub(&mean)?.mul(&rstd)?;
        normalised.reshape(shape)?.mul(&gamma)?.cast(narrow)
    }
}

impl Op for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_groups(self.name(), self.groups, inputs[0], &inputs[1..])?;
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::normalise::<T>(self.groups, self.eps, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::forward_values(inputs[0], self.groups) * inputs[0].dtype.accumulator().size()
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::normalise(self.groups, self.eps, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::forward_bytes(self.groups, inputs[0])
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        match wanted[0] || wanted[1] {
            true => smallvec![SavedRef::Input(0), SavedRef::Input(1), SavedRef::Aux(0), SavedRef::Aux(1)],
            false => SavedRefs::new(),
        }
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        if !wanted[0] && !wanted[1] {
            return SmallVec::new();
        }
        let meta = Meta::fresh(per_group(inputs[0], self.groups), inputs[0].dtype.accumulator());
        smallvec![AuxOutput { form: Form::Statistics, meta }; 2]
    }

    fn rebuild(&self) -> Option<Rebuild> {
        Rebuild::first(OpRef::shipped(ApplyGroupNorm { groups: self.groups }), 3, 2)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let wanted = [0, 1, 2].map(|input| backward.wants(input));
        if !wanted[0] && !wanted[1] {
            let shape = *backward.input_shape(2);
            return backward.set_grad(2, gradient.sum_to(&shape)?);
        }
        let args = smallvec![
            Arg::Given(gradient),
            Arg::Given(backward.input(0)?),
            Arg::Given(backward.input(1)?),
            Arg::Given(backward.aux(0)?),
            Arg::Given(backward.aux(1)?),
        ];
        let results = execute(OpRef::shipped(GroupNormBackward { norm: *self, wanted }), args)?;
        let inputs = (0..3).filter(|&input| wanted[input]);
        inputs.zip(results).try_for_each(|(input, result)| backward.set_grad(input, result))
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let result = self.plain(inputs[0], inputs[1]).and_then(|y| y.add(inputs[2]));
        Some(result.map(|y| smallvec![y]))
    }
}

impl Op for ApplyGroupNorm {
    fn name(&self) -> &'static str {
        "group_norm_apply"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_groups(self.name(), self.groups, inputs[0], &inputs[1..3])?;
        check_statistics(self.name(), &inputs[3..], &per_group(inputs[0], self.groups), inputs[0].dtype)?;
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::apply::<T>(self.groups, run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::apply(self.name(), self.groups, run, [&run.inputs[3], &run.inputs[4]], gpu)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::forward_values(inputs[0], self.groups) * inputs[0].dtype.accumulator().size()
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let [x, gamma, beta, mean, rstd] = *inputs else { unreachable!("five operands") };
        let column = |statistic: &Tensor| statistic.cast(x.dtype())?.unsqueeze(1)?.unsqueeze(-1);
        let result = || {
            let normalised = grouped(x, self.groups)?.sub(&column(mean)?)?.mul(&column(rstd)?)?;
            normalised.reshape(*x.shape())?.mul(gamma)?.add(beta)
        };
        Some(result().map(|y| smallvec![y]))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Op for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, gamma) = (&inputs[1], &inputs[2]);
        check_groups(self.name(), self.norm.groups, x, &inputs[2..3])?;
        check_backward(self.name(), inputs, &per_group(x, self.norm.groups))?;
        let all = [x, gamma, gamma].map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype });
        Ok(all.into_iter().zip(self.wanted).filter_map(|(output, wanted)| wanted.then_some(output)).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[1].dtype(), T => kernel::backward::<T>(self.norm.groups, self.wanted, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::backward_values(inputs[1], self.norm.groups) * inputs[1].dtype.accumulator().size()
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::backward(self.norm.groups, self.wanted, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::backward_bytes(self.norm.groups, self.wanted, inputs)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let (gradient, x, gamma) = (inputs[0], inputs[1], inputs[2]);
        Some(composite_backward(|| self.norm.plain(x, gamma), (gradient, x, gamma), self.wanted))
    }

    fn overwrites(&self) -> &'static [usize] {
        if self.wanted[0] { &[0] } else { &[] }
    }
}

/// The registry's entry of `group_norm`.
pub(super) const INFO: OpInfo =
    OpInfo { name: "group_norm", doc: "Group norm over places and the channels of a group.", samples };

/// The registry's entry of `group_norm_apply`.
pub(super) const APPLY_INFO: OpInfo = OpInfo {
    name: "group_norm_apply",
    doc: "The output of group_norm rebuilt from its saved statistics.",
    samples: apply_samples,
};

/// The registry's entry of `group_norm_backward`.
pub(super) const BACKWARD_INFO: OpInfo = OpInfo {
    name: "group_norm_backward",
    doc: "The gradients of group_norm from that of its output.",
    samples: backward_samples,
};

const EPS: f64 = 1e-3;

/// The norm by plain loops.
fn reference(x: &[Array], groups: usize) -> Array {
    let (examples, channels) = (x[0].shape[0], x[1].shape[0]);
    let (per_example, size) = (x[0].values.len() / examples.max(1), channels / groups);
    let mut y = x[0].clone();
    for example in 0..examples {
        for group in 0..groups {
            let is_ours = |&place: &usize| place % channels / size == group;
            let first = example * per_example;
            let places: Vec<usize> = (first..first + per_example).filter(is_ours).collect();
            let mean = places.iter().map(|&p| x[0].values[p]).sum::<f64>() / places.len() as f64;
            let square = |&p: &usize| (x[0].values[p] - mean).powi(2);
            let deviation = (places.iter().map(square).sum::<f64>() / places.len() as f64 + EPS).sqrt();
            for p in places {
                let normalised = (x[0].values[p] - mean) / deviation;
                y.values[p] = normalised * x[1].values[p % channels] + x[2].values[p % channels];
            }
        }
    }
    y
}

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], groups: usize| {
        let width = shape[shape.len() - 1];
        Sample::new(name, vec![floats(shape), floats(&[width]), floats(&[width])], move |x| {
            x[0].group_norm(&x[1], &x[2], groups, EPS)
        })
        .reference(move |x| reference(x, groups))
        .torch(format!("F.group_norm(x0.movedim(-1, 1), {groups}, x1, x2, {EPS}).movedim(1, -1)"))
        .example(format!("x0.group_norm(&x1, &x2, {groups}, 1e-3)"))
    };
    vec![
        sample("pictures", &[2, 2, 3, 4], 2)
            .refuses(vec![floats(&[4]), floats(&[4]), floats(&[4])], "it must be [examples, .., channels]")
            .refuses(vec![floats(&[2, 3]), floats(&[3]), floats(&[3])], "do not make 2 equal groups")
            .refuses(vec![floats(&[2, 4]), floats(&[4]), floats(&[2])], "beta is [2] but the last axis"),
        sample("one group", &[3, 2, 3], 1),
        sample("each channel", &[2, 5, 3], 3),
    ]
}

fn apply_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], groups: usize| {
        let (width, statistics) = (shape[shape.len() - 1], [shape[0], groups]);
        let vector = || floats(&[width]);
        let inputs =
            vec![floats(shape), vector(), vector(), floats(&statistics), within(&statistics, 0.5, 2.0)];
        Sample::new(name, inputs, move |x| {
            let wide = |x: &Tensor| x.cast(x.dtype().accumulator());
            let op = OpRef::shipped(ApplyGroupNorm { groups });
            call(op, &[&x[0], &x[1], &x[2], &wide(&x[3])?, &wide(&x[4])?])
        })
    };
    vec![sample("pictures", &[2, 2, 2, 4], 2), sample("rows", &[3, 6], 3)]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], groups: usize, wanted: [bool; 3]| {
        let width = shape[shape.len() - 1];
        let inputs = vec![floats(shape), floats(shape), floats(&[width])];
        let norm = GroupNorm { groups, eps: EPS };
        Sample::many(name, inputs, move |x| {
            let wide = x[1].cast(x[1].dtype().accumulator())?;
            let [mean, variance] = norm.plain_statistics(&wide)?;
            let flat = |statistic: &Tensor| statistic.reshape([x[1].shape()[0], groups]);
            let (mean, rstd) = (flat(&mean)?, flat(&variance.affine(1.0, EPS)?.rsqrt()?)?);
            let args = [&x[0], &x[1], &x[2], &mean, &rstd].into_iter().map(Arg::Lent).collect();
            Ok(execute(OpRef::shipped(GroupNormBackward { norm, wanted }), args)?.into_vec())
        })
    };
    vec![
        sample("all", &[2, 3, 4], 2, [true; 3]),
        sample("input", &[2, 2, 2, 2], 1, [true, false, false]),
        sample("gamma", &[3, 2, 4], 4, [false, true, false]),
    ]
}
