//! `sub`: the difference of two tensors, element by element.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::execute::Arg;
use crate::eager::op::{SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = a - b; the derivatives are one and minus one, so nothing is saved.
#[derive(Clone, Copy, Debug)]
pub struct Sub;

impl Binary for Sub {
    const NAME: &'static str = "sub";
    const DOC: &'static str = "The difference of two tensors, element by element.";
    const TORCH: &'static str = "x0 - x1";
    const CUDA: &'static str = "x0 - x1";
    const OP: &'static dyn Op = &Elementwise::<Sub>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::sub));
    }

    fn saved(_wanted: &[bool]) -> SavedRefs {
        SavedRefs::new()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(0) {
            set_grad_reduced(backward, 0, gradient.clone())?;
        }
        if backward.wants(1) {
            let shape = *backward.input_shape(1);
            let reduced = gradient.sum_to(&shape)?;
            backward.set_grad(1, reduced.into_affine(-1.0, 0.0)?)?;
        }
        Ok(())
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        lhs - rhs
    }
}

impl Tensor {
    /// The difference of two tensors, element by element, or of a tensor and a number.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("sub")]
    #[doc(alias = "subtract")]
    #[track_caller]
    pub fn sub(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(|rhs| binary::<Sub>(self, rhs), |number| self.affine(1.0, -number))
    }

    /// The difference of two tensors, written over this one if nobody else holds it.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[track_caller]
    pub fn into_sub(self, rhs: &Tensor) -> Result<Tensor> {
        super::binary_with::<Sub>(Arg::Given(self), Arg::Lent(rhs))
    }
}
