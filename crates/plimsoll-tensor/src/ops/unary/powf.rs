//! `powf`: each element to the power of a number.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = xᵖ, f'(x) = p xᵖ⁻¹, and zero for p = 0 even where x is zero.
#[derive(Clone, Copy, Debug)]
pub struct Powf {
    exponent: f64,
}

impl Unary for Powf {
    const NAMES: [&'static str; 2] = ["powf", "powf_backward"];
    const DOC: &'static str = "Each element to the power of a number.";
    const READS: Reads = Reads::Input;
    const RANGE: (f64, f64) = (0.2, 3.0);
    const TORCH: &'static str = "x0 ** 2.3";
    const ARGUMENTS: &'static str = "2.3";
    const CUDA: [&'static str; 2] = [
        "m::pow(x0, NUMBER(0))",
        "NUMBER(0) == C(0) ? C(0) : NUMBER(0) * m::pow(v, NUMBER(1))",
    ];

    fn sample() -> Powf {
        Powf { exponent: 2.3 }
    }

    fn numbers(self) -> [f64; 2] {
        [self.exponent, self.exponent - 1.0]
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.pow(T::from_f64(self.exponent))
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, x: T) -> T {
        match self.exponent {
            0.0 => T::ZERO,
            p => T::from_f64(p) * x.pow(T::from_f64(p - 1.0)),
        }
    }

    fn backward_composite(self, x: &Tensor) -> Result<Tensor> {
        match self.exponent {
            0.0 => Tensor::full_like_scalar(x, 0.0),
            p => x.powf(p - 1.0)?.into_affine(p, 0.0),
        }
    }

    fn reference(self, x: f64) -> f64 {
        x.powf(self.exponent)
    }
}

impl Tensor {
    /// Each element to the power of a number. The exponents that have an op of their own (2, 1/2, -1, -1/2) use it.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("powf")]
    #[doc(alias("pow", "power"))]
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Result<Tensor> {
        match exponent {
            1.0 if self.dtype().is_float() => Ok(self.clone()),
            2.0 => self.square(),
            0.5 => self.sqrt(),
            -0.5 => self.rsqrt(),
            -1.0 => self.recip(),
            exponent => unary(Powf { exponent }, self),
        }
    }
}
