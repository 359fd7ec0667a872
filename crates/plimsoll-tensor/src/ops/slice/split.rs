//! `split` and `chunk`: all parts along an axis at once, as views of one storage.

use smallvec::SmallVec;

use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{Meta, Op, OpRef, Output, Outputs, Run};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, Sample, floats};

/// Parts of given sizes along an axis. The gradient is the parts' gradients side by side.
#[derive(Debug)]
struct Split {
    axis: usize,
    sizes: SmallVec<[usize; 4]>,
}

impl Op for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let extent = inputs[0].shape()[self.axis];
        let total = self.sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if total != Some(extent) || self.sizes.is_empty() {
            return Err(Error::argument(
                "split",
                format!(
                    "sizes {:?} do not add up to the extent of axis {} of shape {}, which is {extent}",
                    self.sizes,
                    self.axis,
                    inputs[0].shape()
                ),
            ));
        }
        let part = |start: &mut usize, &size: &usize| {
            let layout = inputs[0].layout.narrowed(self.axis, *start, 1, size);
            *start += size;
            Some(Output::View { input: 0, layout: Box::new(layout) })
        };
        Ok(self.sizes.iter().scan(0, part).collect())
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let shape = *backward.input_shape(0);
        let arrived: Vec<Option<Tensor>> =
            (0..self.sizes.len()).map(|part| backward.gradient_of(part)).collect();
        let device = arrived.iter().flatten().next().map_or_else(context::device, Tensor::device);
        let _here = device.enter();
        let gradients = arrived.into_iter().zip(&self.sizes).map(|(gradient, &size)| match gradient {
            Some(gradient) => Ok(gradient),
            // One zero, repeated without memory.
            None => {
                let zero = Tensor::zeros_of((), backward.input_dtype(0))?;
                zero.broadcast_to(shape.with_dim(self.axis, size)?)
            }
        });
        let gradients: Vec<Tensor> = gradients.collect::<Result<_>>()?;
        let gradient = Tensor::concat(&gradients.iter().collect::<Vec<_>>(), self.axis)?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Tensor {
    /// The parts of the given sizes along `axis`, one after the other, as views.
    ///
    /// # Errors
    /// An axis that the tensor does not have; sizes that do not add up to its extent.
    #[doc = example!("split")]
    #[doc(alias = "tensor_split")]
    #[track_caller]
    pub fn split(&self, axis: impl Integer, sizes: &[usize]) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("split", axis)?;
        let op = OpRef::shipped(Split { axis, sizes: sizes.into() });
        Ok(execute(op, smallvec::smallvec![Arg::Lent(self)])?.into_vec())
    }

    /// `n` parts of equal size along `axis`, as views; the last ones are smaller, or missing, where the extent is no
    /// multiple of `n`.
    ///
    /// # Errors
    /// An axis that the tensor does not have; no parts.
    #[doc = example!("chunk")]
    #[doc(alias = "array_split")]
    #[track_caller]
    pub fn chunk(&self, axis: impl Integer, n: usize) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        let extent = self.shape()[self.shape().axis("chunk", axis)?];
        if n == 0 {
            return Err(Error::argument("chunk", "0 parts; there must be at least one"));
        }
        let size = extent.div_ceil(n).max(1);
        let sizes: Vec<usize> = (0..extent.max(1)).step_by(size).map(|at| size.min(extent - at)).collect();
        self.split(axis, &sizes)
    }
}

pub(super) fn samples() -> Vec<Sample> {
    let part = |x: &Array, start: usize, size: usize| {
        Array::build(&[x.shape[0], size], |i| x.at(&[i[0], i[1] + start]))
    };
    vec![
        Sample::many("sizes", vec![floats(&[2, 6])], |x| x[0].split(1, &[1, 3, 2]))
            .references(move |x| vec![part(&x[0], 0, 1), part(&x[0], 1, 3), part(&x[0], 4, 2)])
            .torch("torch.split(x0, [1, 3, 2], 1)")
            .example("let parts = x0.split(1, &[1, 3, 2])")
            .refuses(vec![floats(&[2, 5])], "[1, 3, 2] do not add up to the extent of axis 1"),
        Sample::many("chunks", vec![floats(&[3, 5])], |x| x[0].chunk(-1, 2))
            .references(move |x| vec![part(&x[0], 0, 3), part(&x[0], 3, 2)])
            .torch("torch.chunk(x0, 2, -1)")
            .example("let parts = x0.chunk(-1, 2)"),
    ]
}
