//! `exp_m1`: e to the power of each element, less one, accurate near zero.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = eˣ - 1, f'(x) = f(x) + 1.
#[derive(Clone, Copy, Debug)]
pub struct ExpM1;

impl Unary for ExpM1 {
    const NAMES: [&'static str; 2] = ["exp_m1", "exp_m1_backward"];
    const DOC: &'static str = "e to the power of each element, less one, accurate near zero.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "x0.expm1()";
    const CUDA: [&'static str; 2] = ["m::expm1(x0)", "v + C(1)"];

    fn sample() -> ExpM1 {
        ExpM1
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.exp_m1()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        y + T::ONE
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.affine(1.0, 1.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.exp_m1()
    }
}

impl Tensor {
    /// e to the power of each element, less one, accurate near zero.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("exp_m1")]
    #[doc(alias = "expm1")]
    #[track_caller]
    pub fn exp_m1(&self) -> Result<Tensor> {
        unary(ExpM1, self)
    }
}
