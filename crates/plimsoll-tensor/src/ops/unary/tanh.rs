//! `tanh`: the hyperbolic tangent of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = tanh x, f'(x) = 1 - f(x)².
#[derive(Clone, Copy, Debug)]
pub struct Tanh;

impl Unary for Tanh {
    const NAMES: [&'static str; 2] = ["tanh", "tanh_backward"];
    const DOC: &'static str = "The hyperbolic tangent of each element.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "x0.tanh()";
    const CUDA: [&'static str; 2] = ["m::tanh(x0)", "C(1) - v * v"];

    fn sample() -> Tanh {
        Tanh
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.tanh()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        T::ONE - y * y
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.square()?.into_affine(-1.0, 1.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.tanh()
    }
}

impl Tensor {
    /// The hyperbolic tangent of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("tanh")]
    #[track_caller]
    pub fn tanh(&self) -> Result<Tensor> {
        unary(Tanh, self)
    }
}
