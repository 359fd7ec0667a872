//! Folds of two quantities: variance, and the logarithm of summed exponentials.
//!
//! They look at a leaf twice while it is in the nearest cache, which is both faster and more accurate than updating both
//! quantities at every element.

use std::marker::PhantomData;

use super::{STRETCH, by_stretches};
use crate::element::{CastTo, Element, Number};
use crate::math::Real;
use crate::reduce::{Fold, Rows, in_lanes};

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
    fn finish(&self, acc: Self::Acc, n: usize) -> O::Compute {
        let divisor = (n as f64 - self.correction).max(0.0);
        let variance = acc.squares / I::Compute::from_f64(divisor);
        if self.is_root { variance.sqrt() } else { variance }.cast()
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

/// The logarithm of the sum of the exponentials of floats, without overflow. Of nothing it is minus infinity.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSumExp<I, O>(PhantomData<fn() -> (I, O)>);

impl<I, O> LogSumExp<I, O> {
    /// The fold.
    pub const fn new() -> Self {
        LogSumExp(PhantomData)
    }
}

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
    fn finish(&self, acc: Self::Acc, _: usize) -> O::Compute {
        (acc.sum.ln() + shift(acc.max)).cast()
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
