//! Axes as people write them: one number or several, of any integer type, or a range; negative ones count from the end.
//!
//! The type of an integer says nothing about an axis, so none is preferred: a literal, a `usize` from a loop and an `i64`
//! from a file all name one. This module turns them into an axis, or a set of axes, of one shape; it refuses what the
//! shape does not have and what is named twice, in the numbers that the user wrote.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::base::error::{Error, Result};
use crate::base::shape::{MAX_RANK, Shape};

/// Any integer type, and references to one: how axes, positions and extents are given.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no integer",
    label = "an integer was expected, such as `-1` or a `usize`"
)]
pub trait Integer: Copy + fmt::Display {
    /// The number, in a type that holds all of them.
    fn to_i128(self) -> i128;

    /// The number, or the nearest that an `isize` holds. No axis and no position lies so far out.
    fn to_isize(self) -> isize {
        self.to_i128().clamp(isize::MIN as i128, isize::MAX as i128) as isize
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Integer for $type {
            #[inline]
            fn to_i128(self) -> i128 {
                self as i128
            }
        }

        impl IntoAxes for $type {
            fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
                Ok(Axes::of([shape.axis(op, self)?]))
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, usize);

impl<I: Integer> Integer for &I {
    #[inline]
    fn to_i128(self) -> i128 {
        (*self).to_i128()
    }
}

impl Shape {
    /// The axis that a possibly negative number names.
    ///
    /// # Errors
    /// There is no such axis.
    #[inline]
    pub fn axis(&self, op: &'static str, axis: impl Integer) -> Result<usize> {
        let (axis, rank) = (axis.to_i128(), self.rank() as i128);
        if (-rank..rank).contains(&axis) {
            return Ok(axis.rem_euclid(rank) as usize);
        }
        Err(Error::argument(
            op,
            match rank {
                0 => format!("axis {axis} of a scalar; a scalar has no axes"),
                _ => format!("axis {axis} of shape {self}; axes go from {} to {}", -rank, rank - 1),
            },
        ))
    }
}

/// A set of axes of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axes(u8);

impl Axes {
    /// No axis.
    pub const NONE: Axes = Axes(0);

    /// All axes of a shape of that rank.
    pub fn all(rank: usize) -> Axes {
        Axes::of(0..rank.min(MAX_RANK))
    }

    /// A set of axes below [`MAX_RANK`]; no shape has others, so they are left out.
    pub fn of(axes: impl IntoIterator<Item = usize>) -> Axes {
        Axes(axes.into_iter().filter(|&axis| axis < MAX_RANK).fold(0, |set, axis| set | 1 << axis))
    }

    /// Whether `axis` is in the set.
    pub fn contains(self, axis: usize) -> bool {
        axis < MAX_RANK && self.0 >> axis & 1 == 1
    }

    /// The axes in rising order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANK).filter(move |&axis| self.contains(axis))
    }

    /// The number of axes.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set of numbered axes of `shape`, each named once.
    fn listed<I: Integer>(axes: &[I], op: &'static str, shape: &Shape) -> Result<Axes> {
        let mut set = Axes::NONE;
        for &axis in axes {
            let axis = shape.axis(op, axis)?;
            if set.contains(axis) {
                let all: Vec<i128> = axes.iter().map(|axis| axis.to_i128()).collect();
                return Err(Error::argument(op, format!("axis {axis} is named twice in {all:?}")));
            }
            set.0 |= 1 << axis;
        }
        Ok(set)
    }

    /// The axes of `shape` from one number to another, both of which may count from the end.
    fn ranged<I: Integer>(range: &impl RangeBounds<I>, op: &'static str, shape: &Shape) -> Result<Axes> {
        let rank = shape.rank() as i128;
        let from_start = |number: i128| if number < 0 { number + rank } else { number };
        let first = match range.start_bound() {
            Bound::Included(first) => from_start(first.to_i128()),
            _ => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => from_start(last.to_i128()) + 1,
            Bound::Excluded(end) => from_start(end.to_i128()),
            Bound::Unbounded => rank,
        };
        match 0 <= first && first <= end && end <= rank {
            true => Ok(Axes::of(first as usize..end as usize)),
            false => Err(Error::argument(
                op,
                format!("axes {first} to {end} of shape {shape}; a range of axes lies within 0..{rank}"),
            )),
        }
    }
}

impl fmt::Debug for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What can be given as axes: `..` for all, one number, an array, slice or `Vec` of numbers, or a range; negative ones
/// count from the end.
///
/// ```
/// use plimsoll_tensor::Tensor;
///
/// # fn main() -> plimsoll_tensor::Result<()> {
/// let x = Tensor::ones([2, 3, 4])?;
/// assert_eq!(x.sum(..)?.item::<f32>()?, 24.0);
/// assert_eq!(x.sum(-1)?.shape().dims(), [2, 3]);
/// assert_eq!(x.sum([0, 2])?.shape().dims(), [3]);
/// assert_eq!(x.sum(1..)?.shape().dims(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// A tensor is none of these. `max` reduces one tensor; the greater elements of two are [`maximum`]'s:
///
/// ```compile_fail,E0277
/// # let x = plimsoll_tensor::Tensor::ones([2, 3])?;
/// # let y = x.clone();
/// x.max(&y)?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// [`maximum`]: crate::Tensor::maximum
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no axes",
    label = "axes were expected: `..`, a number, several numbers or a range",
    note = "this reduces one tensor over axes; of two tensors, `x.maximum(&y)` and `x.minimum(&y)` give the greater and the lesser elements, `x.add(&y)` the sums"
)]
pub trait IntoAxes {
    /// The set of axes of `shape`.
    ///
    /// # Errors
    /// An axis that the shape does not have, or one that is named twice.
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes>;
}

impl IntoAxes for RangeFull {
    fn into_axes(self, _op: &'static str, shape: &Shape) -> Result<Axes> {
        Ok(Axes::all(shape.rank()))
    }
}

impl IntoAxes for Axes {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        match self.iter().find(|&axis| axis >= shape.rank()) {
            None => Ok(self),
            Some(axis) => Ok(Axes::of([shape.axis(op, axis)?])),
        }
    }
}

impl<I: Integer> IntoAxes for &[I] {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Axes::listed(self, op, shape)
    }
}

impl<I: Integer, const N: usize> IntoAxes for [I; N] {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Axes::listed(&self, op, shape)
    }
}

impl<I: Integer, const N: usize> IntoAxes for &[I; N] {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Axes::listed(self, op, shape)
    }
}

impl<I: Integer> IntoAxes for Vec<I> {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Axes::listed(&self, op, shape)
    }
}

impl<I: Integer> IntoAxes for &Vec<I> {
    fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
        Axes::listed(self, op, shape)
    }
}

macro_rules! ranges {
    ($($range:ident),*) => {$(
        impl<I: Integer> IntoAxes for $range<I> {
            fn into_axes(self, op: &'static str, shape: &Shape) -> Result<Axes> {
                Axes::ranged(&self, op, shape)
            }
        }
    )*};
}

ranges!(Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::shape::IntoShape;

    fn named(axes: impl IntoAxes) -> Result<Vec<usize>> {
        Ok(axes.into_axes("sum", &[2, 3, 4].into_shape()?)?.iter().collect())
    }

    fn refused(axes: impl IntoAxes) -> String {
        named(axes).unwrap_err().to_string()
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(named(-1).unwrap(), [2]);
        assert_eq!(named([0, -1]).unwrap(), [0, 2]);
        assert_eq!(named(..).unwrap(), [0, 1, 2]);
        assert!(refused([1, -2]).contains("axis 1 is named twice in [1, -2]"));
        assert!(refused(3).contains("axis 3 of shape [2, 3, 4]; axes go from -3 to 2"));
    }

    #[test]
    fn every_integer_type_names_an_axis() {
        let all = [
            named(1i8),
            named(1i16),
            named(1i32),
            named(1i64),
            named(1isize),
            named(1u8),
            named(1u16),
            named(1u32),
            named(1u64),
            named(1usize),
        ];
        assert!(all.into_iter().all(|axes| axes.unwrap() == [1]));
        let (array, list) = ([0i64, 2], vec![0u32, 2]);
        assert_eq!(named(array.as_ref()).unwrap(), named(array).unwrap());
        assert_eq!(named(&list).unwrap(), named(&list[..]).unwrap());
        assert_eq!(named(list).unwrap(), [0, 2]);
        assert!(refused(u64::MAX).contains("axis 18446744073709551615 of shape"));
        assert!(refused(isize::MIN).contains("axis -9223372036854775808 of shape"));
    }

    #[test]
    fn ranges_of_axes_count_from_both_ends() {
        assert_eq!(named(1..).unwrap(), [1, 2]);
        assert_eq!(named(..2usize).unwrap(), [0, 1]);
        assert_eq!(named(-2..).unwrap(), [1, 2]);
        assert_eq!(named(..-1).unwrap(), [0, 1]);
        assert_eq!((named(0..=1).unwrap(), named(..=-2).unwrap()), (vec![0, 1], vec![0, 1]));
        assert_eq!(named(1..1).unwrap(), [] as [usize; 0]);
        assert!(refused(1..4).contains("axes 1 to 4 of shape [2, 3, 4]; a range of axes lies within 0..3"));
        let (from, to) = (2, 1);
        assert!(named(from..to).is_err() && named(-4..).is_err() && named(..=u64::MAX).is_err());
    }

    #[test]
    fn a_set_of_axes_has_none_that_no_shape_has() {
        assert!(Axes::of([3, 8, usize::MAX]) == Axes::of([3]) && !Axes::all(usize::MAX).contains(8));
        assert!(refused(Axes::of([3])).contains("axis 3"));
    }
}
