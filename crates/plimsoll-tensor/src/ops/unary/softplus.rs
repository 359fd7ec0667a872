//! `softplus`: a smooth relu.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = ln(1 + eˣ) = max(x, 0) + ln(1 + e^-|x|), which never overflows; f'(x) = σ(x) = 1 - exp(-f(x)).
#[derive(Clone, Copy, Debug)]
pub struct Softplus;

impl Unary for Softplus {
    const NAMES: [&'static str; 2] = ["softplus", "softplus_backward"];
    const DOC: &'static str = "A smooth relu: ln(1 + exp(x)).";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "F.softplus(x0)";
    const CUDA: [&'static str; 2] = ["m::max(x0, C(0)) + m::log1p(m::exp(-m::abs(x0)))", "-m::expm1(-v)"];

    fn sample() -> Softplus {
        Softplus
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.max(T::ZERO) + (-x.abs()).exp().ln_1p()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        -(-y).exp_m1()
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.neg()?.exp_m1()?.into_affine(-1.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        (1.0 + x.exp()).ln()
    }
}

impl Tensor {
    /// A smooth relu: ln(1 + exp(x)).
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("softplus")]
    #[track_caller]
    pub fn softplus(&self) -> Result<Tensor> {
        unary(Softplus, self)
    }
}
