//! `erf`: the error function of each element.

use std::f64::consts::FRAC_2_SQRT_PI;

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = 2/√π ∫₀ˣ exp(-t²) dt, f'(x) = 2/√π exp(-x²).
#[derive(Clone, Copy, Debug)]
pub struct Erf;

impl Unary for Erf {
    const NAMES: [&'static str; 2] = ["erf", "erf_backward"];
    const DOC: &'static str = "The error function of each element.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.erf()";
    const CUDA: [&'static str; 2] = ["m::erf(x0)", "C(1.1283791670955126) * m::exp(-(v * v))"];

    fn sample() -> Erf {
        Erf
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.erf()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        T::from_f64(FRAC_2_SQRT_PI) * (-(x * x)).exp()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.square()?.into_affine(-1.0, 0.0)?.exp()?.into_affine(FRAC_2_SQRT_PI, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        erf_by_series(x)
    }
}

/// The error function by its power series, for the references of tests; accurate for small arguments alone.
pub(super) fn erf_by_series(x: f64) -> f64 {
    let mut power = x;
    let mut sum = 0.0;
    for n in 0..60 {
        sum += power / f64::from(2 * n + 1);
        power *= -x * x / f64::from(n + 1);
    }
    FRAC_2_SQRT_PI * sum
}

impl Tensor {
    /// The error function of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("erf")]
    #[track_caller]
    pub fn erf(&self) -> Result<Tensor> {
        unary(Erf, self)
    }
}
