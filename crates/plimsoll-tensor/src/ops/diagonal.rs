//! `diagonal`: the elements whose places along two axes are equal, as a view; and the way back, zeros with a diagonal.
//! Each op is the other's gradient.

use plimsoll_cpu::copy::fill;
use plimsoll_cuda::Gpu;

use crate::base::axes::Integer;
use crate::base::dtype::Element;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, one, view};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::copy;
use crate::ops::cuda::elementwise;
use crate::ops::cuda::moves::{self, Move};
use crate::ops::kernel::{dst, for_all};
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// y[.., i] = x[.., i, .., i, ..].
#[derive(Debug)]
struct Diagonal {
    axes: [usize; 2],
}

impl Op for Diagonal {
    fn name(&self) -> &'static str {
        "diagonal"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [first, second] = self.axes;
        view(inputs[0].layout.diagonal(first, second))
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let onto = OntoDiagonal { shape: *backward.input_shape(0), axes: self.axes };
        let gradient = call(OpRef::shipped(onto), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Zeros of a shape, with the elements on a diagonal.
#[derive(Debug)]
struct OntoDiagonal {
    shape: Shape,
    axes: [usize; 2],
}

impl Op for OntoDiagonal {
    fn name(&self) -> &'static str {
        "diagonal_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [first, second] = self.axes;
        let expected = *Meta::fresh(self.shape, inputs[0].dtype).layout.diagonal(first, second).shape();
        if *inputs[0].shape() != expected {
            return Err(Error::shape(
                "diagonal_backward",
                format!("{} elements for a diagonal of {expected}; they must agree", inputs[0].shape()),
            ));
        }
        one(self.shape, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y, [first, second]) = (&run.inputs[0], &run.outputs[0], self.axes);
        for_all!(y.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh.
            unsafe { fill::<T>(y.shape(), dst(y), <T as Element>::from_f64(0.0)) }
        });
        copy(x, &y.viewed(&y.meta.with_layout(y.meta.layout.diagonal(first, second))));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (x, y, [first, second]) = (&run.inputs[0], &run.outputs[0], self.axes);
        elementwise::fill(self.name(), gpu, y, 0.0)?;
        let places = y.meta.with_layout(y.meta.layout.diagonal(first, second));
        moves::start(self.name(), gpu, &[Move::new(x, &y.viewed(&places))])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = call(OpRef::shipped(Diagonal { axes: self.axes }), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }
}

impl Tensor {
    /// The elements whose places along two axes are equal, as a view. The two axes are gone; the diagonal is the last.
    ///
    /// # Errors
    /// An axis that the tensor does not have, or twice the same.
    #[doc = example!("diagonal")]
    #[doc(alias("diag", "diag_part"))]
    #[track_caller]
    pub fn diagonal(&self, first: impl Integer, second: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axes = [self.shape().axis("diagonal", first)?, self.shape().axis("diagonal", second)?];
        if axes[0] == axes[1] {
            return Err(Error::argument(
                "diagonal",
                format!("axes {first} and {second} of shape {} are one and the same", self.shape()),
            ));
        }
        call(OpRef::shipped(Diagonal { axes }), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "diagonal", doc: "The elements at equal places along two axes, as a view.", samples },
    &OpInfo {
        name: "diagonal_backward",
        doc: "Zeros, with the elements on a diagonal.",
        samples: backward_samples,
    },
];

fn samples() -> Vec<Sample> {
    vec![
        Sample::new("square", vec![floats(&[4, 4])], |x| x[0].diagonal(0, 1))
            .reference(|x| Array::build(&[4], |i| x[0].at(&[i[0], i[0]])))
            .torch("x0.diagonal()")
            .example("x0.diagonal(0, 1)")
            .refuses(vec![floats(&[4])], "diagonal: axis 1 of shape [4]"),
        Sample::new("outer axes", vec![floats(&[3, 2, 5])], |x| x[0].diagonal(-1, 0))
            .reference(|x| Array::build(&[2, 3], |i| x[0].at(&[i[1], i[0], i[1]])))
            .torch("x0.diagonal(dim1=0, dim2=2)"),
    ]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, few: &[usize], shape: [usize; 3], axes: [usize; 2]| {
        Sample::new(name, vec![floats(few)], move |x| {
            call(OpRef::shipped(OntoDiagonal { shape: Shape::new(&shape)?, axes }), &[&x[0]])
        })
        .reference(move |x| {
            Array::build(&shape, |i| match i[axes[0]] == i[axes[1]] {
                true => x[0].at(&[i[3 - axes[0] - axes[1]], i[axes[0]]]),
                false => 0.0,
            })
        })
    };
    vec![
        sample("inner axes", &[2, 3], [2, 3, 4], [1, 2])
            .refuses(vec![floats(&[2, 4])], "[2, 4] elements for a diagonal of [2, 3]"),
        sample("outer axes", &[2, 3], [3, 2, 3], [0, 2]),
    ]
}
