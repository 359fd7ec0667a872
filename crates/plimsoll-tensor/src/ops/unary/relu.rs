//! `relu`: each element, or zero where it is negative.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;

use super::{Reads, Unary, into_unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = max(x, 0), f'(x) = 1 where f(x) > 0, else 0. Backward reads the output, which the next matmul or convolution
/// keeps anyway.
#[derive(Clone, Copy, Debug)]
pub struct Relu;

impl Unary for Relu {
    const NAMES: [&'static str; 2] = ["relu", "relu_backward"];
    const DOC: &'static str = "Each element, or zero where it is negative.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "x0.relu()";
    const CUDA: [&'static str; 2] = ["m::max(x0, C(0))", "v > C(0) ? C(1) : C(0)"];

    fn sample() -> Relu {
        Relu
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        Number::max(x, T::ZERO)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO { T::ONE } else { T::ZERO }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.gt(0.0)?.cast(y.dtype())
    }

    fn reference(self, x: f64) -> f64 {
        x.max(0.0)
    }
}

impl Tensor {
    /// Each element, or zero where it is negative.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("relu")]
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        unary(Relu, self)
    }

    /// Each element, or zero where it is negative, written over this tensor if nobody else holds it.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[track_caller]
    pub fn into_relu(self) -> Result<Tensor> {
        into_unary(Relu, self)
    }
}
