//! `sinh`: the hyperbolic sine of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::error::Result;
use crate::tensor::Tensor;

/// f(x) = sinh x, f'(x) = cosh x.
#[derive(Clone, Copy, Debug)]
pub struct Sinh;

impl Unary for Sinh {
    const NAMES: [&'static str; 2] = ["sinh", "sinh_backward"];
    const DOC: &'static str = "The hyperbolic sine of each element.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "x0.sinh()";

    fn sample() -> Sinh {
        Sinh
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.sinh()
    }

    #[inline(always)]
    fn slope<T: Real>(self, x: T) -> T {
        x.cosh()
    }

    fn derivative(self, x: &Tensor) -> Result<Tensor> {
        x.cosh()
    }

    fn reference(self, x: f64) -> f64 {
        x.sinh()
    }
}

impl Tensor {
    /// The hyperbolic sine of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[track_caller]
    pub fn sinh(&self) -> Result<Tensor> {
        unary(Sinh, self)
    }
}
