//! `leaky_relu`: a relu that lets a fraction of negative elements through.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, not_negative, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x where x > 0, else s x; f'(x) = 1 where f(x) > 0, else s. The output tells the two apart because s is not
/// negative.
#[derive(Clone, Copy, Debug)]
pub struct LeakyRelu {
    slope: f64,
}

impl Unary for LeakyRelu {
    const NAMES: [&'static str; 2] = ["leaky_relu", "leaky_relu_backward"];
    const DOC: &'static str = "Each element, or a fraction of it where it is negative.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "F.leaky_relu(x0, 0.1)";
    const ARGUMENTS: &'static str = "0.1";
    const CUDA: [&'static str; 2] = ["x0 > C(0) ? x0 : NUMBER(0) * x0", "v > C(0) ? C(1) : NUMBER(0)"];

    fn sample() -> LeakyRelu {
        LeakyRelu { slope: 0.1 }
    }

    fn numbers(self) -> [f64; 2] {
        [self.slope, 0.0]
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        if x > T::ZERO { x } else { T::from_f64(self.slope) * x }
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO { T::ONE } else { T::from_f64(self.slope) }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        let one = Tensor::full_like_scalar(y, 1.0)?;
        y.gt(0.0)?.where_(&one, &Tensor::full_like_scalar(y, self.slope)?)
    }

    fn reference(self, x: f64) -> f64 {
        if x > 0.0 { x } else { self.slope * x }
    }
}

impl Tensor {
    /// Each element, or `slope` times it where it is negative.
    ///
    /// # Errors
    /// A tensor that is not of floats, a negative `slope`; memory that is full.
    #[doc = example!("leaky_relu")]
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        unary(LeakyRelu { slope: not_negative("leaky_relu", "slope", slope)? }, self)
    }
}
