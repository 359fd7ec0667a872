//! `cos`: the cosine of each element, in radians.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = cos x, f'(x) = -sin x.
#[derive(Clone, Copy, Debug)]
pub struct Cos;

impl Unary for Cos {
    const NAMES: [&'static str; 2] = ["cos", "cos_backward"];
    const DOC: &'static str = "The cosine of each element, in radians.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.cos()";
    const CUDA: [&'static str; 2] = ["m::cos(x0)", "-m::sin(v)"];

    fn sample() -> Cos {
        Cos
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.cos()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        -x.sin()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.sin()?.into_affine(-1.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.cos()
    }
}

impl Tensor {
    /// The cosine of each element, in radians.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("cos")]
    #[track_caller]
    pub fn cos(&self) -> Result<Tensor> {
        unary(Cos, self)
    }
}
