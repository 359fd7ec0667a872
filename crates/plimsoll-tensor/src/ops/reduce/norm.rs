//! `norm`: the Euclidean length over some axes.

use plimsoll_cpu::reduce::Length;
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

/// y = √Σ x²; the derivative by an element is x / y, and zero where all elements are.
#[derive(Clone, Copy, Debug)]
pub struct Norm;

impl Reduce for Norm {
    const NAME: &'static str = "norm";
    const DOC: &'static str = "The Euclidean length over some axes.";

    fn sample() -> Norm {
        Norm
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
        for_computed_floats!(x.dtype(), C => fold(&Length::<C, C>::new(), x, axes, y));
    }

    fn cuda(self, input: DType, _is_recorded: bool) -> cuda::Fold {
        let (text, acc_bytes) = (cuda::plain_fold!("C", "0", "x * x", "a + b"), cuda::wide_bytes(input));
        cuda::Fold { variant: 0, text, finish: "y0 = m::sqrt(acc.value);", acc_bytes, is_ordered: false }
    }

    fn saved(self) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Output(0)]
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let y = reduced.output(backward)?;
        let not_zero = y.add(&y.eq(0.0)?.cast(y.dtype())?)?;
        let ratio = reduced.gradient(backward)?.div(&not_zero)?;
        let gradient = backward.input(0)?.mul(&ratio)?;
        backward.set_grad(0, gradient)
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().map(|value| value * value).sum::<f64>().sqrt()
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("torch.linalg.vector_norm(x0, {dim})"))
    }
}

methods!(Norm, norm, norm_keepdims, "The Euclidean length", ["vector_norm", "euclidean_norm"]);
