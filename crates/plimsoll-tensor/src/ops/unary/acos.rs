//! `acos`: the angle whose cosine each element is.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = arccos x, f'(x) = -1 / √(1 - x²).
#[derive(Clone, Copy, Debug)]
pub struct Acos;

impl Unary for Acos {
    const NAMES: [&'static str; 2] = ["acos", "acos_backward"];
    const DOC: &'static str = "The angle whose cosine each element is.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (-0.9, 0.9);
    const TORCH: &'static str = "x0.acos()";
    const CUDA: [&'static str; 2] = ["m::acos(x0)", "-m::rsqrt((C(1) - v) * (C(1) + v))"];

    fn sample() -> Acos {
        Acos
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.acos()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        -((T::ONE - x) * (T::ONE + x)).rsqrt()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.square()?.into_affine(-1.0, 1.0)?.rsqrt()?.into_affine(-1.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.acos()
    }
}

impl Tensor {
    /// The angle whose cosine each element is.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("acos")]
    #[doc(alias = "arccos")]
    #[track_caller]
    pub fn acos(&self) -> Result<Tensor> {
        unary(Acos, self)
    }
}
