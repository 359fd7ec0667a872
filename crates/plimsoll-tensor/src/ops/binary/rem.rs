//! `rem`: what a division to the next lower whole number leaves, with the sign of the divisor.

use super::floor_div::WholeDivision;
use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = a - ⌊a / b⌋ b with derivatives 1 and -⌊a / b⌋; backward reads both operands for the second, nothing for the first.
#[derive(Clone, Copy, Debug)]
pub struct Rem;

impl Binary for Rem {
    const NAME: &'static str = "rem";
    const DOC: &'static str = "What a floored division leaves; it has the sign of the divisor.";
    const RHS_RANGE: (f64, f64) = (0.6, 0.9);
    const TORCH: &'static str = "torch.remainder(x0, x1)";
    const CUDA: &'static str = "m::rem(x0, x1)";
    const OP: &'static dyn Op = &Elementwise::<Rem>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as WholeDivision>::rem));
    }

    fn saved(wanted: &[bool]) -> SavedRefs {
        match wanted[1] {
            true => smallvec::smallvec![SavedRef::Input(0), SavedRef::Input(1)],
            false => SavedRefs::new(),
        }
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(1) {
            let quotient = backward.input(0)?.floor_div(&backward.input(1)?)?;
            set_grad_reduced(backward, 1, quotient.into_mul(&gradient)?.into_affine(-1.0, 0.0)?)?;
        }
        match backward.wants(0) {
            true => set_grad_reduced(backward, 0, gradient),
            false => Ok(()),
        }
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        lhs - (lhs / rhs).floor() * rhs
    }
}

impl Tensor {
    /// What a floored division by another element, or by a number, leaves, as Python's `%`: it has the sign of the
    /// divisor. Of whole numbers divided by zero, all is left.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("rem")]
    #[doc(alias("remainder", "floormod", "fmod"))]
    #[track_caller]
    pub fn rem(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(
            |rhs| binary::<Rem>(self, rhs),
            |number| binary::<Rem>(self, &Tensor::full_like_scalar(self, number)?),
        )
    }
}
