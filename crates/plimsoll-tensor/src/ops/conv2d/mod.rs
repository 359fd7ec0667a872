//! Two-dimensional convolution, channels last: the op, and the ops of its gradients.
//!
//! The three are one trilinear form seen from its three sides, so the gradients of each are the other two and
//! derivatives of any order need nothing else. Kernels pack patches as they go; no matrix of patches is ever stored.
//! Each op holds its geometry, because a stride makes inputs of several sizes give the same output.

mod config;
mod samples;

pub use config::Conv2dConfig;

use plimsoll_cpu::math;
use plimsoll_gemm as gemm;
use plimsoll_gemm::ConvPass;

use super::activation::Activation;
use super::linear::{check_bias, check_dtypes};
use super::matmul::as_rows;
use crate::context;
use crate::error::{Error, Result};
use crate::execute::call;
use crate::op::{Cost, Keep, Keeps, Meta, Op, OpRef, Operand, Outputs, Run, Tensors, one};
use crate::ops::kernel::for_floats;
use crate::ops::registry::OpInfo;
use crate::shape::Shape;
use crate::tape::Backward;
use crate::tensor::Tensor;
use config::{input_shape, output_shape, weights_shape};

/// y = activation(x * w + b), from x, w and the bias if there is one. Backward reads x for w's gradient, w for x's, and
/// y for the slope of the activation.
#[derive(Debug)]
struct Conv2d {
    geometry: gemm::Conv2d,
    /// One whose slope is read from its output.
    activation: Activation,
}

/// The gradient with respect to the input, from the gradient of the output and the weights.
#[derive(Debug)]
struct Conv2dBackwardInput(gemm::Conv2d);

/// The gradient with respect to the weights, from the input and the gradient of the output.
#[derive(Debug)]
struct Conv2dBackwardWeights(gemm::Conv2d);

fn convolve(geometry: gemm::Conv2d, input: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let op = Conv2d { geometry, activation: Activation::None };
    call(OpRef::new(op), &[input, &weights.contiguous()?])
}

fn input_gradient(geometry: gemm::Conv2d, gradient: &Tensor, weights: &Tensor) -> Result<Tensor> {
    call(OpRef::new(Conv2dBackwardInput(geometry)), &[gradient, &weights.contiguous()?])
}

fn weights_gradient(geometry: gemm::Conv2d, input: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    call(OpRef::new(Conv2dBackwardWeights(geometry)), &[input, &gradient.contiguous()?])
}

impl Op for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self, inputs, [input_shape(&self.geometry), weights_shape(&self.geometry)])?;
        check_bias("conv2d", inputs.get(2).copied(), self.geometry.out_channels)?;
        one(output_shape(&self.geometry), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.run_on::<T>(run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&self.geometry, inputs, ConvPass::Forward)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        cost(&self.geometry, inputs, outputs)
    }

    fn keeps(&self, wanted: &[bool]) -> Keeps {
        let output = (self.activation != Activation::None).then_some(Keep::Output(0));
        other_operand(wanted).chain(output).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let gradient = self.activation.back(gradient, || backward.output(0))?;
        if backward.wants(2) {
            backward.give(2, as_rows(&gradient)?.sum(0)?)?;
        }
        if backward.wants(1) {
            backward.give(1, weights_gradient(self.geometry, &backward.input(0)?, &gradient)?)?;
        }
        if backward.wants(0) {
            backward.give(0, input_gradient(self.geometry, &gradient, &backward.input(1)?)?)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        if inputs.len() == 2 && self.activation == Activation::None {
            return None;
        }
        let plain = || {
            let mut y = convolve(self.geometry, inputs[0], inputs[1])?;
            if let Some(&bias) = inputs.get(2) {
                y = y.add(bias)?;
            }
            Ok(smallvec::smallvec![self.activation.apply(y)?])
        };
        Some(plain())
    }
}

impl Conv2d {
    fn run_on<T: gemm::Element<Real: math::Real>>(&self, run: &mut Run<'_>) {
        let (x, w, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
        let function = self.activation.in_kernel::<T::Real>();
        let epilogue = gemm::Epilogue {
            bias: run.inputs.get(2).map(|bias| bias.ptr().cast_const().cast()),
            activation: function.as_ref().map(|function| function as gemm::Activation<'_, T::Real>),
            accumulate: false,
        };
        let (weights, output) = (w.ptr().cast_const().cast(), y.ptr().cast::<T>());
        // SAFETY: `infer` has checked the shapes, the method makes weights and bias contiguous, and the output is fresh.
        unsafe {
            let workspace = run.workspace_bytes();
            gemm::conv2d_forward(&self.geometry, image(x), weights, output, &epilogue, workspace);
        }
    }
}

impl Op for Conv2dBackwardInput {
    fn name(&self) -> &'static str {
        "conv2d_backward_input"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self, inputs, [output_shape(&self.0), weights_shape(&self.0)])?;
        one(input_shape(&self.0), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (gradient, weights, result) = (&run.inputs[0], &run.inputs[1], run.outputs[0].ptr());
        for_floats!(gradient.dtype(), T => {
            let (weights, result) = (weights.ptr().cast_const().cast(), result.cast::<T>());
            // SAFETY: `infer` has checked the shapes, the weights are contiguous, and the output is fresh.
            unsafe {
                let workspace = run.workspace_bytes();
                gemm::conv2d_backward_input(&self.0, image(gradient), weights, result, false, workspace);
            }
        });
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&self.0, inputs, ConvPass::BackwardInput)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        cost(&self.0, inputs, outputs)
    }

    fn keeps(&self, wanted: &[bool]) -> Keeps {
        other_operand(wanted).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(0) {
            backward.give(0, convolve(self.0, &gradient, &backward.input(1)?)?)?;
        }
        if backward.wants(1) {
            backward.give(1, weights_gradient(self.0, &gradient, &backward.input(0)?)?)?;
        }
        Ok(())
    }
}

impl Op for Conv2dBackwardWeights {
    fn name(&self) -> &'static str {
        "conv2d_backward_weights"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self, inputs, [input_shape(&self.0), output_shape(&self.0)])?;
        one(weights_shape(&self.0), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (input, gradient, result) = (&run.inputs[0], &run.inputs[1], run.outputs[0].ptr());
        for_floats!(input.dtype(), T => {
            let (gradient, result) = (gradient.ptr().cast_const().cast(), result.cast::<T>());
            // SAFETY: `infer` has checked the shapes, the gradient is contiguous, and the output is fresh.
            unsafe {
                let workspace = run.workspace_bytes();
                gemm::conv2d_backward_weights(&self.0, image(input), gradient, result, false, workspace);
            }
        });
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&self.0, inputs, ConvPass::BackwardWeights)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        cost(&self.0, inputs, outputs)
    }

    fn keeps(&self, wanted: &[bool]) -> Keeps {
        other_operand(wanted).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(0) {
            backward.give(0, input_gradient(self.0, &backward.input(1)?, &gradient)?)?;
        }
        if backward.wants(1) {
            backward.give(1, convolve(self.0, &backward.input(0)?, &gradient)?)?;
        }
        Ok(())
    }
}

/// Refuses operands that are not floats of one dtype, or not of the geometry's shapes.
fn check(op: &dyn Op, inputs: &[&Meta], shapes: [Shape; 2]) -> Result<()> {
    check_dtypes(op.name(), inputs)?;
    match inputs.iter().zip(&shapes).find(|(input, shape)| input.shape() != *shape) {
        Some((input, shape)) => Err(Error::shape(
            op.name(),
            format!("an operand has shape {}, but the convolution was made for {shape}", input.shape()),
        )),
        None => Ok(()),
    }
}

/// The slope of each of the first two operands is the other one, kept only where it is wanted.
fn other_operand(wanted: &[bool]) -> impl Iterator<Item = Keep> {
    let other = [wanted[0].then_some(Keep::Input(1)), wanted[1].then_some(Keep::Input(0))];
    other.into_iter().flatten()
}

fn workspace(geometry: &gemm::Conv2d, inputs: &[&Meta], pass: ConvPass) -> usize {
    for_floats!(inputs[0].dtype, T => geometry.workspace::<T>(pass))
}

/// All three have the same products: each output with each tap and each channel of its group.
fn cost(geometry: &gemm::Conv2d, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
    let bytes = inputs.iter().chain(outputs).map(|meta| meta.n_bytes()).sum::<usize>() as u64;
    let taps = weights_shape(geometry)[1..].iter().product::<usize>();
    Cost { flops: 2 * (output_shape(geometry).n_elems() * taps) as u64, bytes }
}

/// An operand as the kernels read pictures.
fn image<T>(operand: &Operand) -> gemm::Image<T> {
    let strides = operand.meta.layout.strides();
    gemm::Image {
        first: operand.ptr().cast_const().cast(),
        strides: [strides[0], strides[1], strides[2], strides[3]],
    }
}

impl Tensor {
    /// The convolution of this tensor `[batch, height, width, channels]` by weights `[out, kernel height, kernel width,
    /// channels / groups]`, plus a bias `[out]`, through the configuration's activation; the result is `[batch, height,
    /// width, out]`. As usual in deep learning, the kernel is not flipped.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats; memory that is full.
    #[track_caller]
    pub fn conv2d(&self, weights: &Tensor, bias: Option<&Tensor>, config: &Conv2dConfig) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let geometry = config.geometry(self.shape(), weights.shape())?;
        let (fused, after) = config.activation.split();
        let op = OpRef::new(Conv2d { geometry, activation: fused });
        let weights = weights.contiguous()?;
        let y = match bias {
            Some(bias) => call(op, &[self, &weights, &bias.contiguous()?])?,
            None => call(op, &[self, &weights])?,
        };
        after.apply(y)
    }
}

/// The registry's entries.
pub static INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "conv2d",
        doc: "Two-dimensional convolution, channels last, plus a bias, through an activation.",
        samples: samples::forward,
    },
    &OpInfo {
        name: "conv2d_backward_input",
        doc: "The gradient of a convolution with respect to its input.",
        samples: samples::backward_input,
    },
    &OpInfo {
        name: "conv2d_backward_weights",
        doc: "The gradient of a convolution with respect to its weights.",
        samples: samples::backward_weights,
    },
];
