//! `mish`: each element times the hyperbolic tangent of its softplus.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x t(x) with t = tanh(ln(1 + eˣ)); f'(x) = t + x σ(x) (1 - t²).
#[derive(Clone, Copy, Debug)]
pub struct Mish;

/// `eˣ` and `n = (1 + eˣ)² - 1`, from which t = n / (n + 2). Beyond 20, where t is one to the last place, `x` is cut, so
/// that nothing overflows.
#[inline(always)]
fn parts<T: Real>(x: T) -> (T, T) {
    let e = x.min(T::from_f64(20.0)).exp();
    (e, e * (e + T::from_f64(2.0)))
}

impl Unary for Mish {
    const NAMES: [&'static str; 2] = ["mish", "mish_backward"];
    const DOC: &'static str = "Each element times the hyperbolic tangent of its softplus.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "F.mish(x0)";
    const CUDA: [&'static str; 2] = [
        "[=] { \
            C e = m::exp(m::min(x0, C(20))), n = e * (e + C(2)); \
            return x0 * (n / (n + C(2))); \
        }()",
        "[=] { \
            C e = m::exp(m::min(v, C(20))), n = e * (e + C(2)), sum = n + C(2); \
            return n / sum + v * (e / (C(1) + e)) * (C(4) * (n + C(1)) / (sum * sum)); \
        }()",
    ];

    fn sample() -> Mish {
        Mish
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        let (_, n) = parts(x);
        x * (n / (n + T::from_f64(2.0)))
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        let (e, n) = parts(x);
        let sum = n + T::from_f64(2.0);
        // 1 - t² = 4 (n + 1) / (n + 2)².
        let rest = T::from_f64(4.0) * (n + T::ONE) / (sum * sum);
        n / sum + x * (e / (T::ONE + e)) * rest
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
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
    #[doc = example!("mish")]
    #[track_caller]
    pub fn mish(&self) -> Result<Tensor> {
        unary(Mish, self)
    }
}
