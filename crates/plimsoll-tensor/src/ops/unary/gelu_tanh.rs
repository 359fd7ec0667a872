//! `gelu_tanh`: the Gaussian error linear unit by a hyperbolic tangent.

use std::f64::consts::PI;

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = x (1 + tanh(u / 2)) / 2 = x σ(u) with u(x) = a x + b x³, so f'(x) = σ(u) + x σ(u) (1 - σ(u)) u'(x).
#[derive(Clone, Copy, Debug)]
pub struct GeluTanh;

/// `a` = 2 √(2/π).
const LINEAR: f64 = 1.595_769_121_605_730_7;
/// `b` = 0.044715 a.
const CUBIC: f64 = 0.044_715 * LINEAR;

/// `u(x)`.
#[inline(always)]
fn inner<T: Real>(x: T) -> T {
    x * (T::from_f64(LINEAR) + T::from_f64(CUBIC) * x * x)
}

impl Unary for GeluTanh {
    const NAMES: [&'static str; 2] = ["gelu_tanh", "gelu_tanh_backward"];
    const DOC: &'static str = "The approximation of gelu by a hyperbolic tangent.";
    const READS: Reads = Reads::Input;
    const TORCH: &'static str = "F.gelu(x0, approximate='tanh')";
    const CUDA: [&'static str; 2] = [
        "x0 * m::sigmoid(x0 * (NUMBER(0) + NUMBER(1) * x0 * x0))",
        "[=] { \
            C s = m::sigmoid(v * (NUMBER(0) + NUMBER(1) * v * v)); \
            return s + v * s * (C(1) - s) * (NUMBER(0) + C(3) * NUMBER(1) * v * v); \
        }()",
    ];

    fn sample() -> GeluTanh {
        GeluTanh
    }

    fn numbers(self) -> [f64; 2] {
        [LINEAR, CUBIC]
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x * inner(x).sigmoid()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        let s = inner(x).sigmoid();
        let inner_grad = T::from_f64(LINEAR) + T::from_f64(3.0 * CUBIC) * x * x;
        s + x * s * (T::ONE - s) * inner_grad
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        let square = x.square()?;
        let s = square.affine(CUBIC, LINEAR)?.into_mul(x)?.sigmoid()?;
        let rise = s.affine(-1.0, 1.0)?.into_mul(&s)?.into_mul(x)?;
        rise.into_mul(&square.into_affine(3.0 * CUBIC, LINEAR)?)?.into_add(s)
    }

    fn reference(self, x: f64) -> f64 {
        0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
    }
}

impl Tensor {
    /// The approximation of gelu by a hyperbolic tangent.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("gelu_tanh")]
    #[doc(alias = "gelu")]
    #[track_caller]
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        unary(GeluTanh, self)
    }
}
