//! `sqrt`: the square root of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = √x, f'(x) = 1 / (2 f(x)).
#[derive(Clone, Copy, Debug)]
pub struct Sqrt;

impl Unary for Sqrt {
    const NAMES: [&'static str; 2] = ["sqrt", "sqrt_backward"];
    const DOC: &'static str = "The square root of each element.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (0.2, 3.0);
    const TORCH: &'static str = "x0.sqrt()";
    const CUDA: [&'static str; 2] = ["m::sqrt(x0)", "C(0.5) / v"];

    fn sample() -> Sqrt {
        Sqrt
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.sqrt()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        T::from_f64(0.5) / y
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.recip()?.into_affine(0.5, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        x.sqrt()
    }
}

impl Tensor {
    /// The square root of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("sqrt")]
    #[track_caller]
    pub fn sqrt(&self) -> Result<Tensor> {
        unary(Sqrt, self)
    }
}
