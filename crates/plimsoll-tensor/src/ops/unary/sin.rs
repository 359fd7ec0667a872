//! `sin`: the sine of each element, in radians.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = sin x, f'(x) = cos x.
#[derive(Clone, Copy, Debug)]
pub struct Sin;

impl Unary for Sin {
    const NAMES: [&'static str; 2] = ["sin", "sin_backward"];
    const DOC: &'static str = "The sine of each element, in radians.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.sin()";
    const CUDA: [&'static str; 2] = ["m::sin(x0)", "m::cos(v)"];

    fn sample() -> Sin {
        Sin
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.sin()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        x.cos()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.cos()
    }

    fn reference(self, x: f64) -> f64 {
        x.sin()
    }
}

impl Tensor {
    /// The sine of each element, in radians.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("sin")]
    #[track_caller]
    pub fn sin(&self) -> Result<Tensor> {
        unary(Sin, self)
    }
}
