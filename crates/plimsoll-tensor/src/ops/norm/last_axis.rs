//! `layer_norm` and `rms_norm`: along the last axis. They differ in the mean, which the second leaves alone.

use plimsoll_cpu::random::Draw;
use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::{check, check_backward, check_statistics, composite_backward};
use super::{kernel, last_axis_cuda as cuda};
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, Args, call, execute};
use crate::eager::op::{AuxOutput, Form, Gradient, Meta, Op, OpRef, SavedRef, SavedRefs};
use crate::eager::op::{Output, Outputs, Rebuild, Run, TakesMade, Tensors, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::dropout::Dropout;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{expect_dtype, expect_shape, made_in_lanes};
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input, within};

/// y = (x - mean) rstd gamma + beta along the last axis, or without mean and beta.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastAxisNorm {
    pub eps: f64,
    pub is_centred: bool,
}

/// The same with given statistics: how an output is rebuilt. Inputs: those of the norm, then its auxiliary outputs.
#[derive(Clone, Copy, Debug)]
struct ApplyLastAxisNorm {
    is_centred: bool,
}

/// From the gradient of the output to those that are wanted of input, gamma and beta. Inputs: the gradient, x, gamma,
/// the norm's auxiliary outputs and, if there is one, a gradient that x has from elsewhere, which is added. The first result is
/// written over the gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastAxisNormBackward {
    pub norm: LastAxisNorm,
    pub wanted: [bool; 3],
    /// What x was added to passed through dropout: its gradient is the last result.
    pub dropout: Option<Dropout>,
}

/// The shape of one number per lane.
fn per_lane(x: &Meta) -> Shape {
    x.shape().leading(x.shape().rank().saturating_sub(1))
}

impl LastAxisNorm {
    /// The norm in plain ops, without beta; narrow floats are computed in wide ones.
    fn plain(self, x: &Tensor, gamma: &Tensor) -> Result<Tensor> {
        let (narrow, wide) = (x.dtype(), x.dtype().accumulator());
        let (x, gamma) = (x.cast(wide)?, gamma.cast(wide)?);
        let centred = if self.is_centred { x.sub(&x.mean_keepdims(-1)?)? } else { x };
        let variance = centred.mul(&centred)?.mean_keepdims(-1)?;
        centred.mul(&variance.affine(1.0, self.eps)?.rsqrt()?)?.mul(&gamma)?.cast(narrow)
    }

    /// The number of auxiliary outputs: mean and rstd, or rstd alone.
    pub fn n_aux(self) -> usize {
        1 + usize::from(self.is_centred)
    }

    /// The number of parameters: gamma and beta, or gamma alone.
    pub fn n_parameters(self) -> usize {
        1 + usize::from(self.is_centred)
    }

    /// What is saved of each lane of x.
    pub fn statistics(self, x: &Meta) -> SmallVec<[AuxOutput; 2]> {
        let meta = Meta::fresh(per_lane(x), x.dtype.accumulator());
        (0..self.n_aux()).map(|_| AuxOutput { form: Form::Statistics, meta }).collect()
    }

    /// The op that applies saved statistics.
    pub fn applied(self) -> OpRef {
        OpRef::shipped(ApplyLastAxisNorm { is_centred: self.is_centred })
    }
}

impl Op for LastAxisNorm {
    fn name(&self) -> &'static str {
        if self.is_centred { "layer_norm" } else { "rms_norm" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self.name(), inputs[0], &inputs[1..])?;
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => {
            kernel::normalise::<T>((self.is_centred, self.eps), run.inputs, &run.outputs[0], run.aux_outputs);
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::normalise_lanes(self.name(), *self, run, gpu)
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        made_in_lanes(inputs[0].shape().rank().checked_sub(1)?, inputs[0], true)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let mut saved = SavedRefs::new();
        if wanted[0] || wanted[1] {
            saved.push(SavedRef::Input(0));
            saved.push(SavedRef::Input(1));
            saved.extend((0..self.n_aux()).map(SavedRef::Aux));
        }
        saved
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        if !wanted[0] && !wanted[1] {
            return SmallVec::new();
        }
        self.statistics(inputs[0])
    }

    fn rebuild(&self) -> Option<Rebuild> {
        Rebuild::first(self.applied(), 1 + self.n_parameters(), self.n_aux())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let wants_beta = self.is_centred && backward.wants(2);
        let gradient = backward.gradient()?;
        if !backward.wants(0) && !backward.wants(1) {
            let shape = *backward.input_shape(2);
            return backward.set_grad(2, gradient.sum_to(&shape)?);
        }
        let wanted = [backward.wants(0), backward.wants(1), wants_beta];
        let mut args: Args<'_> = smallvec![Arg::Given(gradient)];
        args.push(Arg::Given(backward.input(0)?));
        args.push(Arg::Given(backward.input(1)?));
        for aux in 0..self.n_aux() {
            args.push(Arg::Given(backward.aux(aux)?));
        }
        let results =
            execute(OpRef::shipped(LastAxisNormBackward { norm: *self, wanted, dropout: None }), args)?;
        let inputs = (0..3).filter(|&input| wanted[input]);
        inputs.zip(results).try_for_each(|(input, result)| backward.set_grad(input, result))
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let result = self.plain(inputs[0], inputs[1]).and_then(|y| match inputs.get(2) {
            Some(&beta) => y.add(beta),
            None => Ok(y),
        });
        Some(result.map(|y| smallvec![y]))
    }
}

impl Op for ApplyLastAxisNorm {
    fn name(&self) -> &'static str {
        if self.is_centred { "layer_norm_apply" } else { "rms_norm_apply" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let n_parameters = 1 + usize::from(self.is_centred);
        let (parameters, statistics) = inputs[1..].split_at(n_parameters);
        check(self.name(), inputs[0], parameters)?;
        check_statistics(self.name(), statistics, &per_lane(inputs[0]), inputs[0].dtype)?;
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => {
            kernel::apply::<T>(self.is_centred, run.inputs, &run.outputs[0]);
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::apply_to_lanes(self.name(), self.is_centred, run, gpu)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let column = |x: &Tensor| x.cast(inputs[0].dtype())?.unsqueeze(-1);
        let result = || match *inputs {
            [x, gamma, beta, mean, rstd] => x.sub(&column(mean)?)?.mul(&column(rstd)?)?.mul(gamma)?.add(beta),
            _ => inputs[0].mul(&column(inputs[2])?)?.mul(inputs[1]),
        };
        Some(result().map(|y| smallvec![y]))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Op for LastAxisNormBackward {
    fn name(&self) -> &'static str {
        if self.norm.is_centred { "layer_norm_backward" } else { "rms_norm_backward" }
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        let dropout = Some(self.dropout?.redrawn(next));
        Some(OpRef::shipped(LastAxisNormBackward { dropout, ..*self }))
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, gamma) = (&inputs[1], &inputs[2]);
        let (inputs, joined) = inputs.split_at(3 + self.norm.n_aux());
        check_backward(self.name(), inputs, &per_lane(x))?;
        for other in joined {
            expect_shape(self.name(), "the other gradient", other, x.shape())?;
            expect_dtype(self.name(), "the other gradient", other, x.dtype)?;
        }
        let all = [x, gamma, gamma, x].map(|meta| Output::New { shape: *meta.shape(), dtype: meta.dtype });
        let wanted = self.wanted.into_iter().chain([self.dropout.is_some()]);
        Ok(all.into_iter().zip(wanted).filter_map(|(output, wanted)| wanted.then_some(output)).collect())
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[1].dtype(), T => kernel::backward::<T>(self, run));
        Ok(())
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        // A GPU reads the gradient for the sums first, if there are any.
        let reads_twice = self.wanted[0] && (self.wanted[1] || self.wanted[2]);
        made_in_lanes(inputs[0].shape().rank().checked_sub(1)?, inputs[0], true).filter(|_| reads_twice)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        kernel::backward_values(inputs[1], self.wanted) * inputs[1].dtype.accumulator().size()
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::backward_of_lanes(self, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::backward_of_lanes_workspace(self.norm.is_centred, self.wanted, inputs)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let (gradient, x, gamma) = (inputs[0], inputs[1], inputs[2]);
        let results = || {
            let plain = || self.norm.plain(x, gamma);
            let mut results = composite_backward(plain, (gradient, x, gamma), self.wanted)?;
            if let Some(&joined) = inputs.get(3 + self.norm.n_aux()) {
                results[0] = results[0].add(joined)?;
            }
            if let Some(dropout) = self.dropout {
                results.push(call(OpRef::shipped(dropout), &[&results[0]])?);
            }
            Ok(results)
        };
        Some(results())
    }

    fn overwrites(&self) -> &'static [usize] {
        if self.wanted[0] { &[0] } else { &[] }
    }
}

/// Declares the registry's entries of one of the two norms.
macro_rules! infos {
    ($is_centred:literal, $name:literal, $doc:literal, $info:ident, $apply:ident, $backward:ident) => {
        #[doc = concat!("The registry's entry of `", $name, "`.")]
        pub(super) static $info: OpInfo = OpInfo { name: $name, doc: $doc, samples: || samples($is_centred) };

        #[doc = concat!("The registry's entry of `", $name, "_apply`.")]
        pub(super) static $apply: OpInfo = OpInfo {
            name: concat!($name, "_apply"),
            doc: concat!("The output of ", $name, " rebuilt from its saved statistics."),
            samples: || apply_samples($is_centred),
        };

        #[doc = concat!("The registry's entry of `", $name, "_backward`.")]
        pub(super) static $backward: OpInfo = OpInfo {
            name: concat!($name, "_backward"),
            doc: concat!("The gradients of ", $name, " from that of its output."),
            samples: || backward_samples($is_centred),
        };
    };
}

infos!(
    true,
    "layer_norm",
    "Layer norm along the last axis.",
    LAYER_INFO,
    LAYER_APPLY_INFO,
    LAYER_BACKWARD_INFO
);
infos!(false, "rms_norm", "RMS norm along the last axis.", RMS_INFO, RMS_APPLY_INFO, RMS_BACKWARD_INFO);

const EPS: f64 = 1e-3;

/// Mean (or zero) and rstd of the lane that `idx` lies on.
fn reference_statistics(x: &Array, idx: &[usize], is_centred: bool) -> (f64, f64) {
    let (width, mut place) = (x.shape[idx.len() - 1], idx.to_vec());
    let lane: Vec<f64> = (0..width)
        .map(|column| {
            place[idx.len() - 1] = column;
            x.at(&place)
        })
        .collect();
    let mean = if is_centred { lane.iter().sum::<f64>() / width as f64 } else { 0.0 };
    let variance = lane.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
    (mean, 1.0 / (variance + EPS).sqrt())
}

fn samples(is_centred: bool) -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], width: usize| {
        let mut inputs = vec![floats(shape), floats(&[width])];
        inputs.extend(is_centred.then(|| floats(&[width])));
        let torch = match is_centred {
            true => format!("F.layer_norm(x0, ({width},), x1, x2, {EPS})"),
            false => format!("F.rms_norm(x0, ({width},), x1, {EPS})"),
        };
        Sample::new(name, inputs, move |x| match is_centred {
            true => x[0].layer_norm(&x[1], &x[2], EPS),
            false => x[0].rms_norm(&x[1], EPS),
        })
        .reference(move |x| {
            Array::build(shape, |idx| {
                let (mean, rstd) = reference_statistics(&x[0], idx, is_centred);
                let beta = x.get(2).map_or(0.0, |beta| beta.at(idx));
                (x[0].at(idx) - mean) * rstd * x[1].at(idx) + beta
            })
        })
        .torch(torch)
        .example(if is_centred {
            "x0.layer_norm(&x1, &x2, 1e-3)"
        } else {
            "x0.rms_norm(&x1, 1e-3)"
        })
    };
    let mut wrong = vec![floats(&[2, 3]), floats(&[4])];
    wrong.extend(is_centred.then(|| floats(&[3])));
    vec![
        sample("rows", &[3, 4], 4).refuses(wrong, "gamma is [4] but the last axis of [2, 3] wants [3]"),
        sample("cube", &[2, 2, 5], 5),
        sample("one line", &[6], 6),
    ]
}

fn apply_samples(is_centred: bool) -> Vec<Sample> {
    let sample = |name: &str, rows: &[usize]| {
        let mut inputs = vec![floats(&[rows, &[4]].concat()), floats(&[4])];
        if is_centred {
            inputs.push(floats(&[4]));
            inputs.push(input(rows, Values::Floats(-1.0, 1.0)));
        }
        inputs.push(within(rows, 0.5, 2.0));
        Sample::new(name, inputs, move |x| {
            // Kept statistics are wider than 16-bit values.
            let wide = |x: &Tensor| x.cast(x.dtype().accumulator());
            let n = 2 + usize::from(is_centred);
            let statistics: Vec<Tensor> = x[n..].iter().map(wide).collect::<Result<_>>()?;
            let all: Vec<&Tensor> = x[..n].iter().chain(&statistics).collect();
            call(OpRef::shipped(ApplyLastAxisNorm { is_centred }), &all)
        })
    };
    vec![sample("rows", &[3]), sample("cube", &[2, 2])]
}

fn backward_samples(is_centred: bool) -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], wanted: [bool; 3], is_joined: bool, rate: f64| {
        let width = shape[shape.len() - 1];
        let mut inputs = vec![floats(shape), floats(shape), floats(&[width])];
        inputs.extend(is_joined.then(|| floats(shape)));
        let draw = Draw { seed: 17, number: 0 };
        let dropout = (rate > 0.0).then_some(Dropout { rate, draw });
        Sample::many(name, inputs, move |x| {
            let wide = x[1].cast(x[1].dtype().accumulator())?;
            let mean = wide.mean_keepdims(-1)?;
            let centred = if is_centred { wide.sub(&mean)? } else { wide };
            let rstd = centred.mul(&centred)?.mean(-1)?.affine(1.0, EPS)?.rsqrt()?;
            let mut all = vec![&x[0], &x[1], &x[2]];
            let mean = mean.squeeze(-1)?;
            all.extend(is_centred.then_some(&mean));
            all.push(&rstd);
            all.extend(x.get(3));
            let op = LastAxisNormBackward { norm: LastAxisNorm { eps: EPS, is_centred }, wanted, dropout };
            Ok(execute(OpRef::shipped(op), all.into_iter().map(Arg::Lent).collect())?.into_vec())
        })
    };
    vec![
        sample("all", &[3, 4], [true, true, is_centred], false, 0.0),
        sample("input", &[2, 2, 5], [true, false, false], false, 0.0),
        sample("gamma", &[3, 4], [false, true, false], false, 0.0),
        sample("joined", &[2, 2, 5], [true, true, is_centred], true, 0.0),
        sample("joined dropout", &[3, 7], [true, false, false], true, 0.25),
        sample("dropout", &[3, 8], [true, true, false], false, 0.5),
    ]
}
