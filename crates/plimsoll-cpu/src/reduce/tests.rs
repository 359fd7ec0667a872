//! Every fold over every set of axes and layout against plain loops in f64, and the same bits for any number of threads.

use half::{bf16, f16};

use super::*;
use crate::threads::with_threads;

/// A strided operand: shape, strides and memory.
struct Sample {
    shape: Vec<usize>,
    strides: Vec<isize>,
    values: Vec<f64>,
}

impl Sample {
    /// The layouts of one shape: row-major, reversed axes, and every other element.
    fn layouts(shape: &[usize]) -> Vec<Sample> {
        let row_major = |shape: &[usize]| -> Vec<isize> {
            (0..shape.len()).map(|axis| shape[axis + 1..].iter().product::<usize>() as isize).collect()
        };
        let reversed: Vec<usize> = shape.iter().rev().copied().collect();
        let strides = [
            row_major(shape),
            row_major(&reversed).into_iter().rev().collect(),
            row_major(shape).into_iter().map(|stride| 2 * stride).collect(),
        ];
        let len = 2 * shape.iter().product::<usize>().max(1);
        let values: Vec<f64> = (0..len).map(|i| ((i * 7919) % 1013) as f64 / 64.0 - 6.0).collect();
        strides.map(|strides| Sample { shape: shape.to_vec(), strides, values: values.clone() }).into()
    }

    fn n_elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of each output, in row-major order of the outputs and of the reduced axes.
    fn groups(&self, axes: u32) -> Vec<Vec<f64>> {
        let is_reduced = |axis: usize| axes & (1 << axis) != 0;
        let n_outputs =
            self.shape.iter().enumerate().filter(|(axis, _)| !is_reduced(*axis)).map(|(_, n)| n).product();
        let mut groups = vec![Vec::new(); n_outputs];
        for flat in 0..self.n_elems() {
            let (mut rest, mut offset, mut output, mut out_stride) = (flat, 0, 0, 1);
            for axis in (0..self.shape.len()).rev() {
                let place = rest % self.shape[axis];
                rest /= self.shape[axis];
                offset += place as isize * self.strides[axis];
                if !is_reduced(axis) {
                    output += place * out_stride;
                    out_stride *= self.shape[axis];
                }
            }
            groups[output].push(self.values[offset as usize]);
        }
        groups
    }

    /// Reduces the sample, stored as the fold's input type, with 1, 2 and 7 threads, and compares
    /// their bits.
    fn reduce<F: Fold>(&self, fold: &F, axes: u32, n_outputs: usize, memory: &[F::In]) -> Vec<F::Out> {
        let run = |n_threads| {
            let mut output = vec![F::Out::default(); n_outputs];
            let input = Operand::new(memory.as_ptr(), &self.strides);
            with_threads(n_threads, || {
                // SAFETY: the strides stay inside the memory, and the output has one element for each group.
                unsafe {
                    let output = Operand::new(output.as_mut_ptr(), &[]);
                    reduce(fold, &self.shape, |axis| axes & (1 << axis) != 0, input, output);
                };
            });
            output
        };
        let one = run(1);
        for n_threads in [2, 7] {
            let other = run(n_threads);
            let same = one.iter().zip(&other).all(|(a, b)| a == b || format!("{a:?}") == format!("{b:?}"));
            assert!(same, "{n_threads} threads, {:?} over {axes:b}", self.shape);
        }
        one
    }
}

/// Shapes that meet every plan: runs and columns, short runs, splits, several leaves, nothing at all.
const SHAPES: [&[usize]; 12] = [
    &[],
    &[7],
    &[3000],
    &[100_000],
    &[25_000, 3],
    &[3, 25_000],
    &[300, 200],
    &[2, 0, 3],
    &[5, 1, 9, 33],
    &[40, 4, 300],
    &[600, 100],
    &[3, 2, 4, 2, 5],
];

/// Checks one fold over every shape, layout and set of axes.
fn check<F: Fold>(
    fold: &F,
    store: impl Fn(f64) -> F::In + Copy,
    exact: impl Fn(&[f64]) -> f64,
    close: impl Fn(F::Out, f64) -> bool,
) {
    for shape in SHAPES {
        for sample in Sample::layouts(shape) {
            let memory: Vec<F::In> = sample.values.iter().map(|&value| store(value)).collect();
            for axes in 0..1u32 << shape.len() {
                let groups = sample.groups(axes);
                let got = sample.reduce(fold, axes, groups.len(), &memory);
                for (idx, (got, group)) in got.into_iter().zip(&groups).enumerate() {
                    let want = exact(group);
                    assert!(
                        close(got, want),
                        "{shape:?} {:?} over {axes:b}, output {idx}: {got:?}, not {want}",
                        sample.strides
                    );
                }
            }
        }
    }
}

/// Equal up to rounding in f32.
fn close(got: f32, want: f64) -> bool {
    let got = f64::from(got);
    got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= 2e-6 * want.abs().max(1.0)
}

fn mean(group: &[f64]) -> f64 {
    group.iter().sum::<f64>() / group.len() as f64
}

fn variance(group: &[f64]) -> f64 {
    let mean = mean(group);
    group.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (group.len() as f64 - 1.0).max(0.0)
}

#[test]
fn sums() {
    check(&Sum::<f32, f32>::new(), |x| x as f32, |g| g.iter().sum(), close);
    check(&Sum::<f64, f64>::new(), |x| x, |g| g.iter().sum(), |got, want| (got - want).abs() < 1e-8);
    check(
        &Sum::<i32, i64>::new(),
        |x| x as i32,
        |g| g.iter().map(|x| x.trunc()).sum(),
        |got, want| got as f64 == want,
    );
    check(
        &Sum::<bool, i64>::new(),
        |x| x > 1.0,
        |g| g.iter().filter(|x| **x > 1.0).count() as f64,
        |got, want| got as f64 == want,
    );
}

#[test]
fn means_and_lengths() {
    check(&Mean::<f32, f32>::new(), |x| x as f32, mean, close);
    check(
        &Mean::<bf16, f32>::new(),
        |x| bf16::from_f64((x * 4.0).trunc()),
        |g| mean(&g.iter().map(|x| (x * 4.0).trunc()).collect::<Vec<_>>()),
        close,
    );
    let length = |g: &[f64]| g.iter().map(|x| x * x).sum::<f64>().sqrt();
    check(&Length::<f32, f32>::new(), |x| x as f32, length, close);
}

#[test]
fn products() {
    let near_one = |x: f64| 1.0 + x / 1e6;
    let exact = |g: &[f64]| g.iter().map(|&x| near_one(x)).product();
    check(&Prod::<f64, f64>::new(), near_one, exact, |got, want: f64| (got - want).abs() <= 1e-12 * want);
}

#[test]
fn extremes() {
    let greatest = |g: &[f64]| g.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = |g: &[f64]| g.iter().copied().fold(f64::INFINITY, f64::min);
    check(&Max::<f32>::new(), |x| x as f32, greatest, |got, want| f64::from(got) == want);
    check(&Min::<f16>::new(), f16::from_f64, least, |got, want| got == f16::from_f64(want));
}

#[test]
fn places_of_extremes() {
    // Few distinct values, so that ties are everywhere.
    let coarse = |x: f64| (x / 4.0).floor();
    let place = |g: &[f64], is_better: fn(f64, f64) -> bool| {
        (1..g.len()).fold(0, |best, idx| if is_better(coarse(g[idx]), coarse(g[best])) { idx } else { best })
            as f64
    };
    check(
        &ArgMax::<f32>::new(),
        |x| coarse(x) as f32,
        |g| place(g, |a, b| a > b),
        |got, want| got as f64 == want,
    );
    check(
        &ArgMin::<i64>::new(),
        |x| coarse(x) as i64,
        |g| place(g, |a, b| a < b),
        |got, want| got as f64 == want,
    );
}

#[test]
fn variances() {
    check(&Variance::<f32, f32>::new(1.0, false), |x| x as f32, variance, close);
    check(
        &Variance::<f64, f64>::new(1.0, true),
        |x| x,
        |g| variance(g).sqrt(),
        |got, want| got.is_nan() && want.is_nan() || (got - want).abs() < 1e-12,
    );
}

#[test]
fn log_sum_exps() {
    let exact = |g: &[f64]| g.iter().map(|x| x.exp()).sum::<f64>().ln();
    check(&LogSumExp::<f32, f32>::new(), |x| x as f32, exact, close);
}

#[test]
fn truths() {
    let any = |g: &[f64]| f64::from(g.iter().any(|&x| x > 9.0));
    let all = |g: &[f64]| f64::from(g.iter().all(|&x| x > -5.9));
    check(&Any::<bool>::new(), |x| x > 9.0, any, |got, want| f64::from(u8::from(got)) == want);
    check(&All::<u8>::new(), |x| u8::from(x > -5.9), all, |got, want| f64::from(u8::from(got)) == want);
}

/// Folds a list, as one run.
fn fold_list<F: Fold>(fold: &F, values: &[F::In]) -> F::Out {
    let mut output = [F::Out::default()];
    // SAFETY: the whole slice is reduced to one element.
    unsafe {
        reduce(
            fold,
            &[values.len()],
            |_| true,
            Operand::new(values.as_ptr(), &[1]),
            Operand::new(output.as_mut_ptr(), &[]),
        );
    }
    output[0]
}

#[test]
fn nan_wins_and_is_found() {
    for n in [3, 50, 5000, 200_000] {
        let mut values = vec![1.0f32; n];
        (values[n / 2], values[n / 3], values[n - 1]) = (f32::NAN, f32::INFINITY, f32::NAN);
        assert!(fold_list(&Max::<f32>::new(), &values).is_nan());
        assert!(fold_list(&Min::<f32>::new(), &values).is_nan());
        let first_nan = (n / 2) as i64;
        assert_eq!(fold_list(&ArgMax::<f32>::new(), &values), if n == 3 { 2 } else { first_nan });
        assert_eq!(fold_list(&ArgMin::<f32>::new(), &values), if n == 3 { 2 } else { first_nan });
    }
}

#[test]
fn log_sum_exp_survives_infinities_and_large_values() {
    const INF: f32 = f32::INFINITY;
    let fold = LogSumExp::<f32, f32>::new();
    assert_eq!(fold_list(&fold, &[-INF; 100]), -INF);
    assert_eq!(fold_list(&fold, &[1.0, INF, 2.0]), INF);
    assert!(fold_list(&fold, &[1.0, f32::NAN, 2.0]).is_nan());
    let mut large = vec![-INF; 3000];
    large[2900] = 10_000.0;
    large[5] = 10_000.0;
    assert_eq!(fold_list(&fold, &large), 10_000.0 + std::f32::consts::LN_2);
    assert_eq!(fold_list(&fold, &vec![-10_000.0; 2048]), -10_000.0 + 2048f32.ln());
}

#[test]
fn long_sums_and_variances_stay_accurate() {
    // One after the other, these would sum to 1,087,937.
    let values = vec![0.1f32; 10_000_000];
    let sum = fold_list(&Sum::<f32, f32>::new(), &values);
    assert!((f64::from(sum) / (1e7 * f64::from(0.1f32)) - 1.0).abs() < 1e-6, "{sum}");
    let shifted: Vec<f32> = (0..1_000_000).map(|i| 10_000.0 + (i % 5) as f32).collect();
    let variance = fold_list(&Variance::<f32, f32>::new(0.0, false), &shifted);
    assert!((variance - 2.0).abs() < 1e-4, "{variance}");
}

#[test]
fn nothing_reduces_to_the_neutral_value() {
    assert_eq!(fold_list(&Sum::<f32, f32>::new(), &[]), 0.0);
    assert_eq!(fold_list(&Prod::<i32, i64>::new(), &[]), 1);
    assert_eq!(fold_list(&Max::<f32>::new(), &[]), f32::NEG_INFINITY);
    assert!(fold_list(&Mean::<f32, f32>::new(), &[]).is_nan());
    assert!(!fold_list(&Any::<bool>::new(), &[]) && fold_list(&All::<bool>::new(), &[]));
}
