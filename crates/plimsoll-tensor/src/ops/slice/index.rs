//! How users write slices: positions and ranges, with numpy's rules for both.

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use smallvec::SmallVec;

use super::Cut;
use crate::base::axes::Integer;
use crate::base::error::{Error, Result};

/// What to take of one axis. Made from a position (`-1`), a range (`1..3`, `..-1`, `2..`, `..`), or a range with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// One position; the axis is dropped. A negative number counts from the end.
    At(isize),
    /// A range; it is cut at the ends of the axis. Negative numbers count from the end.
    Range {
        /// The first position; without it, the first in the direction of the step.
        start: Option<isize>,
        /// The position before which it ends; without it, the range goes on to the end.
        end: Option<isize>,
        /// From one position to the next.
        step: isize,
    },
}

impl Slice {
    /// The range from `start` to before `end`: what `1..-1` would say, which clippy takes for an empty range.
    pub fn between(start: impl Integer, end: impl Integer) -> Slice {
        Slice::from(start.to_isize()..end.to_isize())
    }

    /// The range with that step; a single position has none and stays as it is.
    #[must_use]
    pub fn step(self, step: isize) -> Slice {
        match self {
            Slice::At(_) => self,
            Slice::Range { start, end, .. } => Slice::Range { start, end, step },
        }
    }

    /// What the slice leaves of an axis.
    pub(super) fn cut(self, op: &'static str, axis: usize, extent: usize) -> Result<Cut> {
        // Extents are bounded by what memory can hold, so they fit.
        let n = extent as isize;
        match self {
            Slice::At(index) if (-n..n).contains(&index) => Ok(Cut::new(index.rem_euclid(n) as usize, 1, 1)),
            Slice::At(index) => Err(Error::argument(
                op,
                match n {
                    0 => format!("position {index} of axis {axis}, whose extent is 0; it has no positions"),
                    _ => format!(
                        "position {index} of axis {axis}, whose extent is {n}; positions go from {} to {}",
                        -n,
                        n - 1
                    ),
                },
            )),
            Slice::Range { step: 0, .. } => Err(Error::argument(
                op,
                format!("a step of 0 along axis {axis}; forwards it is positive, backwards negative"),
            )),
            Slice::Range { start, end, step } => {
                // Backwards, the range may end before the first element, which is place -1.
                let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
                let place = |at: isize| if at < 0 { at.saturating_add(n) } else { at }.clamp(low, high);
                let first = start.map_or(if step > 0 { low } else { high }, place);
                let last = end.map_or(if step > 0 { high } else { low }, place);
                let distance = if step > 0 { last - first } else { first - last };
                let len = (distance.max(0) as usize).div_ceil(step.unsigned_abs());
                Ok(Cut::new(first.max(0) as usize, step, len))
            }
        }
    }
}

/// Slices from every integer type. A number beyond an `isize` becomes the nearest one, which lies as far out of range.
macro_rules! from_integers {
    ($($type:ty),*) => {$(
        impl From<$type> for Slice {
            fn from(index: $type) -> Slice {
                Slice::At(index.to_isize())
            }
        }

        impl From<Range<$type>> for Slice {
            fn from(range: Range<$type>) -> Slice {
                Slice::Range { start: Some(range.start.to_isize()), end: Some(range.end.to_isize()), step: 1 }
            }
        }

        impl From<RangeFrom<$type>> for Slice {
            fn from(range: RangeFrom<$type>) -> Slice {
                Slice::Range { start: Some(range.start.to_isize()), end: None, step: 1 }
            }
        }

        impl From<RangeTo<$type>> for Slice {
            fn from(range: RangeTo<$type>) -> Slice {
                Slice::Range { start: None, end: Some(range.end.to_isize()), step: 1 }
            }
        }
    )*};
}

from_integers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl From<RangeFull> for Slice {
    fn from(_: RangeFull) -> Slice {
        Slice::Range { start: None, end: None, step: 1 }
    }
}

/// What can be given as slices: a tuple of positions and ranges, or an array or slice of [`Slice`].
pub trait IntoSlices {
    /// One slice for each of the first axes.
    fn into_slices(self) -> SmallVec<[Slice; 4]>;
}

impl IntoSlices for &[Slice] {
    fn into_slices(self) -> SmallVec<[Slice; 4]> {
        self.into()
    }
}

impl<const N: usize> IntoSlices for &[Slice; N] {
    fn into_slices(self) -> SmallVec<[Slice; 4]> {
        self.as_slice().into()
    }
}

macro_rules! tuples {
    ($(($($name:ident),*);)*) => {$(
        impl<$($name: Into<Slice>),*> IntoSlices for ($($name,)*) {
            #[allow(non_snake_case, reason = "each element is bound to the name of its type")]
            fn into_slices(self) -> SmallVec<[Slice; 4]> {
                let ($($name,)*) = self;
                smallvec::smallvec![$($name.into()),*]
            }
        }
    )*};
}

tuples! {
    (A);
    (A, B);
    (A, B, C);
    (A, B, C, D);
}
