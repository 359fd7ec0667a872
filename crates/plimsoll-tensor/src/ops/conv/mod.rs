//! Convolution of pictures and sequences, channels last: the ops, their transposes, and the gradient of the weights.
//!
//! The three are one trilinear form in input, weights and output, seen from its three sides, so the gradients of each
//! are the other two and derivatives of any order need nothing else: the gradient of a convolution with respect to its
//! input is the transposed convolution, and the other way round. That is also why a transposed convolution takes its
//! weights as `[in, kernel, out / groups]`: it is the array of the convolution that it transposes. Kernels read patches
//! in place; no matrix of patches is ever stored. Each op holds its geometry, because a stride makes inputs of several
//! sizes give the same output. A sequence is a picture of one line, so one set of kernels serves both.

mod config;
mod cuda;
mod methods;
mod samples;

pub use config::{Conv1dConfig, Conv2dConfig, ConvConfig};

use plimsoll_cpu::math;
use plimsoll_cuda::{Direction, Gpu, Profile};
use plimsoll_gemm as gemm;
use plimsoll_gemm::ConvPass;

use super::activation::Activation;
use super::linear::{check_bias, check_dtypes};
use super::matmul::as_rows;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::execute::call;
use crate::eager::op::{
    Cost, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, Tensors, bytes_moved, one,
    saturating_product,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::OpInfo;
use config::Convolution;

/// Whether a convolution is transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvKind {
    /// From input to output.
    Forward,
    /// From output to input.
    Transposed,
}

/// The most places between two outputs of a transposed convolution, each of which is a convolution of its own.
const MAX_PHASES: usize = 1 << 16;

/// y = activation(x * w + b), or its transpose, from x, w and the bias if there is one. Backward reads x for w's
/// gradient, w for x's, and y for the derivative of the activation.
#[derive(Debug)]
struct Conv {
    of: Convolution,
    kind: ConvKind,
    /// One whose derivative is read from its output.
    activation: Activation,
}

/// The gradient with respect to the weights, from the input and the gradient of the output of the convolution.
#[derive(Debug)]
struct ConvBackwardWeights(Convolution);

/// A convolution or its transpose, with neither bias nor activation.
fn plain(of: Convolution, kind: ConvKind, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let op = Conv { of, kind, activation: Activation::None };
    call(OpRef::shipped(op), &[x, &weights.contiguous()?])
}

fn weights_gradient(of: Convolution, input: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    call(OpRef::shipped(ConvBackwardWeights(of)), &[input, &gradient.contiguous()?])
}

impl ConvKind {
    fn reversed(self) -> ConvKind {
        match self {
            ConvKind::Forward => ConvKind::Transposed,
            ConvKind::Transposed => ConvKind::Forward,
        }
    }
}

impl Conv {
    /// The shapes of what is read and of what is made.
    fn ends(&self) -> [Shape; 2] {
        match self.kind {
            ConvKind::Forward => [self.of.input(), self.of.output()],
            ConvKind::Transposed => [self.of.output(), self.of.input()],
        }
    }

    fn run_on<T: gemm::Element<Real: math::Real>>(&self, run: &mut Run<'_>) {
        let (x, w, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0]);
        let function = self.activation.in_kernel::<T::Real>();
        let epilogue = gemm::Epilogue {
            bias: run.inputs.get(2).map(|bias| bias.ptr().cast_const().cast()),
            activation: function.as_ref().map(|function| function as gemm::Activation<'_, T::Real>),
            accumulate: false,
        };
        let kernel = match self.kind {
            ConvKind::Forward => gemm::conv2d_forward,
            ConvKind::Transposed => gemm::conv2d_backward_input,
        };
        let (weights, y) = (w.ptr().cast_const().cast(), y.ptr().cast::<T>());
        // SAFETY: `infer` has checked the shapes, the methods make weights and bias contiguous, and the output is fresh.
        unsafe { kernel(&self.of.geometry, image(x), weights, y, &epilogue, run.workspace_bytes()) }
    }
}

impl Conv {
    /// What a GPU is asked for.
    fn asked(&self, unordered: bool) -> cuda::Asked {
        let direction = match self.kind {
            ConvKind::Forward => Direction::Forward,
            ConvKind::Transposed => Direction::ToInput,
        };
        cuda::Asked { op: self.name(), direction, activation: self.activation, unordered }
    }
}

impl ConvBackwardWeights {
    /// What a GPU is asked for.
    fn asked(&self, unordered: bool) -> cuda::Asked {
        let (direction, activation) = (Direction::ToFilter, Activation::None);
        cuda::Asked { op: self.name(), direction, activation, unordered }
    }
}

impl Op for Conv {
    fn name(&self) -> &'static str {
        match (self.kind, self.of.n_axes) {
            (ConvKind::Forward, 1) => "conv1d",
            (ConvKind::Forward, _) => "conv2d",
            (ConvKind::Transposed, 1) => "conv_transpose1d",
            (ConvKind::Transposed, _) => "conv_transpose2d",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [x, y] = self.ends();
        check(self, inputs, [x, self.of.weights()])?;
        check_bias(self.name(), inputs.get(2).copied(), y[y.rank() - 1])?;
        let (stride, n_phases) = (self.of.geometry.stride, self.of.geometry.n_phases());
        if self.kind == ConvKind::Transposed && n_phases > MAX_PHASES {
            return Err(Error::argument(
                self.name(),
                format!(
                    "stride {stride:?} makes {n_phases} convolutions of one; at most {MAX_PHASES} are possible"
                ),
            ));
        }
        one(y, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.run_on::<T>(run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::convolve(&self.of, self.asked(false), run, gpu)
    }

    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::convolve(&self.of, self.asked(true), run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::workspace(&self.of, inputs, profile)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let pass = match self.kind {
            ConvKind::Forward => ConvPass::Forward,
            ConvKind::Transposed => ConvPass::BackwardInput,
        };
        workspace(&self.of, inputs, pass)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let cost = cost(&self.of, inputs, outputs);
        match self.kind {
            ConvKind::Forward => cost,
            ConvKind::Transposed => Cost { flops: cost.flops.max(transposed_flops(&self.of)), ..cost },
        }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let output = (self.activation != Activation::None).then_some(SavedRef::Output(0));
        other_operand(wanted).chain(output).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let gradient = self.activation.back(gradient, || backward.take_output(0))?;
        if backward.wants(2) {
            backward.set_grad(2, as_rows(&gradient)?.sum(0)?)?;
        }
        if backward.wants(1) {
            let x = backward.take_input(0)?;
            let [input, output] = match self.kind {
                ConvKind::Forward => [&x, &gradient],
                ConvKind::Transposed => [&gradient, &x],
            };
            backward.set_grad(1, weights_gradient(self.of, input, output)?)?;
        }
        if backward.wants(0) {
            backward.set_grad(0, plain(self.of, self.kind.reversed(), &gradient, &backward.input(1)?)?)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        if inputs.len() == 2 && self.activation == Activation::None {
            return None;
        }
        let result = || {
            let mut y = plain(self.of, self.kind, inputs[0], inputs[1])?;
            if let Some(&bias) = inputs.get(2) {
                y = y.add(bias)?;
            }
            Ok(smallvec::smallvec![self.activation.apply(y)?])
        };
        Some(result())
    }
}

impl Op for ConvBackwardWeights {
    fn name(&self) -> &'static str {
        if self.0.n_axes == 1 { "conv1d_backward_weights" } else { "conv2d_backward_weights" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check(self, inputs, [self.0.input(), self.0.output()])?;
        one(self.0.weights(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (input, gradient, result) = (&run.inputs[0], &run.inputs[1], run.outputs[0].ptr());
        for_floats!(input.dtype(), T => {
            let (gradient, result) = (gradient.ptr().cast_const().cast(), result.cast::<T>());
            // SAFETY: `infer` has checked the shapes, the gradient is contiguous, and the output is fresh.
            unsafe {
                let workspace = run.workspace_bytes();
                gemm::conv2d_backward_weights(&self.0.geometry, image(input), gradient, result, false, workspace);
            }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::convolve(&self.0, self.asked(false), run, gpu)
    }

    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::convolve(&self.0, self.asked(true), run, gpu)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        workspace(&self.0, inputs, ConvPass::BackwardWeights)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::workspace(&self.0, inputs, profile)
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        cost(&self.0, inputs, outputs)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        other_operand(wanted).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(0) {
            backward.set_grad(0, plain(self.0, ConvKind::Transposed, &backward.input(1)?, &gradient)?)?;
        }
        if backward.wants(1) {
            backward.set_grad(1, plain(self.0, ConvKind::Forward, &backward.input(0)?, &gradient)?)?;
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

/// The derivative by each of the first two operands is the other one, saved only where it is wanted.
fn other_operand(wanted: &[bool]) -> impl Iterator<Item = SavedRef> {
    let other = [wanted[0].then_some(SavedRef::Input(1)), wanted[1].then_some(SavedRef::Input(0))];
    other.into_iter().flatten()
}

fn workspace(of: &Convolution, inputs: &[&Meta], pass: ConvPass) -> usize {
    for_floats!(inputs[0].dtype, T => of.geometry.workspace::<T>(pass))
}

/// All three have the same products: each output with each tap and each channel of its group.
fn cost(of: &Convolution, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
    let bytes = bytes_moved(inputs, outputs);
    let taps = of.weights()[1..].iter().product::<usize>();
    Cost { flops: saturating_product([2, of.output().n_elems(), taps]), bytes }
}

/// The operations of a transposed convolution: at every place of what it gives, all taps that its stride leaves there. Where
/// the kernel is larger than what it reads, most of them fall on the padding.
fn transposed_flops(of: &Convolution) -> u64 {
    let (places, weights) = (of.input(), of.weights());
    let n_places = places[..places.rank() - 1].iter().product::<usize>();
    let [rows, columns] = of.geometry.stride.map(|stride| stride.max(1) as u64);
    saturating_product([2, n_places, weights.n_elems()]) / rows.saturating_mul(columns)
}

/// An operand as the kernels read pictures; a sequence is a picture of one line.
fn image<T>(operand: &Operand) -> gemm::Image<T> {
    let strides = match *operand.meta.layout.strides() {
        [batch, place, channel] => [batch, 0, place, channel],
        [batch, line, place, channel] => [batch, line, place, channel],
        _ => unreachable!("`infer` checks the shape"),
    };
    gemm::Image { first: operand.ptr().cast_const().cast(), strides }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "conv1d",
        doc: "Convolution of sequences, channels last, plus a bias, through an activation.",
        samples: samples::forward::<1>,
    },
    &OpInfo {
        name: "conv1d_backward_weights",
        doc: "The gradient of a convolution of sequences with respect to its weights.",
        samples: samples::backward_weights::<1>,
    },
    &OpInfo {
        name: "conv2d",
        doc: "Convolution of pictures, channels last, plus a bias, through an activation.",
        samples: samples::forward::<2>,
    },
    &OpInfo {
        name: "conv2d_backward_weights",
        doc: "The gradient of a convolution of pictures with respect to its weights.",
        samples: samples::backward_weights::<2>,
    },
    &OpInfo {
        name: "conv_transpose1d",
        doc: "The transpose of `conv1d`, which is also its gradient with respect to the input.",
        samples: samples::transposed::<1>,
    },
    &OpInfo {
        name: "conv_transpose2d",
        doc: "The transpose of `conv2d`, which is also its gradient with respect to the input.",
        samples: samples::transposed::<2>,
    },
];
