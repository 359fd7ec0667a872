//! `asin`: the angle whose sine each element is.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = arcsin x, f'(x) = 1 / √(1 - x²).
#[derive(Clone, Copy, Debug)]
pub struct Asin;

impl Unary for Asin {
    const NAMES: [&'static str; 2] = ["asin", "asin_backward"];
    const DOC: &'static str = "The angle whose sine each element is.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (-0.9, 0.9);
    const TORCH: &'static str = "x0.asin()";
    const CUDA: [&'static str; 2] = ["m::asin(x0)", "m::rsqrt((C(1) - v) * (C(1) + v))"];

    fn sample() -> Asin {
        Asin
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.asin()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        ((T::ONE - x) * (T::ONE + x)).rsqrt()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.square()?.into_affine(-1.0, 1.0)?.rsqrt()
    }

    fn reference(self, x: f64) -> f64 {
        x.asin()
    }
}

impl Tensor {
    /// The angle whose sine each element is.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("asin")]
    #[doc(alias = "arcsin")]
    #[track_caller]
    pub fn asin(&self) -> Result<Tensor> {
        unary(Asin, self)
    }
}
