//! `exp`: e to the power of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = eˣ, f'(x) = f(x).
#[derive(Clone, Copy, Debug)]
pub struct Exp;

impl Unary for Exp {
    const NAMES: [&'static str; 2] = ["exp", "exp_backward"];
    const DOC: &'static str = "e to the power of each element.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "x0.exp()";
    const CUDA: [&'static str; 2] = ["m::exp(x0)", "v"];

    fn sample() -> Exp {
        Exp
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.exp()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        y
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        Ok(y.clone())
    }

    fn reference(self, x: f64) -> f64 {
        x.exp()
    }
}

impl Tensor {
    /// e to the power of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("exp")]
    #[track_caller]
    pub fn exp(&self) -> Result<Tensor> {
        unary(Exp, self)
    }
}
