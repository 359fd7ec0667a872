//! `silu`: each element times its logistic function.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x σ(x), f'(x) = σ(x) (1 + x (1 - σ(x))).
#[derive(Clone, Copy, Debug)]
pub struct Silu;

impl Unary for Silu {
    const NAMES: [&'static str; 2] = ["silu", "silu_backward"];
    const DOC: &'static str = "Each element times its logistic function; also called swish.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "F.silu(x0)";
    const CUDA: [&'static str; 2] = [
        "x0 * m::sigmoid(x0)",
        "[=] { C s = m::sigmoid(v); return s * (C(1) + v * (C(1) - s)); }()",
    ];

    fn sample() -> Silu {
        Silu
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x * x.sigmoid()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        let s = x.sigmoid();
        s * (T::ONE + x * (T::ONE - s))
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        let s = x.sigmoid()?;
        let factor = s.affine(-1.0, 1.0)?.into_mul(x)?.into_affine(1.0, 1.0)?;
        factor.into_mul(&s)
    }

    fn reference(self, x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }
}

impl Tensor {
    /// Each element times its logistic function; also called swish.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("silu")]
    #[doc(alias = "swish")]
    #[track_caller]
    pub fn silu(&self) -> Result<Tensor> {
        unary(Silu, self)
    }
}
