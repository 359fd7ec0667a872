//! `pow`: each element to the power of another.

use plimsoll_cpu::math::Real;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_floats;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = aᵇ with derivatives b aᵇ⁻¹ and f ln a. Both are zero where they are zero in the limit: the first for b = 0, the
/// second for a = 0 unless f is infinite there. Backward reads both operands for the first, a and f for the second.
#[derive(Clone, Copy, Debug)]
pub struct Pow;

impl Binary for Pow {
    const NAME: &'static str = "pow";
    const DOC: &'static str = "Each element to the power of another.";
    const LHS_RANGE: (f64, f64) = (0.3, 2.0);
    const FLOATS_ONLY: bool = true;
    const TORCH: &'static str = "torch.pow(x0, x1)";
    const CUDA: &'static str = "m::pow(x0, x1)";
    const OP: &'static dyn Op = &Elementwise::<Pow>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_floats!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Real>::pow));
    }

    fn saved(wanted: &[bool]) -> SavedRefs {
        let exponent = wanted[0].then_some(SavedRef::Input(1));
        let power = wanted[1].then_some(SavedRef::Output(0));
        [Some(SavedRef::Input(0)), exponent, power].into_iter().flatten().collect()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let base = backward.input(0)?;
        if backward.wants(0) {
            let exponent = backward.input(1)?;
            let local_grad = base.pow(&exponent.affine(1.0, -1.0)?)?.into_mul(&exponent)?;
            let local_grad = exponent.eq(0.0)?.where_(&Tensor::full_like_scalar(&local_grad, 0.0)?, &local_grad)?;
            set_grad_reduced(backward, 0, local_grad.into_mul(&gradient)?)?;
        }
        if backward.wants(1) {
            let power = backward.output(0)?;
            let local_grad = power.mul(&base.ln()?)?;
            let is_flat = base.eq(0.0)?.logical_and(&power.is_finite()?)?;
            let local_grad = is_flat.where_(&Tensor::full_like_scalar(&local_grad, 0.0)?, &local_grad)?;
            set_grad_reduced(backward, 1, local_grad.into_mul(&gradient)?)?;
        }
        Ok(())
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        (rhs * lhs.ln()).exp()
    }
}

impl Tensor {
    /// Each element to the power of another, or of a number.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes, tensors that are not of floats; memory that is full.
    #[doc = example!("pow")]
    #[doc(alias = "power")]
    #[track_caller]
    pub fn pow(&self, exponent: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        exponent.apply(|exponent| binary::<Pow>(self, exponent), |number| self.powf(number))
    }
}
