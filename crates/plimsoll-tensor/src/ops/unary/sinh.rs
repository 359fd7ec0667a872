//! `sinh`: the hyperbolic sine of each element.

use plimsoll_cpu::math::Real;

use super::cosh::cosh;
use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = sinh x, f'(x) = cosh x.
#[derive(Clone, Copy, Debug)]
pub struct Sinh;

/// sinh a = (E - 1) (1 + 1 / E) / 2 with E = eᵃ = (1 + h)², where h is `exp_m1` of half the argument: so it neither
/// cancels near zero nor overflows before its value does.
#[inline(always)]
pub(super) fn sinh<T: Real>(x: T) -> T {
    let half = T::from_f64(0.5);
    let h = (x.abs() * half).exp_m1();
    let root = h + T::ONE;
    let magnitude = half * h * (h + T::from_f64(2.0)) * (T::ONE + (root * root).recip());
    if x < T::ZERO { -magnitude } else { magnitude }
}

impl Unary for Sinh {
    const NAMES: [&'static str; 2] = ["sinh", "sinh_backward"];
    const DOC: &'static str = "The hyperbolic sine of each element.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.sinh()";
    const CUDA: [&'static str; 2] = ["m::sinh(x0)", "m::cosh(v)"];

    fn sample() -> Sinh {
        Sinh
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        sinh(x)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        cosh(x)
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.cosh()
    }

    fn reference(self, x: f64) -> f64 {
        x.sinh()
    }
}

impl Tensor {
    /// The hyperbolic sine of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("sinh")]
    #[track_caller]
    pub fn sinh(&self) -> Result<Tensor> {
        unary(Sinh, self)
    }
}
