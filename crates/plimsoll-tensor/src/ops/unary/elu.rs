//! `elu`: the exponential linear unit.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, not_negative, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x where x > 0, else α (eˣ - 1); f'(x) = 1 where f(x) > 0, else f(x) + α. The output tells the two apart because
/// α is not negative.
#[derive(Clone, Copy, Debug)]
pub struct Elu {
    alpha: f64,
}

impl Unary for Elu {
    const NAMES: [&'static str; 2] = ["elu", "elu_backward"];
    const DOC: &'static str = "Each element, or alpha (exp(x) - 1) where it is negative.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "F.elu(x0, 0.7)";
    const ARGUMENTS: &'static str = "0.7";
    const CUDA: [&'static str; 2] = [
        "x0 > C(0) ? x0 : NUMBER(0) * m::expm1(x0)",
        "v > C(0) ? C(1) : v + NUMBER(0)",
    ];

    fn sample() -> Elu {
        Elu { alpha: 0.7 }
    }

    fn numbers(self) -> [f64; 2] {
        [self.alpha, 0.0]
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        if x > T::ZERO { x } else { T::from_f64(self.alpha) * x.exp_m1() }
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO { T::ONE } else { y + T::from_f64(self.alpha) }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.gt(0.0)?.where_(&Tensor::full_like_scalar(y, 1.0)?, &y.affine(1.0, self.alpha)?)
    }

    fn reference(self, x: f64) -> f64 {
        if x > 0.0 { x } else { self.alpha * (x.exp() - 1.0) }
    }
}

impl Tensor {
    /// Each element, or `alpha (exp(x) - 1)` where it is negative.
    ///
    /// # Errors
    /// A tensor that is not of floats, a negative `alpha`; memory that is full.
    #[doc = example!("elu")]
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        unary(Elu { alpha: not_negative("elu", "alpha", alpha)? }, self)
    }
}
