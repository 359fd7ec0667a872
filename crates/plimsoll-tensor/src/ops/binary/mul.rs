//! `mul`: the product of two tensors, element by element.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::execute::Arg;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = a b; the derivative by each operand is the other one, saved only where it is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Mul;

impl Binary for Mul {
    const NAME: &'static str = "mul";
    const DOC: &'static str = "The product of two tensors, element by element.";
    const TORCH: &'static str = "x0 * x1";
    const CUDA: &'static str = "x0 * x1";
    const OP: &'static dyn Op = &Elementwise::<Mul>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::mul));
    }

    fn saved(wanted: &[bool]) -> SavedRefs {
        let other = |input: usize| wanted[input].then_some(SavedRef::Input(1 - input));
        [other(0), other(1)].into_iter().flatten().collect()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(1) {
            let product = match backward.wants(0) {
                true => gradient.mul(&backward.input(0)?)?,
                false => return set_grad_reduced(backward, 1, gradient.into_mul(&backward.input(0)?)?),
            };
            set_grad_reduced(backward, 1, product)?;
        }
        let rhs = backward.input(1)?;
        set_grad_reduced(backward, 0, gradient.into_mul(&rhs)?)
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        lhs * rhs
    }
}

impl Tensor {
    /// The product of two tensors, element by element, or of a tensor and a number.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("mul")]
    #[doc(alias = "multiply")]
    #[track_caller]
    pub fn mul(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(|rhs| binary::<Mul>(self, rhs), |number| self.affine(number, 0.0))
    }

    /// The product of two tensors, written over this one if nobody else holds it.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[track_caller]
    pub fn into_mul(self, rhs: &Tensor) -> Result<Tensor> {
        super::binary_with::<Mul>(Arg::Given(self), Arg::Lent(rhs))
    }
}
