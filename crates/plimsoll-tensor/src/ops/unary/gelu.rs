//! `gelu`: the Gaussian error linear unit, exact.

use std::f64::consts::FRAC_1_SQRT_2;

use plimsoll_cpu::math::Real;

use super::erf::erf_by_series;
use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x Φ(x) with Φ(x) = (1 + erf(x / √2)) / 2; f'(x) = Φ(x) + x φ(x) with φ(x) = exp(-x² / 2) / √(2π).
#[derive(Clone, Copy, Debug)]
pub struct Gelu;

/// The density of the normal distribution at zero: 1 / √(2π).
const DENSITY_AT_ZERO: f64 = 0.398_942_280_401_432_7;

/// The probability that a normal number is less than `x`.
#[inline(always)]
fn normal_cdf<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(FRAC_1_SQRT_2)).erf())
}

impl Unary for Gelu {
    const NAMES: [&'static str; 2] = ["gelu", "gelu_backward"];
    const DOC: &'static str = "Each element times the probability that a normal number is less (the exact form).";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "F.gelu(x0)";
    const CUDA: [&'static str; 2] = [
        "x0 * (C(0.5) * (C(1) + m::erf(x0 * C(0.7071067811865476))))",
        "C(0.5) * (C(1) + m::erf(v * C(0.7071067811865476))) + v * (C(0.3989422804014327) * m::exp(C(-0.5) * v * v))",
    ];

    fn sample() -> Gelu {
        Gelu
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x * normal_cdf(x)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        let density = (T::from_f64(-0.5) * x * x).exp() * T::from_f64(DENSITY_AT_ZERO);
        normal_cdf(x) + x * density
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        let density = x.square()?.into_affine(-0.5, 0.0)?.exp()?.into_affine(DENSITY_AT_ZERO, 0.0)?;
        let cdf = x.affine(FRAC_1_SQRT_2, 0.0)?.erf()?.into_affine(0.5, 0.5)?;
        cdf.into_add(density.into_mul(x)?)
    }

    fn reference(self, x: f64) -> f64 {
        0.5 * x * (1.0 + erf_by_series(x / 2f64.sqrt()))
    }
}

impl Tensor {
    /// Each element times the probability that a normal number is less: the exact form, by the error function.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("gelu")]
    #[track_caller]
    pub fn gelu(&self) -> Result<Tensor> {
        unary(Gelu, self)
    }
}
