//! Sums over any axes.

use plimsoll_cpu::reduce::{self, Sum as SumFold};

use crate::context;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::call;
use crate::op::{Meta, Op, OpRef, Outputs, Run, one};
use crate::ops::kernel::{for_numbers, src};
use crate::ops::registry::{Array, OpInfo, Sample, floats};
use crate::shape::{Axes, IntoAxes};
use crate::tape::Backward;
use crate::tensor::Tensor;

/// The sum over some axes; its gradient is the same for every element, so nothing is kept.
#[derive(Debug)]
struct Sum {
    axes: Axes,
    keep: bool,
}

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Outputs> {
        if inputs[0].dtype == DType::Bool {
            return Err(Error::dtype("sum", "takes numbers, not bool; convert with `cast`"));
        }
        one(inputs[0].shape().reduced(self.axes, self.keep), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_numbers!(x.dtype(), T => {
            let fold = SumFold::<T, T>::new();
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh.
            unsafe { reduce::reduce(&fold, x.shape(), |axis| self.axes.contains(axis), src(x), y.ptr().cast()) }
        });
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let shape = *backward.input_shape(0);
        let kept = shape.reduced(self.axes, true);
        let gradient = backward.gradient()?.reshape(kept)?.broadcast_to(shape)?;
        backward.give(0, gradient)
    }
}

impl Tensor {
    /// The sum over `axes`: `..` for all, one number, or several.
    ///
    /// # Errors
    /// An axis that the tensor does not have; memory that is full.
    #[track_caller]
    pub fn sum(&self, axes: impl IntoAxes) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axes = axes.into_axes("sum", self.shape())?;
        call(OpRef::new(Sum { axes, keep: false }), &[self])
    }

    /// The sum over `axes`, which stay with extent one.
    ///
    /// # Errors
    /// An axis that the tensor does not have; memory that is full.
    #[track_caller]
    pub fn sum_keepdims(&self, axes: impl IntoAxes) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axes = axes.into_axes("sum", self.shape())?;
        call(OpRef::new(Sum { axes, keep: true }), &[self])
    }
}

/// The registry's entries.
pub static INFOS: &[&OpInfo] = &[&OpInfo { name: "sum", doc: "The sum over some axes.", samples }];

fn samples() -> Vec<Sample> {
    vec![
        Sample::new("all", vec![floats(&[2, 3, 4])], |x| x[0].sum(..))
            .reference(|x| Array::new(&[], vec![x[0].values.iter().sum()]))
            .torch("x0.sum()"),
        Sample::new("rows", vec![floats(&[3, 4])], |x| x[0].sum(1))
            .reference(|x| Array::build(&[3], |i| (0..4).map(|j| x[0].at(&[i[0], j])).sum()))
            .torch("x0.sum(1)"),
    ]
}
