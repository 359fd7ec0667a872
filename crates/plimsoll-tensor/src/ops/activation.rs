//! Activations that may follow a product in the same call.
//!
//! One whose slope is read from its output (relu, sigmoid, tanh) is applied inside the kernel, to sums that are not
//! rounded yet, and costs no memory: the output is what the next layer keeps anyway. One whose slope needs its input
//! (gelu, silu) runs as an op of its own on the product's result. It keeps the pre-activation and nothing else, and
//! later readers of its output get it as a derived value; a kernel that wrote both would save one reading of memory,
//! and its record would have to hide a second op.

use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;

use super::unary::relu::Relu;
use super::unary::{Unary, times_slope};
use crate::error::Result;
use crate::tensor::Tensor;

/// What is applied to the result of a linear map or a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    /// The part that the product's kernel applies, and the part that runs as an op of its own afterwards.
    pub(super) fn split(self) -> (Activation, Activation) {
        match self {
            Activation::None | Activation::Relu => (self, Activation::None),
        }
    }

    /// The function over a stretch of sums, for a kernel.
    pub(super) fn in_kernel<T: Real>(self) -> Option<fn(&mut [T])> {
        match self {
            Activation::Relu => Some(|row| in_place(Relu, row)),
            _ => None,
        }
    }

    /// The gradient of the sums from that of the output; written over it if nobody else holds it.
    pub(super) fn back(self, gradient: Tensor, output: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Activation::Relu => times_slope(Relu, gradient, output()?),
            _ => Ok(gradient),
        }
    }

    /// The function as an op of its own; written over `x` if nobody else holds it.
    pub(super) fn apply(self, x: Tensor) -> Result<Tensor> {
        match self {
            Activation::None => Ok(x),
            Activation::Relu => x.relu(),
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
