//! `add`: the sum of two tensors, element by element.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::execute::Arg;
use crate::eager::op::{SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = a + b; both derivatives are one, so nothing is saved.
#[derive(Clone, Copy, Debug)]
pub struct Add;

impl Binary for Add {
    const NAME: &'static str = "add";
    const DOC: &'static str = "The sum of two tensors, element by element.";
    const TORCH: &'static str = "x0 + x1";
    const CUDA: &'static str = "x0 + x1";
    const OP: &'static dyn Op = &Elementwise::<Add>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::add));
    }

    fn saved(_wanted: &[bool]) -> SavedRefs {
        SavedRefs::new()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(0) && backward.wants(1) {
            set_grad_reduced(backward, 0, gradient.clone())?;
            return set_grad_reduced(backward, 1, gradient);
        }
        let input = if backward.wants(0) { 0 } else { 1 };
        set_grad_reduced(backward, input, gradient)
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        lhs + rhs
    }
}

impl Tensor {
    /// The sum of two tensors, element by element, or of a tensor and a number.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("add")]
    #[track_caller]
    pub fn add(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(|rhs| binary::<Add>(self, rhs), |number| self.affine(1.0, number))
    }

    /// The sum of two tensors, written over one of them if nobody else holds it.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[track_caller]
    pub fn into_add(self, rhs: Tensor) -> Result<Tensor> {
        super::binary_with::<Add>(Arg::Given(self), Arg::Given(rhs))
    }
}
