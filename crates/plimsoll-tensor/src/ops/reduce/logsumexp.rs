//! `logsumexp`: the logarithm of the sum of the exponentials, without overflow.

use plimsoll_cpu::reduce::LogSumExp as LogSumExpFold;
use smallvec::smallvec;

use super::{Reduce, Reduced, fold, methods};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Operand};
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_floats;
use crate::base::axes::{Axes, IntoAxes};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// y = ln Σ eˣ; the derivative by an element is eˣ⁻ʸ.
#[derive(Clone, Copy, Debug)]
pub struct LogSumExp;

/// The greatest of some numbers, and the sum of the exponentials of their distances from it.
const EXPONENTIALS: &str = "
    struct Acc { C max, sum; };
    DEVICE Acc empty() { return {least(C()), (C)0}; }
    template <int N> DEVICE Acc leaf(const Values<N>& values) {
        C max = values.x0[0], sum = 0;
        _Pragma(\"unroll\") for (int i = 1; i < N; i++) max = m::max(max, values.x0[i]);
        C shift = shift_of(max);
        _Pragma(\"unroll\") for (int i = 0; i < N; i++) sum += m::exp(values.x0[i] - shift);
        return {max, sum};
    }
    DEVICE C rescaled(Acc acc, C max) { return acc.max == max ? acc.sum : acc.sum * m::exp(acc.max - shift_of(max)); }
    DEVICE Acc merge(Acc a, Count, Acc b, Count) {
        C max = m::max(a.max, b.max);
        return {max, rescaled(a, max) + rescaled(b, max)};
    }";

impl Reduce for LogSumExp {
    const NAME: &'static str = "logsumexp";
    const DOC: &'static str = "The logarithm of the sum of the exponentials over some axes.";

    fn sample() -> LogSumExp {
        LogSumExp
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
        for_computed_floats!(x.dtype(), C => fold(&LogSumExpFold::<C, C>::new(), x, axes, y));
    }

    fn cuda(self, input: DType, _is_recorded: bool) -> cuda::Fold {
        let acc_bytes = 2 * cuda::wide_bytes(input);
        let finish = "y0 = m::log(acc.sum) + shift_of(acc.max);";
        cuda::Fold { variant: 0, text: EXPONENTIALS, finish, acc_bytes, is_ordered: false }
    }

    fn saved(self) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Output(0)]
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let local_grad = backward.input(0)?.sub(&reduced.output(backward)?)?.exp()?;
        let gradient = local_grad.into_mul(&reduced.gradient(backward)?)?;
        backward.set_grad(0, gradient)
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().map(|value| value.exp()).sum::<f64>().ln()
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.logsumexp({dim})"))
    }
}

methods!(LogSumExp, logsumexp, logsumexp_keepdims, "The logarithm of the sum of the exponentials", ["reduce_logsumexp", "log_sum_exp"]);
