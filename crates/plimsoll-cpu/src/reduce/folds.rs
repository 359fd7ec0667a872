//! The usual folds: sums, products, extremes and where they are, variance, log-sum-exp, any and all.
//!
//! Narrow floats accumulate in f32 and integers in i64; each fold says what it writes.

use std::marker::PhantomData;

use crate::element::{CastTo, Element, Number};
use crate::math::Real;
use crate::reduce::{Fold, Rows};

mod extremes;
mod moments;

pub use extremes::*;
pub use moments::*;

/// A compute type, and the type that its sums are kept in.
pub trait Accumulate: Element<Compute = Self> + CastTo<Self::Wide> {
    /// f32 and f64 for themselves, i64 for integers and bool.
    type Wide: Number;
}

/// Names the type that sums are kept in.
macro_rules! accumulate_in {
    ($($type:ty => $wide:ty),*) => {$(
        impl Accumulate for $type {
            type Wide = $wide;
        }
    )*};
}

accumulate_in!(f64 => f64, f32 => f32, i64 => i64, i32 => i64, u8 => i64, bool => i64);

/// The accumulator of an element type.
type Wide<I> = <<I as Element>::Compute as Accumulate>::Wide;

/// Folds that are described by their types alone.
macro_rules! plain_fold {
    ($(#[$doc:meta])* $name:ident<$($param:ident),*>) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name<$($param),*>(PhantomData<fn() -> ($($param,)*)>);

        impl<$($param),*> $name<$($param),*> {
            /// The fold.
            pub const fn new() -> Self {
                $name(PhantomData)
            }
        }
    };
}

plain_fold!(
    /// The sum of `I`s, written as `O`. Nothing sums to zero.
    Sum<I, O>
);

impl<I, O> Fold for Sum<I, O>
where
    I: Element<Compute: Accumulate<Wide: CastTo<O::Compute>>>,
    O: Element,
{
    type In = I;
    type Acc = Wide<I>;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> Wide<I> {
        Wide::<I>::ZERO
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> Wide<I> {
        value.cast()
    }

    #[inline(always)]
    fn merge(&self, first: Wide<I>, second: Wide<I>) -> Wide<I> {
        first.add(second)
    }

    #[inline(always)]
    fn finish(&self, acc: Wide<I>, _: usize) -> O::Compute {
        acc.cast()
    }
}

plain_fold!(
    /// The product of `I`s, written as `O`. The product of nothing is one.
    Prod<I, O>
);

impl<I, O> Fold for Prod<I, O>
where
    I: Element<Compute: Accumulate<Wide: CastTo<O::Compute>>>,
    O: Element,
{
    type In = I;
    type Acc = Wide<I>;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> Wide<I> {
        Wide::<I>::ONE
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> Wide<I> {
        value.cast()
    }

    #[inline(always)]
    fn merge(&self, first: Wide<I>, second: Wide<I>) -> Wide<I> {
        first.mul(second)
    }

    #[inline(always)]
    fn finish(&self, acc: Wide<I>, _: usize) -> O::Compute {
        acc.cast()
    }
}

plain_fold!(
    /// The mean of floats. That of nothing is NaN.
    Mean<I, O>
);

impl<I, O> Fold for Mean<I, O>
where
    I: Element<Compute: Real + CastTo<O::Compute>>,
    O: Element,
{
    type In = I;
    type Acc = I::Compute;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> I::Compute {
        I::Compute::ZERO
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> I::Compute {
        value
    }

    #[inline(always)]
    fn merge(&self, first: I::Compute, second: I::Compute) -> I::Compute {
        first + second
    }

    #[inline(always)]
    fn finish(&self, acc: I::Compute, n: usize) -> O::Compute {
        (acc / I::Compute::from_f64(n as f64)).cast()
    }
}

plain_fold!(
    /// The Euclidean length of floats. The root is taken before the result is rounded, because the squares of 16-bit floats
    /// soon add up to more than the largest.
    Length<I, O>
);

impl<I, O> Fold for Length<I, O>
where
    I: Element<Compute: Real + CastTo<O::Compute>>,
    O: Element,
{
    type In = I;
    type Acc = I::Compute;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> I::Compute {
        I::Compute::ZERO
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> I::Compute {
        value * value
    }

    #[inline(always)]
    fn merge(&self, first: I::Compute, second: I::Compute) -> I::Compute {
        first + second
    }

    #[inline(always)]
    fn finish(&self, acc: I::Compute, _: usize) -> O::Compute {
        acc.sqrt().cast()
    }
}

/// Whether any, or all, of the values are true: not zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truth<T, const ALL: bool>(PhantomData<fn() -> T>);

/// Whether any value is true.
pub type Any<T> = Truth<T, false>;
/// Whether all values are true.
pub type All<T> = Truth<T, true>;

impl<T, const ALL: bool> Truth<T, ALL> {
    /// The fold.
    pub const fn new() -> Self {
        Truth(PhantomData)
    }
}

impl<T: Element<Compute: CastTo<bool>>, const ALL: bool> Fold for Truth<T, ALL> {
    type In = T;
    type Acc = bool;
    type Out = bool;

    #[inline(always)]
    fn empty(&self) -> bool {
        ALL
    }

    #[inline(always)]
    fn one(&self, value: T::Compute, _: usize) -> bool {
        value.cast()
    }

    #[inline(always)]
    fn merge(&self, first: bool, second: bool) -> bool {
        if ALL { first & second } else { first | second }
    }

    #[inline(always)]
    fn finish(&self, acc: bool, _: usize) -> bool {
        acc
    }
}

/// The number of columns for which a fold of two quantities keeps each quantity side by side.
const STRETCH: usize = 64;

/// Calls `f` for stretches of at most [`STRETCH`] columns, with their accumulators.
#[inline(always)]
fn by_stretches<T: Copy, A>(rows: Rows<'_, T>, accs: &mut [A], f: impl Fn(Rows<'_, T>, &mut [A])) {
    for (idx, accs) in accs.chunks_mut(STRETCH).enumerate() {
        let start = idx * STRETCH;
        f(rows.cut(start..start + accs.len()), accs);
    }
}
