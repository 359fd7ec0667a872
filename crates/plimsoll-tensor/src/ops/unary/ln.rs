//! `ln`: the natural logarithm of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = ln x, f'(x) = 1 / x.
#[derive(Clone, Copy, Debug)]
pub struct Ln;

impl Unary for Ln {
    const NAMES: [&'static str; 2] = ["ln", "ln_backward"];
    const DOC: &'static str = "The natural logarithm of each element.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (0.2, 3.0);
    const TORCH: &'static str = "x0.log()";
    const CUDA: [&'static str; 2] = ["m::log(x0)", "C(1) / v"];

    fn sample() -> Ln {
        Ln
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.ln()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        x.recip()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.recip()
    }

    fn reference(self, x: f64) -> f64 {
        x.ln()
    }
}

impl Tensor {
    /// The natural logarithm of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("ln")]
    #[doc(alias = "log")]
    #[track_caller]
    pub fn ln(&self) -> Result<Tensor> {
        unary(Ln, self)
    }
}
