//! `binary_cross_entropy`: of each element by itself, from logits or from probabilities.
//!
//! With label z, positive weight w and l = 1 + (w - 1) z, the loss of a logit x is `(1 - z) x + l ln(1 + exp(-x))` and
//! its gradient `l σ(x) - w z`. The loss of a probability p is `-(w z ln p + (1 - z) ln(1 - p))` with gradient
//! `(1 - z) / (1 - p) - w z / p`; p is clipped to `CLIP` from both ends first, as Keras does, and the gradient is zero where
//! it was. Backward reads what was given and the labels, nothing else.

use plimsoll_cpu::math::Real;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;
use smallvec::smallvec;

use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{Gradient, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, Tensors, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::binary::zip;
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::kernel::{computed, for_computed_floats};
use crate::ops::lanes::{expect_dtype, expect_float, expect_shape};
use crate::ops::registry::{Array, OpInfo, Sample, floats, within};

/// How near to zero or one a probability may be.
const CLIP: f64 = 1e-7;

/// What a loss is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Logits,
    Probabilities,
}

/// The loss of each element, from logits or probabilities and labels.
#[derive(Clone, Copy, Debug)]
struct BinaryCrossEntropy {
    from: From,
    /// What the loss of a positive label is multiplied by.
    weight: f64,
}

/// From logits or probabilities, labels and the gradient of the losses to the gradient of the first; it is written over
/// the first.
#[derive(Clone, Copy, Debug)]
struct BinaryCrossEntropyBackward(BinaryCrossEntropy);

/// `ln(1 + exp(-x))` without overflow.
#[inline(always)]
fn softplus_of_negative<C: Real>(x: C) -> C {
    (-x).max(C::ZERO) + (-x.abs()).exp().ln_1p()
}

/// The gradient of the loss by its first operand.
#[inline(always)]
fn local_grad<C: Real>(from: From, weight: C, x: C, label: C) -> C {
    match from {
        From::Logits => (C::ONE + (weight - C::ONE) * label) * x.sigmoid() - weight * label,
        From::Probabilities => {
            let (low, high) = (C::from_f64(CLIP), C::ONE - C::from_f64(CLIP));
            let p = x.max(low).min(high);
            let local_grad = (C::ONE - label) / (C::ONE - p) - weight * label / p;
            if x < low || x > high { C::ZERO } else { local_grad }
        }
    }
}

impl BinaryCrossEntropy {
    fn losses<C: Real>(self, x: &Operand, labels: &Operand, y: &Operand) {
        let (one, weight) = (C::ONE, C::from_f64(self.weight));
        match self.from {
            From::Logits => zip(
                x,
                labels,
                y,
                #[inline(always)]
                |x, label| (one - label) * x + (one + (weight - one) * label) * softplus_of_negative(x),
            ),
            From::Probabilities => {
                let (low, high) = (C::from_f64(CLIP), one - C::from_f64(CLIP));
                zip(
                    x,
                    labels,
                    y,
                    #[inline(always)]
                    |x: C, label| {
                        let p = x.max(low).min(high);
                        -(weight * label * p.ln() + (one - label) * (-p).ln_1p())
                    },
                );
            }
        }
    }

    /// The losses in plain ops; narrow floats are computed in wide ones.
    fn plain(self, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let (narrow, wide) = (x.dtype(), x.dtype().accumulator());
        let (x, labels) = (x.cast(wide)?, labels.cast(wide)?);
        let negatives = labels.affine(-1.0, 1.0)?;
        let losses = match self.from {
            From::Logits => {
                let scale = labels.affine(self.weight - 1.0, 1.0)?;
                negatives.mul(&x)?.add(&scale.mul(&x.neg()?.softplus()?)?)?
            }
            From::Probabilities => {
                let p = x.clamp(CLIP, 1.0 - CLIP)?;
                let positive = labels.affine(-self.weight, 0.0)?.mul(&p.ln()?)?;
                positive.sub(&negatives.mul(&p.neg()?.ln_1p()?)?)?
            }
        };
        losses.cast(narrow)
    }

    /// The gradient of the first operand in plain ops.
    fn plain_backward(self, x: &Tensor, labels: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let (narrow, wide) = (x.dtype(), x.dtype().accumulator());
        let (x, labels, gradient) = (x.cast(wide)?, labels.cast(wide)?, gradient.cast(wide)?);
        let local_grad = match self.from {
            From::Logits => {
                let scale = labels.affine(self.weight - 1.0, 1.0)?;
                scale.mul(&x.sigmoid()?)?.sub(&labels.affine(self.weight, 0.0)?)?
            }
            From::Probabilities => {
                let p = x.clamp(CLIP, 1.0 - CLIP)?;
                let negative = labels.affine(-1.0, 1.0)?.div(&p.affine(-1.0, 1.0)?)?;
                let local_grad = negative.sub(&labels.affine(self.weight, 0.0)?.div(&p)?)?;
                x.eq(&p)?.where_(&local_grad, &Tensor::full_like_scalar(&local_grad, 0.0)?)?
            }
        };
        local_grad.mul(&gradient)?.cast(narrow)
    }

    /// The gradient of the loss by the label, in plain ops.
    fn grad_by_label(self, x: &Tensor) -> Result<Tensor> {
        match self.from {
            From::Logits => x.neg()?.softplus()?.into_affine(self.weight - 1.0, 0.0)?.into_sub(x),
            From::Probabilities => {
                let p = x.clamp(CLIP, 1.0 - CLIP)?;
                p.neg()?.ln_1p()?.into_sub(&p.ln()?.into_affine(self.weight, 0.0)?)
            }
        }
    }
}

impl Op for BinaryCrossEntropy {
    fn name(&self) -> &'static str {
        match self.from {
            From::Logits => "binary_cross_entropy",
            From::Probabilities => "binary_cross_entropy_of_probabilities",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, labels] = inputs else { unreachable!("two operands") };
        if !x.dtype.is_float() {
            return Err(Error::dtype(
                self.name(),
                format!("takes floats, not {}; convert with `cast`", x.dtype),
            ));
        }
        if x.dtype != labels.dtype {
            return Err(Error::mixed_dtypes(self.name(), x.dtype, labels.dtype));
        }
        if x.shape() != labels.shape() {
            return Err(Error::shape(
                self.name(),
                format!("shapes {} and {}; each element needs a label of its own", x.shape(), labels.shape()),
            ));
        }
        one(*x.shape(), x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, labels] = run.inputs else { unreachable!("two operands") };
        for_computed_floats!(x.dtype(), C => self.losses::<C>(x, labels, &run.outputs[0]));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &run.inputs[1]],
            outputs: &[&run.outputs[0]],
            numbers: &[self.weight, CLIP],
            words: &[],
            variant: 0,
        };
        kernel.run(gpu, || {
            match self.from {
                From::Logits => {
                    "C softplus = m::max(-x0, (C)0) + m::log1p(m::exp(-m::abs(x0)));
                     y0 = ((C)1 - x1) * x0 + ((C)1 + (NUMBER(0) - (C)1) * x1) * softplus;"
                }
                From::Probabilities => {
                    "C p = m::min(m::max(x0, NUMBER(1)), (C)1 - NUMBER(1));
                     y0 = -(NUMBER(0) * x1 * m::log(p) + ((C)1 - x1) * m::log1p(-p));"
                }
            }
            .to_owned()
        })
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let labels = wanted[0].then_some(SavedRef::Input(1));
        std::iter::once(SavedRef::Input(0)).chain(labels).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(1) {
            let local_grad = self.grad_by_label(&backward.input(0)?)?;
            backward.set_grad(1, local_grad.into_mul(&gradient)?)?;
        }
        if backward.wants(0) {
            let labels = backward.input(1)?;
            let args =
                smallvec![Arg::Given(backward.take_input(0)?), Arg::Lent(&labels), Arg::Lent(&gradient)];
            let gradient = call_with(OpRef::shipped(BinaryCrossEntropyBackward(*self)), args)?;
            backward.set_grad(0, gradient)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(self.plain(inputs[0], inputs[1]).map(|losses| smallvec![losses]))
    }
}

impl Op for BinaryCrossEntropyBackward {
    fn name(&self) -> &'static str {
        match self.0.from {
            From::Logits => "binary_cross_entropy_backward",
            From::Probabilities => "binary_cross_entropy_of_probabilities_backward",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        expect_float(self.name(), inputs[0])?;
        for (what, input) in ["the labels", "the gradient"].into_iter().zip(&inputs[1..]) {
            expect_shape(self.name(), what, input, inputs[0].shape())?;
            expect_dtype(self.name(), what, input, inputs[0].dtype)?;
        }
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let ([x, labels, gradient], y) = (run.inputs, &run.outputs[0]) else {
            unreachable!("three operands")
        };
        for_computed_floats!(x.dtype(), C => {
            let tile = |x: &[C], labels: &[C], gradient: &[C], y: &mut [C]| {
                grad_tile(self.0, [x, labels, gradient], y);
            };
            // SAFETY: `execute` hands out operands that are valid for their layouts, all of one shape; the output is fresh,
            // or the first operand.
            unsafe { map::map3(y.shape(), computed(y), [x, labels, gradient].map(computed), tile) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &run.inputs[1], &run.inputs[2]],
            outputs: &[&run.outputs[0]],
            numbers: &[self.0.weight, CLIP],
            words: &[],
            variant: 0,
        };
        kernel.run(gpu, || {
            match self.0.from {
                From::Logits => {
                    "C sigmoid = (C)1 / ((C)1 + m::exp(-x0));
                     y0 = (((C)1 + (NUMBER(0) - (C)1) * x1) * sigmoid - NUMBER(0) * x1) * x2;"
                }
                From::Probabilities => {
                    "C low = NUMBER(1), high = (C)1 - low, p = m::min(m::max(x0, low), high);
                     C local_grad = ((C)1 - x1) / ((C)1 - p) - NUMBER(0) * x1 / p;
                     y0 = (x0 < low || x0 > high ? (C)0 : local_grad) * x2;"
                }
            }
            .to_owned()
        })
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(self.0.plain_backward(inputs[0], inputs[1], inputs[2]).map(|gradient| smallvec![gradient]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

#[inline(never)]
fn grad_tile<C: Real>(of: BinaryCrossEntropy, [x, labels, gradient]: [&[C]; 3], y: &mut [C]) {
    let (from, weight) = (of.from, C::from_f64(of.weight));
    simd::vectorize(
        #[inline(always)]
        || {
            for (((y, &x), &label), &gradient) in y.iter_mut().zip(x).zip(labels).zip(gradient) {
                *y = local_grad(from, weight, x, label) * gradient;
            }
        },
    );
}

impl Tensor {
    /// The binary cross entropy of each of these logits and its label, without overflow for logits of any size. Labels
    /// are 0 or 1, or anything else; the loss of positive ones is multiplied by `positive_weight`, usually 1. `.mean(..)`
    /// makes one loss of them.
    ///
    /// # Errors
    /// Labels of another shape or dtype, logits that are not floats; memory that is full.
    #[doc = example!("binary_cross_entropy")]
    #[doc(alias("binary_cross_entropy_with_logits", "sigmoid_cross_entropy_with_logits"))]
    #[track_caller]
    pub fn binary_cross_entropy(&self, labels: &Tensor, positive_weight: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let op = BinaryCrossEntropy { from: From::Logits, weight: positive_weight };
        call(OpRef::shipped(op), &[self, labels])
    }

    /// The binary cross entropy of each of these probabilities and its label, as [`binary_cross_entropy`] of logits. As
    /// in Keras, probabilities are clipped at 1e-7 from 0 and 1, and no gradient flows where they are.
    ///
    /// # Errors
    /// Labels of another shape or dtype, probabilities that are not floats; memory that is full.
    ///
    /// [`binary_cross_entropy`]: Tensor::binary_cross_entropy
    #[doc = example!("binary_cross_entropy_of_probabilities")]
    #[doc(alias = "bce_loss")]
    #[track_caller]
    pub fn binary_cross_entropy_of_probabilities(
        &self,
        labels: &Tensor,
        positive_weight: f64,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let op = BinaryCrossEntropy { from: From::Probabilities, weight: positive_weight };
        call(OpRef::shipped(op), &[self, labels])
    }
}

/// The registry's entries.
pub(super) const LOGITS_INFO: OpInfo = OpInfo {
    name: "binary_cross_entropy",
    doc: "Binary cross entropy of logits and labels, element by element.",
    samples: || samples(From::Logits),
};

/// The registry's entry of the form that takes probabilities.
pub(super) const PROBABILITIES_INFO: OpInfo = OpInfo {
    name: "binary_cross_entropy_of_probabilities",
    doc: "Binary cross entropy of probabilities and labels, element by element.",
    samples: || samples(From::Probabilities),
};

/// The registry's entry of the gradient of logits.
pub(super) const LOGITS_BACKWARD_INFO: OpInfo = OpInfo {
    name: "binary_cross_entropy_backward",
    doc: "The gradient of the logits from that of the losses.",
    samples: || backward_samples(From::Logits),
};

/// The registry's entry of the gradient of probabilities.
pub(super) const PROBABILITIES_BACKWARD_INFO: OpInfo = OpInfo {
    name: "binary_cross_entropy_of_probabilities_backward",
    doc: "The gradient of the probabilities from that of the losses.",
    samples: || backward_samples(From::Probabilities),
};

/// The range of what a loss is computed from, in tests.
fn drawn(from: From, shape: &[usize]) -> crate::ops::registry::Input {
    match from {
        From::Logits => within(shape, -4.0, 4.0),
        From::Probabilities => within(shape, 0.1, 0.9),
    }
}

fn samples(from: From) -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], weight: f64| {
        Sample::new(name, vec![drawn(from, shape), within(shape, 0.0, 1.0)], move |x| match from {
            From::Logits => x[0].binary_cross_entropy(&x[1], weight),
            From::Probabilities => x[0].binary_cross_entropy_of_probabilities(&x[1], weight),
        })
        .reference(move |x| {
            Array::build(&x[0].shape.clone(), |idx| {
                let (value, label) = (x[0].at(idx), x[1].at(idx));
                let p = if from == From::Logits { 1.0 / (1.0 + (-value).exp()) } else { value };
                -weight * label * p.ln() - (1.0 - label) * (1.0 - p).ln()
            })
        })
        .torch(match from {
            From::Logits => format!(
                "F.binary_cross_entropy_with_logits(x0, x1, reduction='none', pos_weight=torch.tensor({weight:?}, dtype=x0.dtype))"
            ),
            From::Probabilities => format!("-{weight:?} * x1 * torch.log(x0) - (1 - x1) * torch.log(1 - x0)"),
        })
        .example(match from {
            From::Logits => format!("x0.binary_cross_entropy(&x1, {weight:?})"),
            From::Probabilities => format!("x0.binary_cross_entropy_of_probabilities(&x1, {weight:?})"),
        })
    };
    let labels = || floats(&[3, 5]);
    vec![
        sample("rows", &[3, 4], 1.0)
            .refuses(vec![floats(&[3, 4]), labels()], "each element needs a label of its own"),
        sample("weighted", &[2, 2, 3], 2.5),
    ]
}

fn backward_samples(from: From) -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], weight: f64| {
        let inputs = vec![drawn(from, shape), within(shape, 0.0, 1.0), floats(shape)];
        Sample::new(name, inputs, move |x| {
            let op = BinaryCrossEntropyBackward(BinaryCrossEntropy { from, weight });
            call(OpRef::shipped(op), &[&x[0], &x[1], &x[2]])
        })
    };
    vec![sample("rows", &[3, 4], 1.0), sample("weighted", &[2, 2, 3], 2.5)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autograd::GradientTape;

    #[test]
    fn extremes_stay_finite() {
        let labels = Tensor::from_vec(vec![1.0f32, 0.0, 1.0, 0.0]).unwrap();
        let logits = Tensor::from_vec(vec![-1e4f32, 1e4, 1e4, -1e4]).unwrap();
        let losses = logits.binary_cross_entropy(&labels, 1.0).unwrap();
        assert_eq!(losses.to_vec::<f32>().unwrap(), [1e4, 1e4, 0.0, 0.0]);
        let certain = Tensor::from_vec(vec![0.0f32, 1.0, 1.0, 0.0]).unwrap();
        let tape = GradientTape::new();
        tape.watch(&certain).unwrap();
        let losses = tape.record(|| certain.binary_cross_entropy_of_probabilities(&labels, 1.0)).unwrap();
        // -ln(1e-7) from below; from above 1 - 1e-7 rounds to 1 - 2⁻²³.
        let expected = [16.118_095, 15.942_385, 1.192_093e-7, 1e-7];
        for (found, expected) in losses.to_vec::<f32>().unwrap().into_iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} is not {expected}");
        }
        let [gradient] = tape.gradient(&losses, [&certain]).unwrap();
        assert_eq!(gradient.to_vec::<f32>().unwrap(), [0.0; 4], "nothing flows through what is clipped");
    }
}
