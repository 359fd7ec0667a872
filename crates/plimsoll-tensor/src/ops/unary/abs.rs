//! `abs`: the magnitude of each element.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = |x|, f'(x) = sign(x).
#[derive(Clone, Copy, Debug)]
pub struct Abs;

impl Unary for Abs {
    const NAMES: [&'static str; 2] = ["abs", "abs_backward"];
    const DOC: &'static str = "The magnitude of each element.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.abs()";
    const CUDA: [&'static str; 2] = ["m::abs(x0)", "m::sign(v)"];

    fn sample() -> Abs {
        Abs
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        Number::abs(x)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        Number::sign(x)
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.gt(0.0)?.cast(x.dtype())?.sub(&x.lt(0.0)?.cast(x.dtype())?)
    }

    fn reference(self, x: f64) -> f64 {
        x.abs()
    }
}

impl Tensor {
    /// The magnitude of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("abs")]
    #[doc(alias = "absolute")]
    #[track_caller]
    pub fn abs(&self) -> Result<Tensor> {
        unary(Abs, self)
    }
}
