//! `linear_gradients`: what backward of `linear` makes of the gradient of its sums, for the weights and the bias together.
//!
//! On a GPU the library can sum the columns of a factor while it multiplies by it, which spares a reading of the gradient.

use plimsoll_cuda::{Gpu, Profile};
use plimsoll_gemm as gemm;

use super::check_dtypes;
use crate::base::axes::Axes;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::execute::{Arg, execute};
use crate::eager::op::{
    Cost, Gradient, Meta, Op, OpRef, Output, Outputs, Run, Tensors, bytes_moved, saturating_product,
};
use crate::eager::tensor::Tensor;
use crate::ops::cuda::reduce;
use crate::ops::kernel::for_floats;
use crate::ops::matmul::{cuda, product, workspace};
use crate::ops::reduce::{Reduce, Sum};
use crate::ops::registry::{Array, OpInfo, Sample, floats};

const NAME: &str = "linear_gradients";

/// From rows `[rows, in]` and the gradient of their sums `[rows, out]` to the gradients of weights `[in, out]` and bias
/// `[out]`.
#[derive(Debug)]
pub(super) struct LinearGradients;

/// The first factor of the gradient of the weights.
fn transposed(x: &Meta) -> Meta {
    x.with_layout(x.layout.permuted(&[1, 0]))
}

/// The rows, which are summed for the bias.
fn rows() -> Axes {
    Axes::of([0])
}

impl Op for LinearGradients {
    fn name(&self) -> &'static str {
        NAME
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_dtypes(NAME, inputs)?;
        let dtype = inputs[0].dtype;
        match (inputs[0].shape().dims(), inputs[1].shape().dims()) {
            (&[rows, n_inputs], &[same, n_outputs]) if rows == same => {
                let weights = Output::New { shape: Shape::new(&[n_inputs, n_outputs])?, dtype };
                let bias = Output::New { shape: Shape::new(&[n_outputs])?, dtype };
                Ok(smallvec::smallvec![weights, bias])
            }
            _ => Err(Error::shape(
                NAME,
                format!(
                    "shapes {} and {}; they must be [rows, in] and [rows, out]",
                    inputs[0].shape(),
                    inputs[1].shape()
                ),
            )),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, gradient) = (&run.inputs[0], &run.inputs[1]);
        for_floats!(x.dtype(), T => {
            product::<T>(run, &[&transposed(x.meta), gradient.meta], &gemm::Epilogue::NONE)?;
        });
        Sum.run(gradient, rows(), &run.outputs[1], &[]);
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&[&transposed(inputs[0]), inputs[1]])
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (x, gradient, bias) = (&run.inputs[0], &run.inputs[1], &run.outputs[1]);
        if cuda::product_and_sums(run, gpu, NAME, &[&transposed(x.meta), gradient.meta], bias)? {
            return Ok(());
        }
        let sums = reduce::Reduction {
            op: NAME,
            inputs: &[gradient],
            axes: rows(),
            fold: Sum.cuda(gradient.dtype(), false),
            outputs: &[bias],
            numbers: &[],
            workspace: run.workspace,
        };
        sums.run(gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        // Where the library does not sum, the sums follow the product in the same memory.
        let product = cuda::workspace(&[&transposed(inputs[0]), inputs[1]], profile);
        product.max(reduce::workspace(&inputs[1..], rows(), &Sum.cuda(inputs[1].dtype, false)))
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let n_rows = inputs[0].shape()[0];
        let bytes = bytes_moved(inputs, outputs);
        Cost { flops: saturating_product([2, n_rows, outputs[0].n_elems()]), bytes }
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let plain = || Ok(smallvec::smallvec![inputs[0].t()?.matmul(inputs[1])?, inputs[1].sum(0)?]);
        Some(plain())
    }
}

/// The registry's entry.
pub(super) const INFO: OpInfo = OpInfo {
    name: NAME,
    doc: "The gradients of a linear map's weights and bias from that of its sums.",
    samples,
};

fn samples() -> Vec<Sample> {
    let sample = |name: &str, [rows, n_inputs, n_outputs]: [usize; 3]| {
        let inputs = vec![floats(&[rows, n_inputs]), floats(&[rows, n_outputs])];
        Sample::many(name, inputs, |x| {
            Ok(execute(OpRef::shipped(LinearGradients), x.iter().map(Arg::Lent).collect())?.into_vec())
        })
        .references(move |x| {
            let weights = Array::build(&[n_inputs, n_outputs], |idx| {
                (0..rows).map(|row| x[0].at(&[row, idx[0]]) * x[1].at(&[row, idx[1]])).sum()
            });
            let bias = Array::build(&[n_outputs], |idx| (0..rows).map(|row| x[1].at(&[row, idx[0]])).sum());
            vec![weights, bias]
        })
        .torch("(x0.T @ x1, x1.sum(0))")
    };
    vec![
        sample("odd", [3, 4, 5])
            .refuses(vec![floats(&[3, 4]), floats(&[2, 5])], "[rows, in] and [rows, out]"),
        sample("even", [16, 8, 24]),
    ]
}
