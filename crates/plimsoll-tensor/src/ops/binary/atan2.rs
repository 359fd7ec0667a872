//! `atan2`: the angle of a point, from its two coordinates.

use plimsoll_cpu::math::Real;

use super::{Binary, Elementwise, Rhs, binary, set_grad_reduced, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRef, SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_floats;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(y, x) = the angle of the point (x, y), with derivatives x / (x² + y²) and -y / (x² + y²); backward reads both operands.
#[derive(Clone, Copy, Debug)]
pub struct Atan2;

impl Binary for Atan2 {
    const NAME: &'static str = "atan2";
    const DOC: &'static str = "The angle of the point whose ordinates and abscissas are given.";
    const RHS_RANGE: (f64, f64) = (0.3, 2.0);
    const FLOATS_ONLY: bool = true;
    const TORCH: &'static str = "torch.atan2(x0, x1)";
    const CUDA: &'static str = "m::atan2(x0, x1)";
    const OP: &'static dyn Op = &Elementwise::<Atan2>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_floats!(lhs.dtype(), C => zip(lhs, rhs, y, <C as Real>::atan2));
    }

    fn saved(_wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(0), SavedRef::Input(1)]
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let (y, x) = (backward.input(0)?, backward.input(1)?);
        let per_square = backward.gradient()?.into_div(&y.square()?.into_add(x.square()?)?)?;
        if backward.wants(0) {
            set_grad_reduced(backward, 0, per_square.mul(&x)?)?;
        }
        if backward.wants(1) {
            set_grad_reduced(backward, 1, per_square.into_mul(&y)?.into_affine(-1.0, 0.0)?)?;
        }
        Ok(())
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        (lhs / rhs).atan() + if rhs >= 0.0 { 0.0 } else { std::f64::consts::PI.copysign(lhs) }
    }
}

impl Tensor {
    /// The angle of the point whose ordinates are this tensor and whose abscissas are `x`, from -π to π.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes, tensors that are not of floats; memory that is full.
    #[doc = example!("atan2")]
    #[doc(alias = "arctan2")]
    #[track_caller]
    pub fn atan2(&self, x: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        x.apply(
            |x| binary::<Atan2>(self, x),
            |number| binary::<Atan2>(self, &Tensor::full_like_scalar(self, number)?),
        )
    }
}
