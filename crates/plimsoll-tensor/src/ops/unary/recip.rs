//! `recip`: one over each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = 1 / x, f'(x) = -f(x)².
#[derive(Clone, Copy, Debug)]
pub struct Recip;

impl Unary for Recip {
    const NAMES: [&'static str; 2] = ["recip", "recip_backward"];
    const DOC: &'static str = "One over each element.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (0.4, 2.0);
    const TORCH: &'static str = "x0.reciprocal()";
    const CUDA: [&'static str; 2] = ["C(1) / x0", "-(v * v)"];

    fn sample() -> Recip {
        Recip
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.recip()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        -(y * y)
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.square()?.into_affine(-1.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        1.0 / x
    }
}

impl Tensor {
    /// One over each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("recip")]
    #[doc(alias = "reciprocal")]
    #[track_caller]
    pub fn recip(&self) -> Result<Tensor> {
        unary(Recip, self)
    }
}
