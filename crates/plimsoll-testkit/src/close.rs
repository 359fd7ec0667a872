//! How close two numbers must be, and the words for two arrays that are not.
//!
//! A tolerance belongs to a dtype, and to nothing else: an op that needs a wider one computes badly.

use plimsoll_tensor::{DType, Tensor};

use crate::outcome::Outcome;

/// The distance that is allowed between a value and what was expected of it: `absolute + relative * |expected|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The part that does not depend on the value; it matters where terms cancel.
    pub absolute: f64,
    /// The part that grows with the value.
    pub relative: f64,
}

impl Tolerance {
    /// No distance at all.
    pub const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// The same number for both parts: values of samples are near one.
    pub const fn new(distance: f64) -> Tolerance {
        Tolerance { absolute: distance, relative: distance }
    }

    /// The table.
    pub const fn of(dtype: DType) -> Tolerance {
        match dtype {
            // 52 bits. Some functions are good to a few units in the last place, and samples sum up to a hundred terms.
            DType::F64 => Tolerance::new(1e-12),
            // 23 bits, 6e-8 per rounding; a hundred roundings of random sign, and a margin of ten.
            DType::F32 => Tolerance::new(5e-6),
            // 10 bits, 5e-4 for the rounding of the result; what is between is computed in f32 inside an op, but a
            // function of several ops rounds at each.
            DType::F16 => Tolerance::new(2e-3),
            // 7 bits, 4e-3 for the rounding of the result; as for f16.
            DType::BF16 => Tolerance::new(1.6e-2),
            // Whole numbers and truth values are right or wrong.
            DType::I64 | DType::I32 | DType::U8 | DType::Bool => Tolerance::EXACT,
        }
    }

    /// Whether a value is near enough. Infinities of one sign are equal, and so are two values that are not numbers.
    pub fn allows(self, actual: f64, expected: f64) -> bool {
        actual == expected
            || (actual.is_nan() && expected.is_nan())
            || (expected.is_finite()
                && (actual - expected).abs() <= self.absolute + self.relative * expected.abs())
    }
}

/// Compares values in row-major order; the failure names the first that differs.
///
/// # Errors
/// Another shape, or a value that is too far away.
pub fn compare(
    shape: &[usize],
    actual: &[f64],
    expected_shape: &[usize],
    expected: &[f64],
    tolerance: Tolerance,
) -> Outcome {
    if shape != expected_shape {
        return Err(format!("the shape is {shape:?}, but {expected_shape:?} was expected").into());
    }
    let wrong: Vec<usize> =
        (0..expected.len()).filter(|&at| !tolerance.allows(actual[at], expected[at])).collect();
    let Some(&first) = wrong.first() else { return Ok(()) };
    Err(format!(
        "at {:?} it is {:e}, but {:e} was expected ({} of {} values differ by more than {:e})",
        index_of(first, shape),
        actual[first],
        expected[first],
        wrong.len(),
        expected.len(),
        tolerance.absolute
    )
    .into())
}

/// The index of an element from its place in row-major order.
pub(crate) fn index_of(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}

/// The values of a tensor as bits; equal bits are equal values of one dtype, whatever they are.
///
/// # Errors
/// A ghost tensor, which has no values.
pub fn bits(tensor: &Tensor) -> Outcome<Vec<u64>> {
    Ok(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect())
}

/// Compares two tensors bit by bit; the failure names the first element that differs.
///
/// # Errors
/// Another shape or dtype, or a bit that differs.
pub fn same_bits(actual: &Tensor, expected: &Tensor) -> Outcome {
    if actual.dtype() != expected.dtype() {
        return Err(format!("the dtype is {}, but {} was expected", actual.dtype(), expected.dtype()).into());
    }
    if actual.shape() == expected.shape() && bits(actual)? == bits(expected)? {
        return Ok(());
    }
    let (actual_values, expected_values) = (actual.to_f64_vec()?, expected.to_f64_vec()?);
    compare(actual.shape(), &actual_values, expected.shape(), &expected_values, Tolerance::EXACT)?;
    Err("the values are equal but their bits are not (a zero changed its sign)".into())
}

/// Asserts that a tensor has these values, in row-major order, to the tolerance of its dtype.
///
/// # Panics
/// It has others; the text names the first.
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &[f64]) {
    let values = actual.to_f64_vec().expect("a tensor with values");
    assert_eq!(values.len(), expected.len(), "the shape is {}", actual.shape());
    let tolerance = Tolerance::of(actual.dtype());
    if let Err(failure) = compare(actual.shape(), &values, actual.shape(), expected, tolerance) {
        panic!("{}", failure.text());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_absolute_near_zero_and_relative_far_from_it() {
        let tolerance = Tolerance::new(1e-3);
        assert!(tolerance.allows(1e-4, 0.0) && !tolerance.allows(1e-2, 0.0));
        assert!(tolerance.allows(1000.5, 1000.0) && !tolerance.allows(1002.0, 1000.0));
        assert!(tolerance.allows(f64::INFINITY, f64::INFINITY) && tolerance.allows(f64::NAN, f64::NAN));
        assert!(!tolerance.allows(f64::NAN, 0.0) && !tolerance.allows(0.0, f64::NAN));
        assert!(!tolerance.allows(f64::INFINITY, f64::NEG_INFINITY) && !tolerance.allows(0.0, f64::INFINITY));
    }

    #[test]
    fn the_first_difference_is_named() {
        let failure =
            compare(&[2, 2], &[1.0, 2.0, 3.5, 5.0], &[2, 2], &[1.0, 2.0, 3.0, 4.0], Tolerance::EXACT);
        let failure = failure.expect_err("the values differ");
        assert!(failure.text().contains("[1, 0]") && failure.text().contains("2 of 4"), "{failure:?}");
    }
}
