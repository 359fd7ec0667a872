//! `div`: the quotient of two tensors, element by element.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::execute::Arg;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = a / b with derivatives 1 / b and -f / b; backward reads b and, for the second, f.
#[derive(Clone, Copy, Debug)]
pub struct Div;

impl Binary for Div {
    const NAME: &'static str = "div";
    const DOC: &'static str = "The quotient of two tensors, element by element.";
    const RHS_RANGE: (f64, f64) = (0.5, 2.0);
    const TORCH: &'static str = "x0 / x1";
    const CUDA: &'static str = "m::div(x0, x1)";
    const OP: &'static dyn Op = &Elementwise::<Div>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Number>::div));
    }

    fn saved(wanted: &[bool]) -> SavedRefs {
        let quotient = wanted[1].then_some(SavedRef::Output(0));
        [Some(SavedRef::Input(1)), quotient].into_iter().flatten().collect()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let per_rhs = backward.gradient()?.into_div(&backward.input(1)?)?;
        if backward.wants(1) {
            let product = per_rhs.mul(&backward.output(0)?)?;
            let shape = *backward.input_shape(1);
            backward.set_grad(1, product.sum_to(&shape)?.into_affine(-1.0, 0.0)?)?;
        }
        match backward.wants(0) {
            true => set_grad_reduced(backward, 0, per_rhs),
            false => Ok(()),
        }
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        lhs / rhs
    }
}

impl Tensor {
    /// The quotient of two tensors, element by element, or of a tensor and a number.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("div")]
    #[doc(alias("divide", "true_divide"))]
    #[track_caller]
    pub fn div(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(|rhs| binary::<Div>(self, rhs), |number| self.div_by(number))
    }

    /// The quotient of a tensor and a number: a product where that is exact, a true division for integers.
    fn div_by(&self, number: f64) -> Result<Tensor> {
        binary::<Div>(self, &Tensor::full_like_scalar(self, number)?)
    }

    /// The quotient of two tensors, written over this one if nobody else holds it.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[track_caller]
    pub fn into_div(self, rhs: &Tensor) -> Result<Tensor> {
        super::binary_with::<Div>(Arg::Given(self), Arg::Lent(rhs))
    }
}
