//! `log2`: the logarithm of each element to the base 2.

use std::f64::consts::LN_2;

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = log x / log 2, f'(x) = 1 / (x ln 2). Computed in f64, so that powers of 2 give whole numbers.
#[derive(Clone, Copy, Debug)]
pub struct Log2;

impl Unary for Log2 {
    const NAMES: [&'static str; 2] = ["log2", "log2_backward"];
    const DOC: &'static str = "The logarithm of each element to the base 2.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (0.2, 3.0);
    const TORCH: &'static str = "x0.log2()";
    const CUDA: [&'static str; 2] = ["m::log2(x0)", "C(1) / (v * C(0.6931471805599453))"];

    fn sample() -> Log2 {
        Log2
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        T::from_f64(x.to_f64().log2())
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        (x * T::from_f64(LN_2)).recip()
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.affine(LN_2, 0.0)?.recip()
    }

    fn reference(self, x: f64) -> f64 {
        x.ln() / LN_2
    }
}

impl Tensor {
    /// The logarithm of each element to the base 2.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("log2")]
    #[track_caller]
    pub fn log2(&self) -> Result<Tensor> {
        unary(Log2, self)
    }
}
