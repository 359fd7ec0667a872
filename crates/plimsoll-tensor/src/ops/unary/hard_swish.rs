//! `hard_swish`: each element times its hard sigmoid.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x min(max(x + 3, 0), 6) / 6; f'(x) = 0 up to -3, 1 from 3 on, x / 3 + 1/2 between.
#[derive(Clone, Copy, Debug)]
pub struct HardSwish;

impl Unary for HardSwish {
    const NAMES: [&'static str; 2] = ["hard_swish", "hard_swish_backward"];
    const DOC: &'static str = "Each element times its hard sigmoid.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (-5.0, 5.0);
    const TORCH: &'static str = "F.hardswish(x0)";
    const CUDA: [&'static str; 2] = [
        "x0 * m::min(m::max(x0 + C(3), C(0)), C(6)) * C(1.0 / 6.0)",
        "!(v > C(-3)) ? C(0) : v < C(3) ? v * C(1.0 / 3.0) + C(0.5) : C(1)",
    ];

    fn sample() -> HardSwish {
        HardSwish
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        let gate = (x + T::from_f64(3.0)).max(T::ZERO).min(T::from_f64(6.0));
        x * gate * T::from_f64(1.0 / 6.0)
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        let between = x * T::from_f64(1.0 / 3.0) + T::from_f64(0.5);
        let right = if x < T::from_f64(3.0) { between } else { T::ONE };
        if x > T::from_f64(-3.0) { right } else { T::ZERO }
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        let between = x.gt(-3.0)?.logical_and(&x.lt(3.0)?)?;
        between.where_(&x.affine(1.0 / 3.0, 0.5)?, &x.ge(3.0)?.cast(x.dtype())?)
    }

    fn reference(self, x: f64) -> f64 {
        x * ((x + 3.0) / 6.0).clamp(0.0, 1.0)
    }
}

impl Tensor {
    /// Each element times its hard sigmoid.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("hard_swish")]
    #[doc(alias = "hardswish")]
    #[track_caller]
    pub fn hard_swish(&self) -> Result<Tensor> {
        unary(HardSwish, self)
    }
}
