//! The usual folds: sums, products, extremes and where they are, variance, log-sum-exp, any and all.
//!
//! Narrow floats accumulate in f32 and integers in i64; each fold says what it writes. Folds of two quantities look at
//! a leaf twice while it is in the nearest cache, which is both faster and more accurate than updating both at every
//! element.

use std::marker::PhantomData;

use crate::element::{CastTo, Element, Number};
use crate::math::Real;
use crate::reduce::{Fold, Rows, in_lanes};

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
    fn finish(&self, acc: Wide<I>, _: usize) -> O {
        O::narrow(acc.cast())
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
    fn finish(&self, acc: Wide<I>, _: usize) -> O {
        O::narrow(acc.cast())
    }
}

/// The sum or mean of floats or of their squares. The mean of nothing is NaN.
#[derive(Clone, Copy, Debug, Default)]
pub struct FloatSum<I, O, const IS_MEAN: bool, const OF_SQUARES: bool>(PhantomData<fn() -> (I, O)>);

/// The mean.
pub type Mean<I, O> = FloatSum<I, O, true, false>;
/// The sum of the squares.
pub type SumSquares<I, O> = FloatSum<I, O, false, true>;
/// The mean of the squares.
pub type MeanSquares<I, O> = FloatSum<I, O, true, true>;

impl<I, O, const IS_MEAN: bool, const OF_SQUARES: bool> FloatSum<I, O, IS_MEAN, OF_SQUARES> {
    /// The fold.
    pub const fn new() -> Self {
        FloatSum(PhantomData)
    }
}

impl<I, O, const IS_MEAN: bool, const OF_SQUARES: bool> Fold for FloatSum<I, O, IS_MEAN, OF_SQUARES>
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
        if OF_SQUARES { value * value } else { value }
    }

    #[inline(always)]
    fn merge(&self, first: I::Compute, second: I::Compute) -> I::Compute {
        first + second
    }

    #[inline(always)]
    fn finish(&self, acc: I::Compute, n: usize) -> O {
        O::narrow(if IS_MEAN { acc / I::Compute::from_f64(n as f64) } else { acc }.cast())
    }
}

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
    fn finish(&self, acc: T::Compute, _: usize) -> T {
        T::narrow(acc)
    }
}

/// The index of the greatest or least value: the first of equal ones, and the first NaN where there is one.
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
        let is_beyond = if GREATEST { second.0 > first.0 } else { second.0 < first.0 };
        let is_first_nan = second.0.is_nan() && !first.0.is_nan();
        if is_beyond || is_first_nan || first.1 < 0 { second } else { first }
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
}

/// The variance or its root: the sum of squared distances from the mean, by `n - correction`.
///
/// Each leaf finds its mean first and its squared distances then; leaves are joined by the formula of Chan, Golub and
/// LeVeque. Nothing is subtracted that was summed up large.
#[derive(Clone, Copy, Debug)]
pub struct Variance<I, O> {
    /// What is taken from the number of elements: one for the estimate from a sample, zero for a whole population.
    pub correction: f64,
    /// Whether the square root is written.
    pub is_root: bool,
    types: PhantomData<fn() -> (I, O)>,
}

impl<I, O> Variance<I, O> {
    /// The fold.
    pub const fn new(correction: f64, is_root: bool) -> Self {
        Variance { correction, is_root, types: PhantomData }
    }
}

/// The number, mean and summed squared distances of some values.
#[derive(Clone, Copy, Debug)]
pub struct Moments<T> {
    n: usize,
    mean: T,
    squares: T,
}

impl<I, O> Fold for Variance<I, O>
where
    I: Element<Compute: Real + CastTo<O::Compute>>,
    O: Element,
{
    type In = I;
    type Acc = Moments<I::Compute>;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> Self::Acc {
        Moments { n: 0, mean: I::Compute::ZERO, squares: I::Compute::ZERO }
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> Self::Acc {
        Moments { n: 1, mean: value, squares: I::Compute::ZERO }
    }

    #[inline(always)]
    fn merge(&self, first: Self::Acc, second: Self::Acc) -> Self::Acc {
        let n = first.n + second.n;
        let share = I::Compute::from_f64(second.n as f64 / if n == 0 { 1.0 } else { n as f64 });
        let delta = second.mean - first.mean;
        Moments {
            n,
            mean: first.mean + delta * share,
            squares: first.squares
                + second.squares
                + delta * delta * share * I::Compute::from_f64(first.n as f64),
        }
    }

    #[inline(always)]
    fn finish(&self, acc: Self::Acc, n: usize) -> O {
        let divisor = (n as f64 - self.correction).max(0.0);
        let variance = acc.squares / I::Compute::from_f64(divisor);
        O::narrow(if self.is_root { variance.sqrt() } else { variance }.cast())
    }

    #[inline(always)]
    fn run(&self, values: &[I::Compute], _: usize) -> Self::Acc {
        let zero = I::Compute::ZERO;
        let sum = in_lanes(values, zero, |value, _| value, |a, b| a + b);
        let mean = sum / I::Compute::from_f64(values.len() as f64);
        let square = |value: I::Compute| (value - mean) * (value - mean);
        let squares = in_lanes(values, zero, |value, _| square(value), |a, b| a + b);
        Moments { n: values.len(), mean, squares }
    }

    #[inline(always)]
    fn columns(&self, rows: Rows<'_, I::Compute>, _: usize, accs: &mut [Self::Acc]) {
        let n = rows.n_rows();
        let per_row = I::Compute::from_f64(1.0 / n as f64);
        by_stretches(
            rows,
            accs,
            #[inline(always)]
            |stretch, accs| {
                let mut means = [I::Compute::ZERO; STRETCH];
                let mut squares = [I::Compute::ZERO; STRETCH];
                for row in stretch.iter() {
                    for (mean, &value) in means.iter_mut().zip(row) {
                        *mean = *mean + value;
                    }
                }
                for mean in &mut means {
                    *mean = *mean * per_row;
                }
                for row in stretch.iter() {
                    for ((square, &mean), &value) in squares.iter_mut().zip(&means).zip(row) {
                        *square = *square + (value - mean) * (value - mean);
                    }
                }
                for ((acc, &mean), &squares) in accs.iter_mut().zip(&means).zip(&squares) {
                    *acc = Moments { n, mean, squares };
                }
            },
        );
    }
}

plain_fold!(
    /// The logarithm of the sum of the exponentials of floats, without overflow. Of nothing it is minus infinity.
    LogSumExp<I, O>
);

/// The greatest of some values, and the sum of the exponentials of their distances from it.
#[derive(Clone, Copy, Debug)]
pub struct Exponentials<T> {
    max: T,
    sum: T,
}

/// What is taken from values whose greatest is `max`; infinities take away nothing and so stay what they are.
#[inline(always)]
fn shift<T: Real>(max: T) -> T {
    if max.abs() == T::GREATEST { T::ZERO } else { max }
}

impl<I, O> Fold for LogSumExp<I, O>
where
    I: Element<Compute: Real + CastTo<O::Compute>>,
    O: Element,
{
    type In = I;
    type Acc = Exponentials<I::Compute>;
    type Out = O;

    #[inline(always)]
    fn empty(&self) -> Self::Acc {
        Exponentials { max: I::Compute::LEAST, sum: I::Compute::ZERO }
    }

    #[inline(always)]
    fn one(&self, value: I::Compute, _: usize) -> Self::Acc {
        Exponentials { max: value, sum: (value - shift(value)).exp() }
    }

    #[inline(always)]
    fn merge(&self, first: Self::Acc, second: Self::Acc) -> Self::Acc {
        let max = first.max.max(second.max);
        let rescaled = |acc: Self::Acc| {
            if acc.max == max { acc.sum } else { acc.sum * (acc.max - shift(max)).exp() }
        };
        Exponentials { max, sum: rescaled(first) + rescaled(second) }
    }

    #[inline(always)]
    fn finish(&self, acc: Self::Acc, _: usize) -> O {
        O::narrow((acc.sum.ln() + shift(acc.max)).cast())
    }

    #[inline(always)]
    fn run(&self, values: &[I::Compute], _: usize) -> Self::Acc {
        let max = in_lanes(values, I::Compute::LEAST, |value, _| value, |a, b| a.max(b));
        let shift = shift(max);
        let sum = in_lanes(
            values,
            I::Compute::ZERO,
            #[inline(always)]
            |value, _| (value - shift).exp(),
            |a, b| a + b,
        );
        Exponentials { max, sum }
    }

    #[inline(always)]
    fn columns(&self, rows: Rows<'_, I::Compute>, _: usize, accs: &mut [Self::Acc]) {
        by_stretches(
            rows,
            accs,
            #[inline(always)]
            |stretch, accs| {
                let mut maxima = [I::Compute::LEAST; STRETCH];
                let mut sums = [I::Compute::ZERO; STRETCH];
                for row in stretch.iter() {
                    for (max, &value) in maxima.iter_mut().zip(row) {
                        *max = max.max(value);
                    }
                }
                for row in stretch.iter() {
                    for ((sum, &max), &value) in sums.iter_mut().zip(&maxima).zip(row) {
                        *sum = *sum + (value - shift(max)).exp();
                    }
                }
                for ((acc, &max), &sum) in accs.iter_mut().zip(&maxima).zip(&sums) {
                    *acc = Exponentials { max, sum };
                }
            },
        );
    }
}

/// The number of columns of which a fold of two quantities keeps each quantity side by side.
const STRETCH: usize = 64;

/// Calls `f` for stretches of at most [`STRETCH`] columns, with their accumulators.
#[inline(always)]
fn by_stretches<T: Copy, A>(rows: Rows<'_, T>, accs: &mut [A], f: impl Fn(Rows<'_, T>, &mut [A])) {
    for (idx, accs) in accs.chunks_mut(STRETCH).enumerate() {
        let start = idx * STRETCH;
        f(rows.cut(start..start + accs.len()), accs);
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
