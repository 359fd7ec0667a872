//! `mean`: the mean over some axes.

use plimsoll_cpu::reduce::Mean as MeanFold;

use super::{Reduce, Reduced, fold, methods};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_floats;
use crate::base::axes::{Axes, IntoAxes};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// y = Σ x / n; the gradient is the same for every element, so nothing is saved. The mean of nothing is NaN.
#[derive(Clone, Copy, Debug)]
pub struct Mean;

impl Reduce for Mean {
    const NAME: &'static str = "mean";
    const DOC: &'static str = "The mean over some axes.";

    fn sample() -> Mean {
        Mean
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
        for_computed_floats!(x.dtype(), C => fold(&MeanFold::<C, C>::new(), x, axes, y));
    }

    fn cuda(self, input: DType, _is_recorded: bool) -> cuda::Fold {
        let acc_bytes = cuda::wide_bytes(input);
        cuda::Fold { variant: 0, text: cuda::SUM, finish: "y0 = acc.value / n;", acc_bytes, is_ordered: false }
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let share = 1.0 / reduced.n_elems(backward) as f64;
        let gradient = reduced.gradient(backward)?.into_affine(share, 0.0)?;
        let gradient = gradient.broadcast_to(backward.input_shape(0))?;
        backward.set_grad(0, gradient)
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.mean({dim})"))
    }
}

methods!(Mean, mean, mean_keepdims, "The mean", ["reduce_mean", "average"]);
