//! The greatest and the least value, and where they are.

use std::marker::PhantomData;

use super::{STRETCH, by_stretches};
use crate::element::{Element, Number};
use crate::reduce::{Fold, Rows, in_lanes};

/// The greatest or least value, or NaN where there is one. Of nothing, the value that every other one replaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extreme<T, const GREATEST: bool>(PhantomData<fn() -> T>);

/// The greatest value.
pub type Max<T> = Extreme<T, true>;
/// The least value.
pub type Min<T> = Extreme<T, false>;

impl<T, const GREATEST: bool> Extreme<T, GREATEST> {
    /// The fold.
    pub const fn new() -> Self {
        Extreme(PhantomData)
    }
}

/// The more extreme of two values.
#[inline(always)]
fn more_extreme<C: Number, const GREATEST: bool>(a: C, b: C) -> C {
    if GREATEST { a.max(b) } else { a.min(b) }
}

/// Whether a later value takes the place of an earlier one; the first NaN is never replaced.
#[inline(always)]
fn is_beyond<C: Number, const GREATEST: bool>(earlier: C, later: C) -> bool {
    let is_further = if GREATEST { later > earlier } else { later < earlier };
    is_further | (later.is_nan() & !earlier.is_nan())
}

/// The value that every other one replaces.
#[inline(always)]
fn least_extreme<C: Number, const GREATEST: bool>() -> C {
    if GREATEST { C::LEAST } else { C::GREATEST }
}

impl<T: Element<Compute: Number>, const GREATEST: bool> Fold for Extreme<T, GREATEST> {
    type In = T;
    type Acc = T::Compute;
    type Out = T;

    #[inline(always)]
    fn empty(&self) -> T::Compute {
        least_extreme::<T::Compute, GREATEST>()
    }

    #[inline(always)]
    fn one(&self, value: T::Compute, _: usize) -> T::Compute {
        value
    }

    #[inline(always)]
    fn merge(&self, first: T::Compute, second: T::Compute) -> T::Compute {
        more_extreme::<T::Compute, GREATEST>(first, second)
    }

    #[inline(always)]
    fn finish(&self, acc: T::Compute, _: usize) -> T::Compute {
        acc
    }
}

/// The index of the greatest or least value: the first of equal ones, and the first NaN where there is one. Of
/// nothing it is zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArgExtreme<T, const GREATEST: bool>(PhantomData<fn() -> T>);

/// The index of the greatest value.
pub type ArgMax<T> = ArgExtreme<T, true>;
/// The index of the least value.
pub type ArgMin<T> = ArgExtreme<T, false>;

impl<T, const GREATEST: bool> ArgExtreme<T, GREATEST> {
    /// The fold.
    pub const fn new() -> Self {
        ArgExtreme(PhantomData)
    }
}

impl<T: Element<Compute: Number>, const GREATEST: bool> Fold for ArgExtreme<T, GREATEST> {
    type In = T;
    /// The value, and its index; no index while nothing was seen.
    type Acc = (T::Compute, i64);
    type Out = i64;

    const IS_ORDERED: bool = true;

    #[inline(always)]
    fn empty(&self) -> Self::Acc {
        (least_extreme::<T::Compute, GREATEST>(), -1)
    }

    #[inline(always)]
    fn one(&self, value: T::Compute, idx: usize) -> Self::Acc {
        (value, idx as i64)
    }

    #[inline(always)]
    fn merge(&self, first: Self::Acc, second: Self::Acc) -> Self::Acc {
        if is_beyond::<T::Compute, GREATEST>(first.0, second.0) || first.1 < 0 { second } else { first }
    }

    #[inline(always)]
    fn finish(&self, acc: Self::Acc, _: usize) -> i64 {
        Number::max(acc.1, 0)
    }

    #[inline(always)]
    fn run(&self, values: &[T::Compute], first: usize) -> Self::Acc {
        // Finding the value vectorises and finding its place is a short search, so the two are done apart.
        let extreme = in_lanes(
            values,
            least_extreme::<T::Compute, GREATEST>(),
            #[inline(always)]
            |value, _| value,
            more_extreme::<T::Compute, GREATEST>,
        );
        let is_there = |value: &T::Compute| *value == extreme || value.is_nan();
        match values.iter().position(is_there) {
            Some(idx) => (extreme, (first + idx) as i64),
            None => self.empty(),
        }
    }

    #[inline(always)]
    fn columns(&self, rows: Rows<'_, T::Compute>, first: usize, accs: &mut [Self::Acc]) {
        by_stretches(
            rows,
            accs,
            #[inline(always)]
            |stretch, accs| {
                let mut extremes = [least_extreme::<T::Compute, GREATEST>(); STRETCH];
                let mut places = [0u32; STRETCH];
                for (idx, row) in stretch.iter().enumerate() {
                    for ((extreme, place), &value) in extremes.iter_mut().zip(&mut places).zip(row) {
                        let is_next = is_beyond::<T::Compute, GREATEST>(*extreme, value);
                        *extreme = if is_next { value } else { *extreme };
                        *place = if is_next { idx as u32 } else { *place };
                    }
                }
                for ((acc, &extreme), &place) in accs.iter_mut().zip(&extremes).zip(&places) {
                    *acc = (extreme, (first + place as usize) as i64);
                }
            },
        );
    }
}
