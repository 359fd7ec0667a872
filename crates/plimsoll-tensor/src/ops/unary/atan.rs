//! `atan`: the angle whose tangent each element is.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = arctan x, f'(x) = 1 / (1 + x²).
#[derive(Clone, Copy, Debug)]
pub struct Atan;

impl Unary for Atan {
    const NAMES: [&'static str; 2] = ["atan", "atan_backward"];
    const DOC: &'static str = "The angle whose tangent each element is.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.atan()";
    const CUDA: [&'static str; 2] = ["m::atan(x0)", "C(1) / (C(1) + v * v)"];

    fn sample() -> Atan {
        Atan
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.atan()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        (T::ONE + x * x).recip()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.square()?.into_affine(1.0, 1.0)?.recip()
    }

    fn reference(self, x: f64) -> f64 {
        x.atan()
    }
}

impl Tensor {
    /// The angle whose tangent each element is.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("atan")]
    #[doc(alias = "arctan")]
    #[track_caller]
    pub fn atan(&self) -> Result<Tensor> {
        unary(Atan, self)
    }
}
