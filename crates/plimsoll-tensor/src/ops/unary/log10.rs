//! `log10`: the logarithm of each element to the base 10.

use std::f64::consts::LN_10;

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = log x / log 10, f'(x) = 1 / (x ln 10). Computed in f64, so that powers of 10 give whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct Log10;

impl Unary for Log10 {
    const NAMES: [&'static str; 2] = ["log10", "log10_backward"];
    const DOC: &'static str = "The logarithm of each element to the base 10.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (0.2, 3.0);
    const TORCH: &'static str = "x0.log10()";
    const CUDA: [&'static str; 2] = ["m::log10(x0)", "C(1) / (v * C(2.302585092994046))"];

    fn sample() -> Log10 {
        Log10
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        T::from_f64(x.to_f64().log10())
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        (x * T::from_f64(LN_10)).recip()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.affine(LN_10, 0.0)?.recip()
    }

    fn reference(self, x: f64) -> f64 {
        x.ln() / LN_10
    }
}

impl Tensor {
    /// The logarithm of each element to the base 10.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("log10")]
    #[track_caller]
    pub fn log10(&self) -> Result<Tensor> {
        unary(Log10, self)
    }
}
