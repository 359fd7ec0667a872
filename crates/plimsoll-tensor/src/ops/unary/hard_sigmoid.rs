//! `hard_sigmoid`: the logistic function in three straight pieces.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = min(max(x / 6 + 1/2, 0), 1), f'(x) = 1/6 where 0 < f(x) < 1, else 0.
#[derive(Clone, Copy, Debug)]
pub struct HardSigmoid;

impl Unary for HardSigmoid {
    const NAMES: [&'static str; 2] = ["hard_sigmoid", "hard_sigmoid_backward"];
    const DOC: &'static str = "The logistic function in three straight pieces: x / 6 + 1/2, between zero and one.";
    const READS: Reads = Reads::Output;
    const RANGE: (f64, f64) = (-5.0, 5.0);
    const TORCH: &'static str = "(x0 / 6 + 0.5).clamp(0, 1)";
    const CUDA: [&'static str; 2] = [
        "m::min(m::max(x0 * C(1.0 / 6.0) + C(0.5), C(0)), C(1))",
        "v > C(0) && v < C(1) ? C(1.0 / 6.0) : C(0)",
    ];

    fn sample() -> HardSigmoid {
        HardSigmoid
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        (x * T::from_f64(1.0 / 6.0) + T::from_f64(0.5)).max(T::ZERO).min(T::ONE)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO && y < T::ONE { T::from_f64(1.0 / 6.0) } else { T::ZERO }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.gt(0.0)?.logical_and(&y.lt(1.0)?)?.cast(y.dtype())?.into_affine(1.0 / 6.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        ((x + 3.0) / 6.0).clamp(0.0, 1.0)
    }
}

impl Tensor {
    /// The logistic function in three straight pieces: x / 6 + 1/2, between zero and one.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("hard_sigmoid")]
    #[doc(alias = "hardsigmoid")]
    #[track_caller]
    pub fn hard_sigmoid(&self) -> Result<Tensor> {
        unary(HardSigmoid, self)
    }
}
