//! `linear`: rows times a matrix, plus a bias, through an activation, in one kernel.

mod gradients;

use gradients::LinearGradients;
use plimsoll_cpu::math;
use plimsoll_cuda::{Gpu, Profile};
use plimsoll_gemm as gemm;

use super::activation::Activation;
use super::matmul::{as_rows, cuda, product, workspace};
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, execute};
use crate::eager::op::{
    Cost, Meta, Op, OpRef, Outputs, Run, SavedRef, SavedRefs, Tensors, bytes_moved, one, saturating_product,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, OpInfo, Sample, floats, within};

/// y = activation(x w + b), the bias being optional. Backward reads x for w's gradient, w for x's, and y for the
/// derivative of the activation; the pre-activation is never saved.
#[derive(Debug)]
struct Linear {
    /// One whose derivative is read from its output.
    activation: Activation,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, w) = (&inputs[0], &inputs[1]);
        check_dtypes("linear", inputs)?;
        let (&[.., k], &[rows, cols]) = (x.shape().dims(), w.shape().dims()) else {
            return Err(Error::shape(
                "linear",
                format!(
                    "shapes {} and {}; the input needs one dimension or more, the weights are [in, out]",
                    x.shape(),
                    w.shape()
                ),
            ));
        };
        if k != rows {
            return Err(Error::shape(
                "linear",
                format!(
                    "shapes {} and {}; the last extent of the input, {k}, must equal the rows of the weights, {rows}",
                    x.shape(),
                    w.shape()
                ),
            ));
        }
        check_bias("linear", inputs.get(2).copied(), cols)?;
        one(x.shape().with_dim(x.shape().rank() - 1, cols)?, x.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => run_on::<T>(self, run))
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = [&as_matrix(run.inputs[0].meta), run.inputs[1].meta];
        let after = cuda::After { bias: run.inputs.get(2), activation: self.activation };
        cuda::product(run, gpu, "linear", &operands, after)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&[&as_matrix(inputs[0]), inputs[1]])
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::workspace(&[&as_matrix(inputs[0]), inputs[1]], profile)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let k = inputs[1].shape().first().copied().unwrap_or(0);
        let bytes = bytes_moved(inputs, outputs);
        Cost { flops: saturating_product([2, k, outputs[0].n_elems()]), bytes }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let x = wanted[1].then_some(SavedRef::Input(0));
        let w = wanted[0].then_some(SavedRef::Input(1));
        let y = (self.activation != Activation::None).then_some(SavedRef::Output(0));
        [x, w, y].into_iter().flatten().collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let gradient = self.activation.back(gradient, || backward.take_output(0))?;
        let is_on_gpu = gradient.device().profile().is_some();
        match [backward.wants(1), backward.wants(2)] {
            [true, true] if is_on_gpu => {
                let x = as_rows(&backward.take_input(0)?)?;
                let args = smallvec::smallvec![Arg::Given(x), Arg::Given(as_rows(&gradient)?)];
                let mut results = execute(OpRef::shipped(LinearGradients), args)?;
                backward.set_grad(2, results.remove(1))?;
                backward.set_grad(1, results.remove(0))?;
            }
            // A CPU gains nothing by doing both in one op.
            [wants_weights, wants_bias] => {
                if wants_bias {
                    let shape = *backward.input_shape(2);
                    backward.set_grad(2, as_rows(&gradient)?.sum(0)?.reshape(shape)?)?;
                }
                if wants_weights {
                    let product = as_rows(&backward.take_input(0)?)?.t()?.matmul(&as_rows(&gradient)?)?;
                    backward.set_grad(1, product)?;
                }
            }
        }
        if backward.wants(0) {
            let shape = *backward.input_shape(0);
            let product = as_rows(&gradient)?.matmul(&backward.input(1)?.t()?)?;
            backward.set_grad(0, product.reshape(shape)?)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let plain = || {
            let output = inputs[0].shape().with_dim(inputs[0].rank() - 1, inputs[1].shape()[1])?;
            let mut y = as_rows(inputs[0])?.matmul(inputs[1])?;
            if let Some(&bias) = inputs.get(2) {
                y = y.add(bias)?;
            }
            Ok(smallvec::smallvec![self.activation.apply(y)?.reshape(output)?])
        };
        Some(plain())
    }
}

/// Refuses operands that are not floats, or not of one dtype.
pub(super) fn check_dtypes(op: &'static str, operands: &[&Meta]) -> Result<()> {
    let first = operands[0].dtype;
    if !first.is_float() {
        return Err(Error::dtype(op, format!("takes floats, not {first}; convert with `cast`")));
    }
    match operands.iter().find(|operand| operand.dtype != first) {
        Some(other) => Err(Error::mixed_dtypes(op, first, other.dtype)),
        None => Ok(()),
    }
}

/// Refuses a bias that has not one element for each of `n` columns or channels.
pub(super) fn check_bias(op: &'static str, bias: Option<&Meta>, n: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.shape().dims() != [n] => Err(Error::shape(
            op,
            format!(
                "the bias has shape {}, but the weights give {n} outputs; it must be [{n}]",
                bias.shape()
            ),
        )),
        _ => Ok(()),
    }
}

/// The first operand of the product: a single row becomes a matrix.
fn as_matrix(x: &Meta) -> Meta {
    match x.shape().rank() {
        1 => x.with_layout(x.layout.unsqueezed(0)),
        _ => *x,
    }
}

fn run_on<T: gemm::Element<Real: math::Real>>(op: &Linear, run: &mut Run<'_>) -> Result<()> {
    let bias = run.inputs.get(2).map(|bias| bias.ptr().cast_const().cast::<T>());
    let function = op.activation.in_kernel::<T::Real>();
    let epilogue = gemm::Epilogue {
        bias,
        activation: function.as_ref().map(|function| function as gemm::Activation<'_, T::Real>),
        accumulate: false,
    };
    product(run, &[&as_matrix(run.inputs[0].meta), run.inputs[1].meta], &epilogue)
}

impl Tensor {
    /// `activation(x w + b)` over the last dimension of this tensor `[.., in]`, with weights `[in, out]` and a bias
    /// `[out]`; the result is `[.., out]`.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[doc = example!("linear")]
    #[doc(alias("dense", "addmm"))]
    #[track_caller]
    pub fn linear(&self, weights: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let (fused, after) = activation.split();
        let op = OpRef::shipped(Linear { activation: fused });
        let y = match bias {
            Some(bias) => call(op, &[self, weights, &bias.contiguous()?])?,
            None => call(op, &[self, weights])?,
        };
        after.apply(y)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "linear", doc: "Rows times a matrix, plus a bias, through an activation.", samples },
    &gradients::INFO,
];

fn samples() -> Vec<Sample> {
    vec![
        sample("plain", &[&[3, 4], &[4, 5]], &[3, 5], Activation::None, "x0 @ x1")
            .refuses(vec![floats(&[3, 4]), floats(&[5, 2])], "the rows of the weights, 5")
            .refuses(vec![floats(&[3, 4]), floats(&[2, 4, 2])], "the weights are [in, out]"),
        sample("bias", &[&[2, 3, 4], &[4, 5], &[5]], &[2, 3, 5], Activation::None, "x0 @ x1 + x2")
            .refuses(vec![floats(&[3, 4]), floats(&[4, 5]), floats(&[4])], "it must be [5]"),
        sample("relu", &[&[3, 4], &[4, 5], &[5]], &[3, 5], Activation::Relu, "F.relu(x0 @ x1 + x2)")
            .example("x0.linear(&x1, Some(&x2), Activation::Relu)"),
        sample("tanh", &[&[3, 4], &[4, 5]], &[3, 5], Activation::Tanh, "torch.tanh(x0 @ x1)"),
        sample("gelu", &[&[3, 4], &[4, 5], &[5]], &[3, 5], Activation::Gelu, "F.gelu(x0 @ x1 + x2)"),
        sample("one row", &[&[4], &[4, 3], &[3]], &[3], Activation::Relu, "F.relu(x0 @ x1 + x2)"),
    ]
}

fn sample(
    name: &str,
    shapes: &[&[usize]],
    out: &'static [usize],
    activation: Activation,
    torch: &str,
) -> Sample {
    let inputs = shapes.iter().map(|shape| within(shape, -0.8, 0.8)).collect();
    Sample::new(name, inputs, move |x| x[0].linear(&x[1], x.get(2), activation))
        .reference(move |x| {
            let k = x[1].shape[0];
            Array::build(out, |idx| {
                let (lead, col) = (&idx[..idx.len() - 1], idx[idx.len() - 1]);
                let bias = x.get(2).map_or(0.0, |bias| bias.at(&[col]));
                let term = |k: usize| x[0].at(&[lead, &[k]].concat()) * x[1].at(&[k, col]);
                activation.reference((0..k).map(term).sum::<f64>() + bias)
            })
        })
        .torch(torch)
}
