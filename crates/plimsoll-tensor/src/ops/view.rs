//! Views: another look at the same memory. No bytes, no kernel; the gradient is looked back.

use crate::base::axes::{Axes, Integer};
use crate::base::error::{Error, Result};
use crate::base::layout::{Layout, permutation};
use crate::base::reshape::IntoReshape;
use crate::base::shape::{IntoShape, Shape};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, view};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// The same elements in the same order under another shape.
#[derive(Debug)]
struct Reshape(Shape);

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let layout = inputs[0].layout.reshaped(self.0);
        view(layout.unwrap_or_else(|| unreachable!("`Tensor::reshape` copies first where it must")))
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?.reshape(*backward.input_shape(0))?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The dimensions in another order.
#[derive(Debug)]
struct Permute(Vec<usize>);

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        view(inputs[0].layout.permuted(&self.0))
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let mut back = vec![0; self.0.len()];
        for (to, &from) in self.0.iter().enumerate() {
            back[from] = to;
        }
        let gradient = call(OpRef::shipped(Permute(back)), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The elements repeated to a larger shape.
#[derive(Debug)]
struct Broadcast(Shape);

impl Op for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast_to"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let layout = inputs[0].layout.broadcast_to(&self.0);
        view(layout.ok_or_else(|| Error::not_broadcastable("broadcast_to", inputs[0].shape(), &self.0))?)
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let shape = *backward.input_shape(0);
        let gradient = backward.gradient()?.sum_to(&shape)?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Tensor {
    /// The same elements in the same order under another shape; copies only where the memory makes it necessary. One extent
    /// may be `-1`: it is what the others leave.
    ///
    /// # Errors
    /// A shape with another number of elements, an extent that cannot be inferred; memory that is full.
    #[doc = example!("reshape")]
    #[doc(alias = "view")]
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoReshape) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let shape = shape.into_reshape(self.shape())?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        let (_, meta) = self.storage_view();
        match meta.layout.reshaped(shape) {
            Some(_) => call(OpRef::shipped(Reshape(shape)), &[self]),
            None => call(OpRef::shipped(Reshape(shape)), &[&self.copied()?]),
        }
    }

    /// The elements as a vector.
    ///
    /// # Errors
    /// Memory that is full.
    #[doc = example!("flatten")]
    #[doc(alias = "ravel")]
    #[track_caller]
    pub fn flatten(&self) -> Result<Tensor> {
        self.reshape(self.n_elems())
    }

    /// The dimensions in the order of `axes`, which may count from the end.
    ///
    /// # Errors
    /// Axes that are not an order of the tensor's.
    #[doc = example!("permute")]
    #[doc(alias = "transpose")]
    #[track_caller]
    pub fn permute(&self, axes: impl IntoIterator<Item = impl Integer>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Permute(permutation("permute", self.shape(), axes)?)), &[self])
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// An axis that the tensor does not have.
    #[doc = example!("transpose")]
    #[doc(alias("swapaxes", "swapdims"))]
    #[track_caller]
    pub fn transpose(&self, first: impl Integer, second: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let (first, second) =
            (self.shape().axis("transpose", first)?, self.shape().axis("transpose", second)?);
        let mut axes: Vec<usize> = (0..self.rank()).collect();
        axes.swap(first, second);
        call(OpRef::shipped(Permute(axes)), &[self])
    }

    /// The last two dimensions exchanged.
    ///
    /// # Errors
    /// A tensor with fewer than two dimensions.
    #[doc = example!("t")]
    #[doc(alias = "matrix_transpose")]
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        self.transpose(-2, -1)
    }

    /// The elements repeated to a larger shape, as numpy broadcasts; no copy.
    ///
    /// # Errors
    /// A shape that the tensor's does not broadcast to.
    #[doc = example!("broadcast_to")]
    #[doc(alias = "expand")]
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let shape = shape.into_shape()?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        call(OpRef::shipped(Broadcast(shape)), &[self])
    }

    /// The tensor with a dimension of extent one put in before `axis`.
    ///
    /// # Errors
    /// An axis out of range.
    #[doc = example!("unsqueeze")]
    #[doc(alias("expand_dims", "newaxis"))]
    #[track_caller]
    pub fn unsqueeze(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let (axis, rank) = (axis.to_i128(), self.rank() as i128);
        if !(-rank - 1..=rank).contains(&axis) {
            return Err(Error::argument(
                "unsqueeze",
                format!("axis {axis} of shape {}; it goes from {} to {rank}", self.shape(), -rank - 1),
            ));
        }
        let mut dims = self.shape().to_vec();
        dims.insert(axis.rem_euclid(rank + 1) as usize, 1);
        self.reshape(dims)
    }

    /// The tensor without dimension `axis`, which has extent one.
    ///
    /// # Errors
    /// An axis whose extent is not one.
    #[doc = example!("squeeze")]
    #[track_caller]
    pub fn squeeze(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("squeeze", axis)?;
        if self.shape()[axis] != 1 {
            return Err(Error::shape(
                "squeeze",
                format!("axis {axis} of shape {} has extent {}, not 1", self.shape(), self.shape()[axis]),
            ));
        }
        self.reshape(self.shape().reduced(Axes::of([axis]), false))
    }

    /// The sum over the axes along which a tensor of `shape` would be repeated to this one's shape.
    ///
    /// # Errors
    /// A shape that does not broadcast to this one's; memory that is full.
    #[doc(alias = "sum_to_size")]
    #[track_caller]
    pub fn sum_to(&self, shape: &Shape) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if shape == self.shape() {
            return Ok(self.clone());
        }
        if Layout::contiguous(*shape).broadcast_to(self.shape()).is_none() {
            return Err(Error::not_broadcastable("sum_to", shape, self.shape()));
        }
        let extra = self.rank() - shape.rank();
        let repeated = |&axis: &usize| axis < extra || (shape[axis - extra] == 1 && self.shape()[axis] != 1);
        let axes = Axes::of((0..self.rank()).filter(repeated));
        self.sum_keepdims(axes)?.reshape(*shape)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "reshape", doc: "The same elements under another shape.", samples: reshape_samples },
    &OpInfo { name: "permute", doc: "The dimensions in another order.", samples: permute_samples },
    &OpInfo {
        name: "broadcast_to",
        doc: "The elements repeated to a larger shape.",
        samples: broadcast_samples,
    },
];

fn reshape_samples() -> Vec<Sample> {
    let to = |shape: &'static [usize]| move |x: &[Tensor]| x[0].reshape(shape);
    vec![
        Sample::new("split", vec![floats(&[4, 6])], to(&[2, 2, 6]))
            .reference(|x| Array::new(&[2, 2, 6], x[0].values.clone()))
            .torch("x0.reshape(2, 2, 6)")
            .example("x0.reshape([2, -1, 6])")
            .refuses(vec![floats(&[5])], "do not fill shape [2, 2, 6]"),
        Sample::new("join", vec![floats(&[2, 3, 4])], to(&[6, 4]))
            .reference(|x| Array::new(&[6, 4], x[0].values.clone()))
            .torch("x0.reshape(6, 4)"),
        Sample::new("flatten", vec![floats(&[2, 3])], |x| x[0].flatten())
            .reference(|x| Array::new(&[6], x[0].values.clone()))
            .example("x0.flatten()"),
        Sample::new("unsqueeze", vec![floats(&[2, 3])], |x| x[0].unsqueeze(-1))
            .reference(|x| Array::new(&[2, 3, 1], x[0].values.clone()))
            .example("x0.unsqueeze(-1)"),
        Sample::new("squeeze", vec![floats(&[2, 1, 3])], |x| x[0].squeeze(1))
            .reference(|x| Array::new(&[2, 3], x[0].values.clone()))
            .example("x0.squeeze(1)"),
    ]
}

fn permute_samples() -> Vec<Sample> {
    vec![
        Sample::new("turn", vec![floats(&[2, 3, 4])], |x| x[0].permute([2, 0, -2]))
            .reference(|x| Array::build(&[4, 2, 3], |i| x[0].at(&[i[1], i[2], i[0]])))
            .torch("x0.permute(2, 0, 1)")
            .example("x0.permute([2, 0, -2])")
            .refuses(vec![floats(&[2, 3])], "axis 2 of shape [2, 3]"),
        Sample::new("transpose", vec![floats(&[3, 5])], |x| x[0].t())
            .reference(|x| Array::build(&[5, 3], |i| x[0].at(&[i[1], i[0]])))
            .torch("x0.transpose(0, 1)")
            .example("x0.t()"),
        Sample::new("two axes", vec![floats(&[2, 3, 2])], |x| x[0].transpose(0, 1))
            .reference(|x| Array::build(&[3, 2, 2], |i| x[0].at(&[i[1], i[0], i[2]])))
            .example("x0.transpose(0, 1)"),
    ]
}

fn broadcast_samples() -> Vec<Sample> {
    let to = |x: &[Tensor]| x[0].broadcast_to([2, 3, 4]);
    let reference = |x: &[Array]| Array::build(&[2, 3, 4], |i| x[0].at(i));
    vec![
        Sample::new("row", vec![floats(&[4])], to)
            .reference(reference)
            .torch("x0.expand(2, 3, 4)")
            .example("x0.broadcast_to([2, 3, 4])")
            .refuses(vec![floats(&[5])], "do not broadcast"),
        Sample::new("column", vec![floats(&[3, 1])], to).reference(reference).torch("x0.expand(2, 3, 4)"),
    ]
}
