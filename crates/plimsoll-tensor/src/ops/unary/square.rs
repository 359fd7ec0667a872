//! `square`: each element times itself.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x², f'(x) = 2 x.
#[derive(Clone, Copy, Debug)]
pub struct Square;

impl Unary for Square {
    const NAMES: [&'static str; 2] = ["square", "square_backward"];
    const DOC: &'static str = "Each element times itself.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.square()";
    const CUDA: [&'static str; 2] = ["x0 * x0", "v + v"];

    fn sample() -> Square {
        Square
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x * x
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        x + x
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        x.affine(2.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.powi(2)
    }
}

impl Tensor {
    /// Each element times itself.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("square")]
    #[track_caller]
    pub fn square(&self) -> Result<Tensor> {
        unary(Square, self)
    }
}
