//! `add_layer_norm` and `add_rms_norm`: a residual sum and its norm in one pass.
//!
//! Where a sum is normalised it is usually wanted itself, too, by the next sum; so both are results, and the sum is what is kept
//! for backward, with the statistics of its lanes. The sum is rounded to its dtype before it is looked at: the bits
//! are those of `dropout`, `add` and the norm one after the other; on a GPU where lanes lie contiguously, because how threads
//! share a lane follows from its strides.

use plimsoll_cuda::Gpu;
use smallvec::{SmallVec, smallvec};

use super::last_axis::{LastAxisNorm, LastAxisNormBackward};
use super::{check, kernel, last_axis_cuda as cuda};
use crate::base::error::Result;
use crate::eager::execute::{Arg, Args, call, execute};
use crate::eager::op::{
    AuxOutput, Draw, Meta, Op, OpRef, Output, Outputs, Rebuild, Run, SavedRef, SavedRefs, Second, Tensors,
};
use crate::eager::random::Generator;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::dropout::Dropout;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{expect_dtype, expect_shape};
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// sum = x + dropout(branch), y = norm(sum). Inputs: x, the branch, and the norm's parameters. The sum may be written over
/// the branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddLastAxisNorm {
    pub norm: LastAxisNorm,
    pub dropout: Option<Dropout>,
}

impl AddLastAxisNorm {
    /// Whether backward looks at the sum: the gradient of beta does not need it.
    fn reads_sum(wanted: &[bool]) -> bool {
        wanted[0] || wanted[1] || wanted[2]
    }

    /// Passes the gradient of the sum on to both that were added.
    fn set_grad_sum(&self, backward: &mut Backward<'_>, gradient: Tensor, of_branch: Tensor) -> Result<()> {
        if backward.wants(1) {
            backward.set_grad(1, of_branch)?;
        }
        if backward.wants(0) { backward.set_grad(0, gradient) } else { Ok(()) }
    }

    /// The gradient of the branch from that of the sum.
    fn of_branch(&self, gradient: &Tensor) -> Result<Tensor> {
        match self.dropout {
            Some(dropout) => call(OpRef::shipped(dropout), &[gradient]),
            None => Ok(gradient.clone()),
        }
    }
}

impl Op for AddLastAxisNorm {
    fn name(&self) -> &'static str {
        if self.norm.is_centred { "add_layer_norm" } else { "add_rms_norm" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, branch) = (inputs[0], inputs[1]);
        check(self.name(), x, &inputs[2..])?;
        expect_shape(self.name(), "what is added", branch, x.shape())?;
        expect_dtype(self.name(), "what is added", branch, x.dtype)?;
        Ok(smallvec![Output::New { shape: *x.shape(), dtype: x.dtype }; 2])
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::add_and_normalise::<T>(self, run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::add_and_normalise_lanes(self, run, gpu)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let mut saved = SavedRefs::new();
        if AddLastAxisNorm::reads_sum(wanted) {
            saved.push(SavedRef::Output(0));
            saved.push(SavedRef::Input(2));
            saved.extend((0..self.norm.n_aux()).map(SavedRef::Aux));
        }
        saved
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        match AddLastAxisNorm::reads_sum(wanted) {
            true => self.norm.statistics(inputs[0]),
            false => SmallVec::new(),
        }
    }

    fn rebuild(&self) -> Option<Rebuild> {
        let parameters = (2..2 + self.norm.n_parameters()).map(SavedRef::Input);
        let statistics = (0..self.norm.n_aux()).map(SavedRef::Aux);
        let reads = [SavedRef::Output(0)].into_iter().chain(parameters).chain(statistics).collect();
        Some(Rebuild { op: self.norm.applied(), output: 1, reads })
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        let dropout = Some(self.dropout?.redrawn(next));
        Some(OpRef::shipped(AddLastAxisNorm { dropout, ..*self }))
    }

    fn second(&self, inputs: &[&Meta]) -> Option<Second> {
        // How threads share a lane follows from its strides, and with it the order of sums.
        let are_contiguous = inputs[..2].iter().all(|meta| meta.layout.is_contiguous());
        let parameters = (2..2 + self.norm.n_parameters()).map(SavedRef::Input);
        let reads = [SavedRef::Output(0)].into_iter().chain(parameters).collect();
        are_contiguous.then(|| Second { op: OpRef::shipped(self.norm), reads })
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let of_sum = backward.gradient_of(0);
        let Some(gradient) = backward.gradient_of(1) else {
            let Some(of_sum) = of_sum else { return Ok(()) };
            let of_branch = self.of_branch(&of_sum)?;
            return self.set_grad_sum(backward, of_sum, of_branch);
        };
        let wanted = [backward.wants(0) || backward.wants(1), backward.wants(2), backward.wants(3)];
        if !wanted[0] && !wanted[1] {
            let shape = *backward.input_shape(3);
            return backward.set_grad(3, gradient.sum_to(&shape)?);
        }
        let mut args: Args<'_> = smallvec![Arg::Given(gradient)];
        args.push(Arg::Given(backward.output(0)?));
        args.push(Arg::Given(backward.input(2)?));
        for aux in 0..self.norm.n_aux() {
            args.push(Arg::Given(backward.aux(aux)?));
        }
        args.extend(of_sum.filter(|_| wanted[0]).map(Arg::Given));
        let dropout = self.dropout.filter(|_| backward.wants(1));
        let op = LastAxisNormBackward { norm: self.norm, wanted, dropout };
        let mut results = execute(OpRef::shipped(op), args)?;
        if wanted[0] {
            let of_sum = results.remove(0);
            let of_branch = match dropout {
                Some(_) => results.remove(results.len() - 1),
                None => of_sum.clone(),
            };
            self.set_grad_sum(backward, of_sum, of_branch)?;
        }
        let parameters = (2..4).filter(|&input| backward.wants(input));
        parameters
            .collect::<SmallVec<[usize; 2]>>()
            .into_iter()
            .zip(results)
            .try_for_each(|(input, result)| backward.set_grad(input, result))
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let results = || -> Result<Tensors> {
            let sum = match self.dropout {
                Some(dropout) => inputs[0].add(&call(OpRef::shipped(dropout), &[inputs[1]])?)?,
                None => inputs[0].add(inputs[1])?,
            };
            let y = match *inputs {
                [_, _, gamma, beta] => sum.layer_norm(gamma, beta, self.norm.eps)?,
                _ => sum.rms_norm(inputs[2], self.norm.eps)?,
            };
            Ok(smallvec![sum, y])
        };
        Some(results())
    }

    fn overwrites(&self) -> &'static [usize] {
        &[1]
    }
}

/// The registry's entry of `add_layer_norm`.
pub(super) const LAYER_INFO: OpInfo = OpInfo {
    name: "add_layer_norm",
    doc: "A residual sum, whose second part may pass through dropout, and its layer norm.",
    samples: || samples(true),
};

/// The registry's entry of `add_rms_norm`.
pub(super) const RMS_INFO: OpInfo = OpInfo {
    name: "add_rms_norm",
    doc: "A residual sum, whose second part may pass through dropout, and its RMS norm.",
    samples: || samples(false),
};

const EPS: f64 = 1e-3;

fn samples(is_centred: bool) -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], rate: f64| {
        let width = shape[shape.len() - 1];
        let mut inputs = vec![floats(shape), floats(shape), floats(&[width])];
        inputs.extend(is_centred.then(|| floats(&[width])));
        let sample = Sample::many(name, inputs, move |x| {
            // Every call must draw the same bits, so it begins with the same generator.
            let before = Generator::current();
            Generator::new(17).make_current();
            let branch = x[1].clone();
            let result = match is_centred {
                true => branch.into_add_layer_norm(&x[0], rate, &x[2], &x[3], EPS),
                false => branch.into_add_rms_norm(&x[0], rate, &x[2], EPS),
            };
            before.make_current();
            result.map(|(sum, normed)| vec![sum, normed])
        });
        let norm = if is_centred { "layer_norm" } else { "rms_norm" };
        let parameters = if is_centred { "x2, x3" } else { "x2" };
        match rate {
            0.0 => sample
                .references(move |x| reference(x, shape, is_centred))
                .example(match is_centred {
                    true => "let (sum, normed) = x1.into_add_layer_norm(&x0, 0.0, &x2, &x3, 1e-3)",
                    false => "let (sum, normed) = x1.into_add_rms_norm(&x0, 0.0, &x2, 1e-3)",
                })
                .torch(format!("(x0 + x1, F.{norm}(x0 + x1, ({width},), {parameters}, {EPS}))")),
            _ => sample,
        }
    };
    let mut wrong = vec![floats(&[2, 3]), floats(&[3]), floats(&[3])];
    wrong.extend(is_centred.then(|| floats(&[3])));
    vec![
        sample("rows", &[3, 4], 0.0).refuses(wrong, "what is added is [3] but [2, 3] belongs here"),
        sample("cube", &[2, 2, 5], 0.0),
        sample("dropout", &[3, 8], 0.25),
        sample("dropout odd", &[2, 2, 5], 0.5),
    ]
}

/// Sum and norm in plain loops.
fn reference(x: &[Array], shape: &[usize], is_centred: bool) -> Vec<Array> {
    let sum = Array::build(shape, |idx| x[0].at(idx) + x[1].at(idx));
    let width = shape[shape.len() - 1];
    let mut normed = sum.clone();
    for lane in normed.values.chunks_mut(width) {
        let mean = if is_centred { lane.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let variance = lane.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        for (column, value) in lane.iter_mut().enumerate() {
            let beta = x.get(3).map_or(0.0, |beta| beta.values[column]);
            *value = (*value - mean) / (variance + EPS).sqrt() * x[2].values[column] + beta;
        }
    }
    vec![sum, normed]
}
