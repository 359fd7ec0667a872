//! `floor_div`: the quotient, rounded to the next lower whole number.

use plimsoll_cpu::element::Number;

use super::{Binary, Elementwise, Rhs, binary, zip};
use crate::eager::context;
use crate::base::error::Result;
use crate::eager::op::{SavedRefs, Op, Operand};
use crate::ops::kernel::for_computed_numbers;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// f(a, b) = ⌊a / b⌋, flat between its jumps: the gradients are zero, and nothing is kept.
#[derive(Clone, Copy, Debug)]
pub struct FloorDiv;

impl Binary for FloorDiv {
    const NAME: &'static str = "floor_div";
    const DOC: &'static str = "The quotient, rounded to the next lower whole number.";
    const RHS_RANGE: (f64, f64) = (0.6, 0.9);
    const TORCH: &'static str = "torch.div(x0, x1, rounding_mode='floor')";
    const CUDA: &'static str = "m::floor_div(x0, x1)";
    const OP: &'static dyn Op = &Elementwise::<FloorDiv>::NEW;

    fn run(lhs: &Operand, rhs: &Operand, y: &Operand) {
        for_computed_numbers!(lhs.dtype(), C => zip(lhs, rhs, y, <C as WholeDivision>::floor_div));
    }

    fn saved(_wanted: &[bool]) -> SavedRefs {
        SavedRefs::new()
    }

    fn backward(backward: &mut Backward<'_>) -> Result<()> {
        let zero = Tensor::full_like_scalar(&backward.gradient()?, 0.0)?;
        for input in (0..2).filter(|&input| backward.wants(input)).collect::<Vec<_>>() {
            super::set_grad_reduced(backward, input, zero.clone())?;
        }
        Ok(())
    }

    fn reference(lhs: f64, rhs: f64) -> f64 {
        (lhs / rhs).floor()
    }
}

/// Division to whole numbers, rounded down, for floats and integers.
pub(super) trait WholeDivision: Number {
    /// The quotient, rounded down; of integers by zero, zero.
    fn floor_div(self, rhs: Self) -> Self;
    /// `self - floor_div(self, rhs) * rhs`, computed without that product's rounding.
    fn rem(self, rhs: Self) -> Self;
}

macro_rules! divide_floats {
    ($($type:ident),*) => {$(
        impl WholeDivision for $type {
            #[inline(always)]
            fn floor_div(self, rhs: $type) -> $type {
                if rhs == 0.0 {
                    return self / rhs;
                }
                // The part that divides evenly, so that the quotient is whole but for one rounding.
                let whole = (self - WholeDivision::rem(self, rhs)) / rhs;
                whole.round_ties_even()
            }

            #[inline(always)]
            fn rem(self, rhs: $type) -> $type {
                let rest = self % rhs;
                if rest != 0.0 && (rest < 0.0) != (rhs < 0.0) { rest + rhs } else { rest }
            }
        }
    )*};
}

macro_rules! divide_integers {
    ($($type:ident),*) => {$(
        impl WholeDivision for $type {
            #[inline(always)]
            #[allow(unused_comparisons, reason = "an unsigned type has no negative values")]
            fn floor_div(self, rhs: $type) -> $type {
                let quotient = Number::div(self, rhs);
                let rest = self.wrapping_sub(quotient.wrapping_mul(rhs));
                let is_below = rhs != 0 && rest != 0 && (rest < 0) != (rhs < 0);
                quotient.wrapping_sub($type::from(is_below))
            }

            #[inline(always)]
            fn rem(self, rhs: $type) -> $type {
                self.wrapping_sub(WholeDivision::floor_div(self, rhs).wrapping_mul(rhs))
            }
        }
    )*};
}

divide_floats!(f32, f64);
divide_integers!(i64, i32, u8);

impl Tensor {
    /// The quotient with another element, or with a number, rounded to the next lower whole number, as Python's `//`.
    /// Whole numbers divided by zero give zero.
    ///
    /// # Errors
    /// Shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("floor_div")]
    #[doc(alias("floor_divide", "floordiv"))]
    #[track_caller]
    pub fn floor_div(&self, rhs: impl Rhs) -> Result<Tensor> {
        let _line = context::at_callers_line();
        rhs.apply(
            |rhs| binary::<FloorDiv>(self, rhs),
            |number| binary::<FloorDiv>(self, &Tensor::full_like_scalar(self, number)?),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::WholeDivision;

    #[test]
    fn quotients_round_down_and_rests_have_the_divisors_sign() {
        for (lhs, rhs, quotient, rest) in
            [(7, 3, 2, 1), (-7, 3, -3, 2), (7, -3, -3, -2), (-7, -3, 2, -1), (6, -3, -2, 0)]
        {
            assert_eq!((i64::floor_div(lhs, rhs), WholeDivision::rem(lhs, rhs)), (quotient, rest));
            let (lhs, rhs) = (lhs as f32, rhs as f32);
            let expected = (quotient as f32, rest as f32);
            assert_eq!((f32::floor_div(lhs, rhs), WholeDivision::rem(lhs, rhs)), expected);
        }
    }

    #[test]
    fn division_by_zero_is_no_panic() {
        assert_eq!((WholeDivision::floor_div(5i32, 0), WholeDivision::rem(5i32, 0)), (0, 5));
        assert_eq!(WholeDivision::floor_div(5.0f64, 0.0), f64::INFINITY);
        assert!(WholeDivision::rem(5.0f32, 0.0).is_nan());
        assert_eq!(WholeDivision::floor_div(i64::MIN, -1), i64::MIN);
    }

    #[test]
    fn a_float_quotient_just_below_a_whole_number_stays_below() {
        // 1.0 / 0.1 rounds to 10, but 0.1 is a little more than a tenth.
        assert_eq!(WholeDivision::floor_div(1.0f64, 0.1), 9.0);
    }
}
