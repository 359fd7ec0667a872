//! `ln_1p`: the natural logarithm of one plus each element, accurate near zero.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = ln(1 + x), f'(x) = 1 / (1 + x).
#[derive(Clone, Copy, Debug)]
pub struct Ln1p;

impl Unary for Ln1p {
    const NAMES: [&'static str; 2] = ["ln_1p", "ln_1p_backward"];
    const DOC: &'static str = "The natural logarithm of one plus each element, accurate near zero.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (-0.7, 2.0);
    const TORCH: &'static str = "x0.log1p()";
    const CUDA: [&'static str; 2] = ["m::log1p(x0)", "C(1) / (C(1) + v)"];

    fn sample() -> Ln1p {
        Ln1p
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.ln_1p()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        (T::ONE + x).recip()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.affine(1.0, 1.0)?.recip()
    }

    fn reference(self, x: f64) -> f64 {
        x.ln_1p()
    }
}

impl Tensor {
    /// The natural logarithm of one plus each element, accurate near zero.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("ln_1p")]
    #[doc(alias = "log1p")]
    #[track_caller]
    pub fn ln_1p(&self) -> Result<Tensor> {
        unary(Ln1p, self)
    }
}
