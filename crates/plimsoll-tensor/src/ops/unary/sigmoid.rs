//! `sigmoid`: the logistic function of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// σ(x) = 1 / (1 + e⁻ˣ), σ'(x) = σ(x) (1 - σ(x)).
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid;

impl Unary for Sigmoid {
    const NAMES: [&'static str; 2] = ["sigmoid", "sigmoid_backward"];
    const DOC: &'static str = "The logistic function of each element: 1 / (1 + exp(-x)).";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "x0.sigmoid()";
    const CUDA: [&'static str; 2] = ["m::sigmoid(x0)", "v * (C(1) - v)"];

    fn sample() -> Sigmoid {
        Sigmoid
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.sigmoid()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        y * (T::ONE - y)
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.mul(&y.affine(-1.0, 1.0)?)
    }

    fn reference(self, x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
}

impl Tensor {
    /// The logistic function of each element: 1 / (1 + exp(-x)).
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("sigmoid")]
    #[doc(alias("expit", "logistic"))]
    #[track_caller]
    pub fn sigmoid(&self) -> Result<Tensor> {
        unary(Sigmoid, self)
    }
}
