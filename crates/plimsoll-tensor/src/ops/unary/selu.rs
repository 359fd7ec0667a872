//! `selu`: the self-normalising elu.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = s x where x > 0, else s α (eˣ - 1); f'(x) = s where f(x) > 0, else f(x) + s α.
#[derive(Clone, Copy, Debug)]
pub struct Selu;

/// The numbers for which mean zero and variance one are kept from layer to layer.
const ALPHA: f64 = 1.673_263_242_354_377_2;
const SCALE: f64 = 1.050_700_987_355_480_5;

impl Unary for Selu {
    const NAMES: [&'static str; 2] = ["selu", "selu_backward"];
    const DOC: &'static str = "The self-normalising elu: elu of a fixed alpha, times a fixed scale.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "F.selu(x0)";
    const CUDA: [&'static str; 2] = [
        "x0 > C(0) ? NUMBER(0) * x0 : NUMBER(1) * m::expm1(x0)",
        "v > C(0) ? NUMBER(0) : v + NUMBER(1)",
    ];

    fn sample() -> Selu {
        Selu
    }

    fn numbers(self) -> [f64; 2] {
        [SCALE, SCALE * ALPHA]
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        let scale = T::from_f64(SCALE);
        if x > T::ZERO { scale * x } else { T::from_f64(SCALE * ALPHA) * x.exp_m1() }
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        if y > T::ZERO { T::from_f64(SCALE) } else { y + T::from_f64(SCALE * ALPHA) }
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        let rest = y.affine(1.0, SCALE * ALPHA)?;
        y.gt(0.0)?.where_(&Tensor::full_like_scalar(y, SCALE)?, &rest)
    }

    fn reference(self, x: f64) -> f64 {
        if x > 0.0 { SCALE * x } else { SCALE * ALPHA * (x.exp() - 1.0) }
    }
}

impl Tensor {
    /// The self-normalising elu: elu of a fixed alpha, times a fixed scale.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("selu")]
    #[track_caller]
    pub fn selu(&self) -> Result<Tensor> {
        unary(Selu, self)
    }
}
