//! Activations that may follow a product in the same call.
//!
//! One whose derivative is read from its output (relu, sigmoid, tanh) is applied inside the kernel, to sums that are not
//! rounded yet, and costs no memory: the output is what the next layer saves anyway. One whose derivative needs its input
//! (gelu, silu) runs as an op of its own on the product's result. It keeps the pre-activation and nothing else, and
//! later readers of its output get it as a derived value. A step goes eight times over as many bytes as the result has: the product
//! writes it, gelu reads it and writes, backward does that again and multiplies a gradient by the derivative (two readings, one
//! writing). A kernel of the product that wrote both would save one of the eight, and its record would have to hide a second op. The
//! library of a GPU has such a kernel for gelu, but it applies the function to sums that are not rounded yet: backward, which rebuilds
//! the output from the rounded sums that are kept, would read other bits than forward did. Keeping the output would save two of the
//! eight and take its bytes from forward to backward; a pass that made the derivative beside it would save none, because it is as large
//! as what it is made from.

use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;

use super::unary::gelu::Gelu;
use super::unary::gelu_tanh::GeluTanh;
use super::unary::relu::Relu;
use super::unary::sigmoid::Sigmoid;
use super::unary::silu::Silu;
use super::unary::tanh::Tanh;
use super::unary::{Unary, into_unary, times_local_grad};
use crate::base::error::Result;
use crate::eager::tensor::Tensor;

/// What is applied to the result of a linear map or a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// x times the normal distribution's share below it.
    Gelu,
    /// The usual approximation of [`Activation::Gelu`] by a hyperbolic tangent.
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
}

impl Activation {
    /// The part that the product's kernel applies, and the part that runs as an op of its own afterwards.
    pub(super) fn split(self) -> (Activation, Activation) {
        match self {
            Activation::None | Activation::Relu | Activation::Sigmoid | Activation::Tanh => {
                (self, Activation::None)
            }
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => (Activation::None, self),
        }
    }

    /// The function over a stretch of sums, for a kernel.
    pub(super) fn in_kernel<T: Real>(self) -> Option<fn(&mut [T])> {
        match self {
            Activation::Relu => Some(|row| in_place(Relu, row)),
            Activation::Sigmoid => Some(|row| in_place(Sigmoid, row)),
            Activation::Tanh => Some(|row| in_place(Tanh, row)),
            _ => None,
        }
    }

    /// Turns the gradient of a stretch of the output into that of the sums, in a kernel.
    pub(super) fn back_in_kernel<T: Real>(self, gradient: &mut [T], output: &[T]) {
        match self {
            Activation::Relu => back_in_place(Relu, gradient, output),
            Activation::Sigmoid => back_in_place(Sigmoid, gradient, output),
            Activation::Tanh => back_in_place(Tanh, gradient, output),
            _ => {}
        }
    }

    /// The gradient of the sums from that of the output; written over it if nobody else holds it.
    pub(super) fn back(self, gradient: Tensor, output: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Activation::Relu => times_local_grad(Relu, gradient, output()?),
            Activation::Sigmoid => times_local_grad(Sigmoid, gradient, output()?),
            Activation::Tanh => times_local_grad(Tanh, gradient, output()?),
            _ => Ok(gradient),
        }
    }

    /// The gradient of the sums from that of the output, in plain ops.
    pub(super) fn plain_back(self, gradient: &Tensor, output: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Relu => gradient.mul(&Relu.backward_composite(output)?),
            Activation::Sigmoid => gradient.mul(&Sigmoid.backward_composite(output)?),
            Activation::Tanh => gradient.mul(&Tanh.backward_composite(output)?),
            _ => Ok(gradient.clone()),
        }
    }

    /// The function as an op of its own; written over `x` if nobody else holds it.
    pub fn apply(self, x: Tensor) -> Result<Tensor> {
        match self {
            Activation::None => Ok(x),
            Activation::Relu => into_unary(Relu, x),
            Activation::Sigmoid => into_unary(Sigmoid, x),
            Activation::Tanh => into_unary(Tanh, x),
            Activation::Gelu => into_unary(Gelu, x),
            Activation::GeluTanh => into_unary(GeluTanh, x),
            Activation::Silu => into_unary(Silu, x),
        }
    }

    /// The function by the standard library, for the tests.
    pub(super) fn reference(self, x: f64) -> f64 {
        match self {
            Activation::None => x,
            Activation::Relu => Relu.reference(x),
            Activation::Sigmoid => Sigmoid.reference(x),
            Activation::Tanh => Tanh.reference(x),
            Activation::Gelu => Gelu.reference(x),
            Activation::GeluTanh => GeluTanh.reference(x),
            Activation::Silu => Silu.reference(x),
        }
    }
}

/// A function of the unary family over a stretch of memory.
#[inline(never)]
fn in_place<U: Unary, T: Real>(op: U, row: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for x in row.iter_mut() {
                *x = op.value(*x);
            }
        },
    );
}

/// A gradient times the derivative of a function of the unary family that reads its output.
#[inline(never)]
fn back_in_place<U: Unary, T: Real>(op: U, gradient: &mut [T], output: &[T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (gradient, &output) in gradient.iter_mut().zip(output) {
                *gradient = *gradient * op.backward_kernel(output);
            }
        },
    );
}
