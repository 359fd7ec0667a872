//! `rsqrt`: one over the square root of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = 1 / √x, f'(x) = -f(x)³ / 2.
#[derive(Clone, Copy, Debug)]
pub struct Rsqrt;

impl Unary for Rsqrt {
    const NAMES: [&'static str; 2] = ["rsqrt", "rsqrt_backward"];
    const DOC: &'static str = "One over the square root of each element.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (0.4, 3.0);
    const TORCH: &'static str = "x0.rsqrt()";
    const CUDA: [&'static str; 2] = ["m::rsqrt(x0)", "C(-0.5) * v * v * v"];

    fn sample() -> Rsqrt {
        Rsqrt
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.rsqrt()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        T::from_f64(-0.5) * y * y * y
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.square()?.into_mul(y)?.into_affine(-0.5, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        1.0 / x.sqrt()
    }
}

impl Tensor {
    /// One over the square root of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("rsqrt")]
    #[track_caller]
    pub fn rsqrt(&self) -> Result<Tensor> {
        unary(Rsqrt, self)
    }
}
