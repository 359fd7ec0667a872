//! `relu6`: each element, at least zero and at most six.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = min(max(x, 0), 6), f'(x) = 1 where 0 < f(x) < 6, else 0.
#[derive(Clone, Copy, Debug)]
pub struct Relu6;

impl Unary for Relu6 {
    const NAMES: [&'static str; 2] = ["relu6", "relu6_backward"];
    const DOC: &'static str = "Each element, at least zero and at most six.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (-3.0, 9.0);
    const TORCH: &'static str = "F.relu6(x0)";
    const CUDA: [&'static str; 2] = ["m::min(m::max(x0, C(0)), C(6))", "v > C(0) && v < C(6) ? C(1) : C(0)"];

    fn sample() -> Relu6 {
        Relu6
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.max(T::ZERO).min(T::from_f64(6.0))
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO && y < T::from_f64(6.0) { T::ONE } else { T::ZERO }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.gt(0.0)?.logical_and(&y.lt(6.0)?)?.cast(y.dtype())
    }

    fn reference(self, x: f64) -> f64 {
        x.clamp(0.0, 6.0)
    }
}

impl Tensor {
    /// Each element, at least zero and at most six.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("relu6")]
    #[track_caller]
    pub fn relu6(&self) -> Result<Tensor> {
        unary(Relu6, self)
    }
}
