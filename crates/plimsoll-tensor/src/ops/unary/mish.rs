//! `mish`: each element times the hyperbolic tangent of its softplus.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::error::Result;
use crate::tensor::Tensor;

/// f(x) = x t(x) with t = tanh(ln(1 + eˣ)); f'(x) = t + x σ(x) (1 - t²).
#[derive(Clone, Copy, Debug)]
pub struct Mish;

/// `t(x)`, by a softplus that never overflows.
#[inline(always)]
fn gate<T: Real>(x: T) -> T {
    (x.max(T::ZERO) + (-x.abs()).exp().ln_1p()).tanh()
}

impl Unary for Mish {
    const NAMES: [&'static str; 2] = ["mish", "mish_backward"];
    const DOC: &'static str = "Each element times the hyperbolic tangent of its softplus.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "F.mish(x0)";

    fn sample() -> Mish {
        Mish
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x * gate(x)
    }

    #[inline(always)]
    fn slope<T: Real>(self, x: T) -> T {
        let t = gate(x);
        t + x * x.sigmoid() * (T::ONE - t * t)
    }

    fn derivative(self, x: &Tensor) -> Result<Tensor> {
        let t = x.softplus()?.tanh()?;
        let rise = t.square()?.into_affine(-1.0, 1.0)?.into_mul(&x.sigmoid()?)?.into_mul(x)?;
        rise.into_add(t)
    }

    fn reference(self, x: f64) -> f64 {
        x * (1.0 + x.exp()).ln().tanh()
    }
}

impl Tensor {
    /// Each element times the hyperbolic tangent of its softplus.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[track_caller]
    pub fn mish(&self) -> Result<Tensor> {
        unary(Mish, self)
    }
}
