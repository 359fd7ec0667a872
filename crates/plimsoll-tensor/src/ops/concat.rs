//! `concat` and `stack`: many tensors side by side. The gradient is looked at part by part, without copies.

use plimsoll_cuda::Gpu;
use smallvec::SmallVec;

use crate::base::axes::{Axes, Integer};
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::copy;
use crate::ops::cuda::moves::{self, Move};
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// Tensors one after the other along an axis.
#[derive(Debug)]
struct Concat {
    axis: usize,
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (first, mut extent) = (inputs[0].shape(), 0usize);
        for (idx, input) in inputs.iter().enumerate() {
            if input.dtype != inputs[0].dtype {
                return Err(Error::mixed_dtypes("concat", inputs[0].dtype, input.dtype));
            }
            let shape = input.shape();
            let axes = Axes::of([self.axis]);
            let fits = shape.rank() == first.rank() && shape.reduced(axes, true) == first.reduced(axes, true);
            if !fits {
                return Err(Error::shape(
                    "concat",
                    format!(
                        "tensor {idx} has shape {shape} and the first {first}; they may differ along axis {} only",
                        self.axis
                    ),
                ));
            }
            extent = extent.saturating_add(shape[self.axis]);
        }
        one(first.with_dim(self.axis, extent)?, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let y = &run.outputs[0];
        let mut start = 0;
        for x in run.inputs {
            let size = x.shape()[self.axis];
            copy(x, &y.viewed(&y.meta.with_layout(y.meta.layout.narrowed(self.axis, start, 1, size))));
            start += size;
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let y = &run.outputs[0];
        let part = |start: &mut usize, x: &Operand<'_>| {
            let size = x.shape()[self.axis];
            let there = y.meta.with_layout(y.meta.layout.narrowed(self.axis, *start, 1, size));
            *start += size;
            Some(Move::new(x, &y.viewed(&there)))
        };
        let parts: SmallVec<[Move; 4]> = run.inputs.iter().scan(0, part).collect();
        moves::start("concat", gpu, &parts)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let mut start = 0;
        for input in 0..backward.n_inputs() {
            let size = backward.input_shape(input)[self.axis];
            if backward.wants(input) {
                backward.set_grad(input, gradient.narrow(self.axis, start, size)?)?;
            }
            start += size;
        }
        Ok(())
    }
}

impl Tensor {
    /// The tensors one after the other along `axis`; the other extents are equal.
    ///
    /// # Errors
    /// No tensor, an axis that they do not have, extents or dtypes that differ; memory that is full.
    #[doc = example!("concat")]
    #[doc(alias("cat", "concatenate"))]
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        match tensors {
            [] => Err(Error::argument("concat", "no tensors; there must be at least one")),
            [first, rest @ ..] => {
                let axis = first.shape().axis("concat", axis)?;
                match rest {
                    [] => Ok((*first).clone()),
                    _ => call(OpRef::shipped(Concat { axis }), tensors),
                }
            }
        }
    }

    /// The tensors, all of one shape, side by side along a new axis that is put in before `axis`.
    ///
    /// # Errors
    /// No tensor, an axis out of range, shapes or dtypes that differ; memory that is full.
    #[doc = example!("stack")]
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if let Some(odd) = tensors.iter().find(|tensor| tensor.shape() != tensors[0].shape()) {
            return Err(Error::shape(
                "stack",
                format!(
                    "shapes {} and {} differ; all must be equal (`concat` allows one axis to differ)",
                    tensors[0].shape(),
                    odd.shape()
                ),
            ));
        }
        let deeper: SmallVec<[Tensor; 4]> =
            tensors.iter().map(|tensor| tensor.unsqueeze(axis)).collect::<Result<_>>()?;
        Tensor::concat(&deeper.iter().collect::<SmallVec<[&Tensor; 4]>>(), axis)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] =
    &[&OpInfo { name: "concat", doc: "Tensors one after the other along an axis.", samples }];

fn samples() -> Vec<Sample> {
    let concat = |axis: isize| move |x: &[Tensor]| Tensor::concat(&x.iter().collect::<Vec<_>>(), axis);
    let stack = |x: &[Tensor]| Tensor::stack(&x.iter().collect::<Vec<_>>(), -1);
    vec![
        Sample::new("columns", vec![floats(&[2, 3]), floats(&[2, 1]), floats(&[2, 2])], concat(1))
            .reference(|x| {
                Array::build(&[2, 6], |i| match i[1] {
                    0..3 => x[0].at(i),
                    3 => x[1].at(&[i[0], 0]),
                    _ => x[2].at(&[i[0], i[1] - 4]),
                })
            })
            .torch("torch.cat((x0, x1, x2), 1)")
            .example("Tensor::concat(&[&x0, &x1, &x2], 1)")
            .refuses(vec![floats(&[2, 3]), floats(&[3, 3])], "may differ along axis 1 only")
            .refuses(vec![floats(&[2, 3]), input(&[2, 3], Values::Indices(4))], "with `cast`")
            .refuses(vec![], "no tensors"),
        Sample::new("rows", vec![floats(&[1, 3]), floats(&[2, 3])], concat(0))
            .reference(|x| {
                Array::build(&[3, 3], |i| match i[0] {
                    0 => x[0].at(i),
                    _ => x[1].at(&[i[0] - 1, i[1]]),
                })
            })
            .torch("torch.cat((x0, x1), 0)"),
        Sample::new("stack", vec![floats(&[2, 3]), floats(&[2, 3])], stack)
            .reference(|x| Array::build(&[2, 3, 2], |i| x[i[2]].at(&i[..2])))
            .torch("torch.stack((x0, x1), -1)")
            .example("Tensor::stack(&[&x0, &x1], -1)")
            .refuses(vec![floats(&[2, 3]), floats(&[2, 4])], "[2, 3] and [2, 4] differ"),
    ]
}
