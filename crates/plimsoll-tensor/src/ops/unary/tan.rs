//! `tan`: the tangent of each element, in radians.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = tan x, f'(x) = 1 + f(x)².
#[derive(Clone, Copy, Debug)]
pub struct Tan;

impl Unary for Tan {
    const NAMES: [&'static str; 2] = ["tan", "tan_backward"];
    const DOC: &'static str = "The tangent of each element, in radians.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (-1.2, 1.2);
    const TORCH: &'static str = "x0.tan()";
    const CUDA: [&'static str; 2] = ["m::tan(x0)", "C(1) + v * v"];

    fn sample() -> Tan {
        Tan
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.tan()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        T::ONE + y * y
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.square()?.into_affine(1.0, 1.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.tan()
    }
}

impl Tensor {
    /// The tangent of each element, in radians.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("tan")]
    #[track_caller]
    pub fn tan(&self) -> Result<Tensor> {
        unary(Tan, self)
    }
}
