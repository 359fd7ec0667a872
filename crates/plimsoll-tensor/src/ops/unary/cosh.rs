//! `cosh`: the hyperbolic cosine of each element.

use plimsoll_cpu::math::Real;

use super::sinh::sinh;
use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = cosh x, f'(x) = sinh x.
#[derive(Clone, Copy, Debug)]
pub struct Cosh;

/// The hyperbolic cosine by the exponential of half the argument, which does not overflow before the value does.
#[inline(always)]
pub(super) fn cosh<T: Real>(x: T) -> T {
    let half = T::from_f64(0.5);
    let root = (x.abs() * half).exp();
    half * root * root + half / (root * root)
}

impl Unary for Cosh {
    const NAMES: [&'static str; 2] = ["cosh", "cosh_backward"];
    const DOC: &'static str = "The hyperbolic cosine of each element.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.cosh()";
    const CUDA: [&'static str; 2] = ["m::cosh(x0)", "m::sinh(v)"];

    fn sample() -> Cosh {
        Cosh
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        cosh(x)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        sinh(x)
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.sinh()
    }

    fn reference(self, x: f64) -> f64 {
        x.cosh()
    }
}

impl Tensor {
    /// The hyperbolic cosine of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("cosh")]
    #[track_caller]
    pub fn cosh(&self) -> Result<Tensor> {
        unary(Cosh, self)
    }
}
