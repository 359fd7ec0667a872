//! `minimum`: the lesser of two elements.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_shares, share_of_lhs, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = min(a, b), NaN where either is. The gradient goes to the lesser one, and half to each where they are equal;
/// a byte per element says which, instead of both operands.
#[derive(Clone, Copy, Debug)]
pub struct Minimum;

impl Binary for Minimum {
    const NAME: &'static str = "minimum";
    const DOC: &'static str = "The lesser of two elements.";
    const TORCH: &'static str = "torch.minimum(x0, x1)";
    const MASKED: bool = true;
    const CUDA: &'static str = "m::min(x0, x1)";
    const CUDA_MASK: &'static str = "2 * (x0 < x1) + (x0 == x1)";
    const OP: &'static dyn Op = &Elementwise::<Minimum>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::min));
    }

    fn saved(_wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Aux(0)]
    }

    fn mask(lhs: &Operand, rhs: &Operand, mask: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, mask, share::<C>));
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        set_grad_shares(backward)
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        if lhs < rhs { lhs } else { rhs }
    }
}

#[inline(always)]
fn share<T: Number>(lhs: T, rhs: T) -> u8 {
    share_of_lhs(lhs < rhs, lhs == rhs)
}

impl Tensor {
    /// The lesser of two elements, or of each element and a number; NaN where either is. Where both are equal, each gets half
    /// of the gradient. Over the axes of one tensor it is [`min`](Tensor::min).
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("minimum")]
    #[doc(alias("min", "fmin"))]
    #[track_caller]
    pub fn minimum(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(
            |rhs| binary::<Minimum>(self, rhs),
            |number| binary::<Minimum>(self, &Tensor::full_like_scalar(self, number)?),
        )
    }
}
