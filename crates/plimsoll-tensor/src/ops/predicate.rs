//! `is_nan` and `is_finite`: truth values of single elements. No gradient flows through them, and none is lost.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Pointwise, Run, one};
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{computed, for_computed_numbers};
use crate::ops::registry::{OpInfo, Sample, Values, floats, input};

/// What is asked of each element.
#[derive(Clone, Copy, Debug)]
enum Predicate {
    IsNan,
    IsFinite,
}

impl Op for Predicate {
    fn name(&self) -> &'static str {
        match self {
            Predicate::IsNan => "is_nan",
            Predicate::IsFinite => "is_finite",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match inputs[0].dtype {
            DType::Bool => Err(Error::dtype(self.name(), "takes numbers, not bool; convert with `cast`")),
            _ => one(*inputs[0].shape(), DType::Bool),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_computed_numbers!(x.dtype(), C => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh.
            unsafe { map::map1::<C, bool>(x.shape(), computed(y), computed(x), |x, y| tile(*self, x, y)) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = m::", self.name(), "(x0);"]))
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[inline(never)]
fn tile<T: Number>(predicate: Predicate, x: &[T], y: &mut [bool]) {
    match predicate {
        Predicate::IsNan => ask(x, y, T::is_nan),
        Predicate::IsFinite => ask(x, y, is_finite),
    }
}

/// Whether a number less itself is zero: infinities and NaN leave NaN.
#[inline(always)]
fn is_finite<T: Number>(x: T) -> bool {
    x.sub(x) == T::ZERO
}

#[inline(always)]
fn ask<T: Copy>(x: &[T], y: &mut [bool], holds: impl Fn(T) -> bool) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = holds(x);
            }
        },
    );
}

impl Tensor {
    /// Where an element is not a number.
    ///
    /// # Errors
    /// A tensor of truth values; memory that is full.
    #[doc = example!("is_nan")]
    #[doc(alias = "isnan")]
    #[track_caller]
    pub fn is_nan(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Predicate::IsNan), &[self])
    }

    /// Where an element is neither infinite nor NaN.
    ///
    /// # Errors
    /// A tensor of truth values; memory that is full.
    #[doc = example!("is_finite")]
    #[doc(alias = "isfinite")]
    #[track_caller]
    pub fn is_finite(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Predicate::IsFinite), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "is_nan",
        doc: "Where an element is not a number.",
        samples: || samples(["torch.isnan", "is_nan"], Tensor::is_nan, |x| x < 0.0),
    },
    &OpInfo {
        name: "is_finite",
        doc: "Where an element is neither infinite nor NaN.",
        samples: || samples(["torch.isfinite", "is_finite"], Tensor::is_finite, |x| x > 0.0),
    },
];

/// `of_ln` says whether the predicate holds for a number's logarithm, which gives the NaNs that inputs do not have.
fn samples(
    [torch, name]: [&str; 2],
    ask: fn(&Tensor) -> Result<Tensor>,
    of_ln: fn(f64) -> bool,
) -> Vec<Sample> {
    vec![
        Sample::new("numbers", vec![floats(&[3, 4])], move |x| ask(&x[0]))
            .reference(move |x| x[0].map(|_| f64::from(of_ln(1.0))))
            .torch(format!("{torch}(x0)"))
            .refuses(vec![input(&[2], Values::Truths)], "takes numbers, not bool"),
        Sample::new("logarithms", vec![floats(&[11])], move |x| ask(&x[0].ln()?))
            .reference(move |x| x[0].map(|x| f64::from(of_ln(x))))
            .torch(format!("{torch}(x0.log())"))
            .example(format!("x0.ln()?.{name}()")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_are_numbers_but_not_finite() {
        let x = Tensor::from_vec(vec![1.0f32, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]).unwrap();
        let truths = |y: Tensor| y.to_vec::<bool>().unwrap();
        assert_eq!(truths(x.is_nan().unwrap()), [false, false, false, true, false]);
        assert_eq!(truths(x.is_finite().unwrap()), [true, false, false, false, true]);
        let whole = Tensor::from_vec(vec![0i64, i64::MAX]).unwrap();
        assert_eq!(truths(whole.is_finite().unwrap()), [true, true]);
    }
}
