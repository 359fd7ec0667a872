//! `log_sigmoid`: the logarithm of the logistic function of each element.

use plimsoll_cpu::math::Real;

use super::{Reads, Unary, unary};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// f(x) = ln σ(x) = min(x, 0) - ln(1 + e^-|x|), which never overflows; f'(x) = 1 - σ(x) = 1 - exp(f(x)).
#[derive(Clone, Copy, Debug)]
pub struct LogSigmoid;

impl Unary for LogSigmoid {
    const NAMES: [&'static str; 2] = ["log_sigmoid", "log_sigmoid_backward"];
    const DOC: &'static str = "The logarithm of the logistic function of each element.";
    const READS: Reads = Reads::Output;
    const TORCH: &'static str = "F.logsigmoid(x0)";
    const CUDA: [&'static str; 2] = ["m::min(x0, C(0)) - m::log1p(m::exp(-m::abs(x0)))", "-m::expm1(v)"];

    fn sample() -> LogSigmoid {
        LogSigmoid
    }

    #[inline(always)]
    fn value<T: Real>(self, x: T) -> T {
        x.min(T::ZERO) - (-x.abs()).exp().ln_1p()
    }

    #[inline(always)]
    fn backward_kernel<T: Real>(self, y: T) -> T {
        -y.exp_m1()
    }

    fn backward_composite(self, y: &Tensor) -> Result<Tensor> {
        y.exp_m1()?.into_affine(-1.0, 0.0)
    }

    fn reference(self, x: f64) -> f64 {
        -(1.0 + (-x).exp()).ln()
    }
}

impl Tensor {
    /// The logarithm of the logistic function of each element.
    ///
    /// # Errors
    /// A tensor that is not of floats; memory that is full.
    #[doc = example!("log_sigmoid")]
    #[doc(alias = "logsigmoid")]
    #[track_caller]
    pub fn log_sigmoid(&self) -> Result<Tensor> {
        unary(LogSigmoid, self)
    }
}
