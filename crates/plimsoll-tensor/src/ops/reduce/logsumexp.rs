//! `logsumexp`: the logarithm of the sum of the exponentials, without overflow.

use plimsoll_cpu::reduce::LogSumExp as LogSumExpFold;
use smallvec::smallvec;

use super::{Reduce, Reduced, fold, methods};
use crate::error::Result;
use crate::op::{Keep, Keeps, Operand};
use crate::ops::kernel::for_floats;
use crate::shape::{Axes, IntoAxes};
use crate::tape::Backward;
use crate::tensor::Tensor;

/// y = ln Σ eˣ; the slope of an element is eˣ⁻ʸ.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp;

impl Reduce for LogSumExp {
    const NAME: &'static str = "logsumexp";
    const DOC: &'static str = "The logarithm of the sum of the exponentials over some axes.";

    fn sample() -> LogSumExp {
        LogSumExp
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, _extras: &[Operand]) {
        for_floats!(x.dtype(), T => fold(&LogSumExpFold::<T, T>::new(), x, axes, y));
    }

    fn keeps(self) -> Keeps {
        smallvec![Keep::Input(0), Keep::Output(0)]
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let slope = backward.input(0)?.sub(&reduced.output(backward)?)?.exp()?;
        let gradient = slope.into_mul(&reduced.gradient(backward)?)?;
        backward.give(0, gradient)
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().map(|value| value.exp()).sum::<f64>().ln()
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.logsumexp({dim})"))
    }
}

methods!(LogSumExp, logsumexp, logsumexp_keepdims, "The logarithm of the sum of the exponentials");
