//! `maximum`: the greater of two elements.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_shares, share_of_lhs, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = max(a, b), NaN where either is. The gradient goes to the greater one, and half to each where they are equal;
/// a byte per element says which, instead of both operands.
#[derive(Clone, Copy, Debug)]
pub struct Maximum;

impl Binary for Maximum {
    const NAME: &'static str = "maximum";
    const DOC: &'static str = "The greater of two elements.";
    const TORCH: &'static str = "torch.maximum(x0, x1)";
    const MASKED: bool = true;
    const CUDA: &'static str = "m::max(x0, x1)";
    const CUDA_MASK: &'static str = "2 * (x0 > x1) + (x0 == x1)";
    const OP: &'static dyn Op = &Elementwise::<Maximum>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::max));
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
        if lhs > rhs { lhs } else { rhs }
    }
}

#[inline(always)]
fn share<T: Number>(lhs: T, rhs: T) -> u8 {
    share_of_lhs(lhs > rhs, lhs == rhs)
}

impl Tensor {
    /// The greater of two elements, or of each element and a number; NaN where either is. Where both are equal, each gets half
    /// of the gradient. Over the axes of one tensor it is [`max`](Tensor::max).
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("maximum")]
    #[doc(alias("max", "fmax"))]
    #[track_caller]
    pub fn maximum(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(
            |rhs| binary::<Maximum>(self, rhs),
            |number| binary::<Maximum>(self, &Tensor::full_like_scalar(self, number)?),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eager::op::Form;
    use crate::autograd::GradientTape;

    #[test]
    fn ties_share_the_gradient_and_a_byte_per_element_is_kept() {
        let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0]).unwrap();
        let b = Tensor::from_vec(vec![2.0f32, 2.0, 2.0]).unwrap();
        let tape = GradientTape::new();
        tape.watch(&a).unwrap();
        tape.watch(&b).unwrap();
        let y = tape.record(|| a.maximum(&b)).unwrap();
        let saved: Vec<(Form, usize)> = tape.saved().values().iter().map(|value| (value.form, value.bytes)).collect();
        assert_eq!(saved, [(Form::Mask, 3)]);
        let [of_a, of_b] = tape.gradient(&y, [&a, &b]).unwrap();
        assert_eq!(of_a.to_vec::<f32>().unwrap(), [0.0, 0.5, 1.0]);
        assert_eq!(of_b.to_vec::<f32>().unwrap(), [1.0, 0.5, 0.0]);
    }
}
