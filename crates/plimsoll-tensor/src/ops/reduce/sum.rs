//! `sum`: the sum over some axes.

use plimsoll_cpu::reduce::Sum as SumFold;

use super::{Reduce, Reduced, fold, methods, numbers_only};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::Operand;
use crate::ops::cuda::reduce as cuda;
use crate::ops::kernel::for_computed_numbers;
use crate::base::axes::{Axes, IntoAxes};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// y = Σ x; the gradient is the same for every element, so nothing is saved.
#[derive(Clone, Copy, Debug)]
pub struct Sum;

impl Reduce for Sum {
    const NAME: &'static str = "sum";
    const DOC: &'static str = "The sum over some axes.";

    fn sample() -> Sum {
        Sum
    }

    fn output(self, input: DType) -> Result<DType> {
        numbers_only("sum", input)
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, _aux_outputs: &[Operand]) {
        for_computed_numbers!(x.dtype(), C => fold(&SumFold::<C, C>::new(), x, axes, y));
    }

    fn cuda(self, input: DType, _is_recorded: bool) -> cuda::Fold {
        let acc_bytes = cuda::wide_bytes(input);
        cuda::Fold { variant: 0, text: cuda::SUM, finish: "y0 = acc.value;", acc_bytes, is_ordered: false }
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = reduced.gradient(backward)?.broadcast_to(backward.input_shape(0))?;
        backward.set_grad(0, gradient)
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().sum()
    }

    fn torch(self, dim: &str, _several: bool) -> Option<String> {
        Some(format!("x0.sum({dim})"))
    }
}

methods!(Sum, sum, sum_keepdims, "The sum", ["reduce_sum"]);
