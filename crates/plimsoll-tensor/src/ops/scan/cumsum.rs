//! `cumsum`: the sums of all elements up to each place.

use super::kernel::{Direction, Recurrence, scan, scan_cuda};
use crate::base::axes::Integer;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, Sample, Values, floats, input};
use plimsoll_cpu::element::Number;
use plimsoll_cuda::Gpu;

/// `y[i] = x[0] + .. + x[i]`; or, from the end, `y[i] = x[i] + .. + x[n - 1]`. Each is the gradient of the other, and keeps
/// nothing.
#[derive(Debug)]
struct CumSum {
    axis: usize,
    from_end: bool,
}

/// The state is the sum so far.
#[derive(Clone, Copy)]
struct Adding;

impl<A: Number> Recurrence<A, 2> for Adding {
    #[inline(always)]
    fn first(self, [x, _]: [A; 2]) -> A {
        x
    }

    #[inline(always)]
    fn next(self, state: A, [x, _]: [A; 2]) -> A {
        Number::add(state, x)
    }
}

impl Op for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match inputs[0].dtype {
            DType::Bool => Err(Error::dtype("cumsum", "takes numbers, not bool; convert with `cast`")),
            dtype => one(*inputs[0].shape(), dtype),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = [&run.inputs[0], &run.outputs[0]];
        let direction = match self.from_end {
            false => Direction::Forward,
            true => Direction::Backward { shifted: false },
        };
        // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, and of the shape and
        // dtype of the input.
        unsafe {
            match operands[0].dtype() {
                DType::I64 => scan::<i64, i64, 2>(operands, self.axis, direction, Adding),
                DType::I32 => scan::<i32, i32, 2>(operands, self.axis, direction, Adding),
                DType::U8 => scan::<u8, u8, 2>(operands, self.axis, direction, Adding),
                float => {
                    for_floats!(float, T => scan::<T, f64, 2>(operands, self.axis, direction, Adding));
                }
            }
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        scan_cuda("cumsum", None, (&run.inputs[0], &run.outputs[0]), self.axis, self.from_end, gpu)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let back = CumSum { axis: self.axis, from_end: !self.from_end };
        let gradient = call(OpRef::shipped(back), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }
}

impl Tensor {
    /// The sums of all elements up to each place along `axis`.
    ///
    /// # Errors
    /// An axis that the tensor does not have, truth values; memory that is full.
    #[doc = example!("cumsum")]
    #[track_caller]
    pub fn cumsum(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("cumsum", axis)?;
        call(OpRef::shipped(CumSum { axis, from_end: false }), &[self])
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: usize| {
        Sample::new(name, vec![floats(shape)], move |x| x[0].cumsum(axis))
            .reference(move |x| reference(&x[0], axis))
            .torch(format!("x0.cumsum({axis})"))
            .example(format!("x0.cumsum({axis})"))
    };
    let wholes = input(&[2, 3], Values::Of(DType::I32, -9.0, 9.0));
    vec![
        sample("rows", &[3, 5], 1)
            .refuses(vec![floats(&[5])], "cumsum: axis 1 of shape [5]")
            .refuses(vec![input(&[3, 5], Values::Truths)], "takes numbers, not bool"),
        sample("columns", &[4, 3], 0),
        sample("the axis between", &[2, 5, 3], 1),
        Sample::new("whole numbers", vec![wholes], |x| x[0].cumsum(-1)).reference(|x| reference(&x[0], 1)),
    ]
}

fn reference(x: &Array, axis: usize) -> Array {
    Array::build(&x.shape, |at| {
        let mut from = at.to_vec();
        let summand = |idx: usize| {
            from[axis] = idx;
            x.at(&from)
        };
        (0..=at[axis]).map(summand).sum()
    })
}
