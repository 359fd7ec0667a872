//! Sums of very many numbers, on the device under test, against sums in f64 on the host.
//!
//! Numbers lie between one and two, with either sign and six bits after the point, so that every dtype holds them exactly and
//! sums stay in reach of f16 while the numbers in them do not cancel in groups. What is allowed follows from how sums are
//! made (see [`Path`]); a sum whose parts are rounded to 16 bits is far beyond it, and a test shows that it is.

use plimsoll_tensor::{DType, Device, Result, Tensor};
use plimsoll_testkit::device_under_test;

/// Lengths around powers of two, where tiles, groups and splits begin and end, and long ones.
const SHORT: [usize; 11] = [1, 2, 3, 31, 33, 255, 257, 1023, 1025, 4095, 4097];
const LONG: [usize; 3] = [65_537, 131_071, 1_000_003];
/// For reductions to one number, and only where there is a GPU: the host takes long to add up so many.
const VERY_LONG: usize = 16 << 20;
/// What the emulated GPU does of it in a few seconds.
const EMULATED: [usize; 4] = [1, 33, 1025, 65_537];

/// How the numbers of a sum meet.
#[derive(Clone, Copy)]
enum Path {
    /// In a tree over the whole device: log₂ n levels, of which each adds at most one rounding to a part of the sum. Threads
    /// begin with a few numbers in a row, whose roundings go either way; a factor of two covers them.
    Tree,
    /// By the 256 threads of one block, n / 256 numbers in a row for each, and then a tree. Roundings in a row go either way
    /// and grow with the root of their number.
    Block,
    /// As a library multiplies: sixteen products at a time go to tensor cores, which add them to the sum before. What is cut
    /// off goes either way as the sum changes its sign, and grows with the root of the number of steps.
    Library,
    /// By one thread, all in a row: what the CPU does along an axis that is not the last.
    Row,
}

impl Path {
    /// How many roundings of f32 the sum of `n` numbers has, relative to the sum of their sizes.
    fn roundings(self, n: usize) -> f64 {
        let (n, tree) = (n as f64, 2.0 * ((n as f64).log2() + 1.0));
        match self {
            Path::Tree => tree,
            Path::Block => tree + 2.0 * (n / 256.0).sqrt(),
            Path::Library => tree + (n / 16.0).sqrt(),
            Path::Row => tree + 2.0 * n.sqrt(),
        }
    }
}

/// How the numbers of a sum lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// Side by side.
    Contiguous,
    /// Along the last axis of a transposed view.
    Strided,
    /// Along the first axis, with the results side by side.
    Leading,
}

/// The right value of a result, and the size of what was summed up for it.
#[derive(Clone, Copy)]
struct Expected {
    value: f64,
    size: f64,
}

/// An op under test: lines of numbers, each reduced along an axis.
struct Check {
    name: &'static str,
    path: Path,
    /// Whether each number has a result of its own.
    is_elementwise: bool,
    lies: &'static [Lie],
    call: fn(&Tensor, isize) -> Result<Tensor>,
    /// The results of one line.
    expected: fn(&[f64]) -> Vec<Expected>,
}

const EVERYWHERE: &[Lie] = &[Lie::Contiguous, Lie::Strided, Lie::Leading];
/// Norms of layers and losses are about the last axis.
const LAST_AXIS: &[Lie] = &[Lie::Contiguous, Lie::Strided];

/// The number at a place of a line: a hash, cut to six bits and a sign.
fn number(line: usize, place: usize) -> f32 {
    let mut hash =
        (place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (line as u64 + 1).wrapping_mul(0xD6E8_FEB8);
    hash = (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash ^= hash >> 32;
    let size = 1.0 + (hash & 63) as f32 / 64.0;
    if hash & 64 == 0 { size } else { -size }
}

fn line(line: usize, n: usize) -> Vec<f64> {
    (0..n).map(|place| f64::from(number(line, place))).collect()
}

/// Lines of numbers in f32, and the axis along which they go.
fn numbers(lie: Lie, n: usize) -> Result<(Tensor, usize, isize)> {
    let n_lines = match lie {
        Lie::Contiguous => 1,
        Lie::Strided => 3,
        Lie::Leading => 8,
    };
    let values: Vec<f32> = (0..n * n_lines).map(|at| number(at % n_lines, at / n_lines)).collect();
    match lie {
        Lie::Contiguous => Ok((Tensor::from_slice(&values, [1, n])?, 1, 1)),
        Lie::Strided => Ok((Tensor::from_slice(&values, [n, 3])?.transpose(0, 1)?, 3, 1)),
        Lie::Leading => Ok((Tensor::from_slice(&values, [n, 8])?, 8, 0)),
    }
}

/// Half the distance from one to the next number, relative to one: what rounding a result adds.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 0.5f64.powi(11),
        DType::BF16 => 0.5f64.powi(8),
        // Functions such as roots and logarithms are right to a few units in the last place.
        _ => 4.0 * 0.5f64.powi(24),
    }
}

/// The most that a result may be away: roundings of the sum, that of the result, and what f16 has near zero.
fn allowed(path: Path, n: usize, dtype: DType, expected: Expected) -> f64 {
    let least = if dtype == DType::F16 { 0.5f64.powi(25) } else { 0.0 };
    f64::from(f32::EPSILON) * path.roundings(n) * expected.size
        + rounding(dtype) * expected.value.abs() * 1.01
        + least
}

/// The first result that is too far away, in words.
fn wrong(path: Path, n: usize, dtype: DType, actual: &[f64], expected: &[Expected]) -> Option<String> {
    assert_eq!(actual.len(), expected.len());
    let is_near = |(&actual, &expected): (&f64, &Expected)| {
        (actual - expected.value).abs() <= allowed(path, n, dtype, expected)
    };
    let at = actual.iter().zip(expected).position(|pair| !is_near(pair))?;
    let (found, right) = (actual[at], expected[at]);
    let most = allowed(path, n, dtype, right);
    Some(format!(
        "result {at} of {n} numbers in {dtype} is {found:e}, but {:e} ± {most:e} is right",
        right.value
    ))
}

fn lengths(device: &Device, check: &Check, lie: Lie) -> Vec<usize> {
    if device.name() == "emulated" {
        return EMULATED.to_vec();
    }
    let mut lengths = [&SHORT[..], &LONG].concat();
    if !device.is_host() && !check.is_elementwise && lie == Lie::Contiguous {
        lengths.push(VERY_LONG);
    }
    lengths
}

/// Compares all results of an op, for every length, way to lie and dtype.
fn run(check: &Check) -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    // Kernels of the two 16-bit floats differ in a name alone, and compiling them is what takes long where there is no GPU.
    let dtypes: &[DType] = match device.name() {
        "emulated" => &[DType::F32, DType::F16],
        _ => &[DType::F32, DType::F16, DType::BF16],
    };
    for &lie in check.lies {
        let path = match check.path {
            Path::Block if device.is_host() && lie == Lie::Leading => Path::Row,
            path => path,
        };
        for n in lengths(&device, check, lie) {
            let (x, n_lines, axis) = numbers(lie, n)?;
            let expected: Vec<Vec<Expected>> =
                (0..n_lines).map(|number| (check.expected)(&line(number, n))).collect();
            for &dtype in dtypes {
                let y = (check.call)(&x.cast(dtype)?, axis)?;
                // Line by line, whichever axis they go along.
                let y = if check.is_elementwise && axis == 0 { y.transpose(0, 1)?.contiguous()? } else { y };
                let found = wrong(path, n, y.dtype(), &y.to_f64_vec()?, &expected.concat());
                assert_eq!(found, None, "{}, {lie:?}", check.name);
            }
        }
    }
    Ok(())
}

fn one(value: f64, size: f64) -> Vec<Expected> {
    vec![Expected { value, size }]
}

fn mean_of(x: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    x.iter().map(|&x| f(x)).sum::<f64>() / x.len() as f64
}

fn log_sum_exp(x: &[f64]) -> f64 {
    x.iter().map(|x| x.exp()).sum::<f64>().ln()
}

fn variance(x: &[f64]) -> f64 {
    let mean = mean_of(x, |x| x);
    mean_of(x, |x| (x - mean) * (x - mean))
}

#[test]
fn sums() -> Result<()> {
    run(&Check {
        name: "sum",
        path: Path::Tree,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| x.sum(axis),
        expected: |x| one(x.iter().sum(), x.iter().map(|x| x.abs()).sum()),
    })
}

#[test]
fn means() -> Result<()> {
    run(&Check {
        name: "mean",
        path: Path::Tree,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| x.mean(axis),
        expected: |x| one(mean_of(x, |x| x), mean_of(x, f64::abs)),
    })
}

#[test]
fn variances() -> Result<()> {
    run(&Check {
        name: "var",
        path: Path::Tree,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| x.var_corrected(axis, 0.0),
        expected: |x| one(variance(x), mean_of(x, |x| x * x)),
    })
}

#[test]
fn euclidean_norms() -> Result<()> {
    run(&Check {
        name: "norm",
        path: Path::Tree,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| x.norm(axis),
        expected: |x| {
            let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            one(norm, norm)
        },
    })
}

#[test]
fn log_sums_of_exponentials() -> Result<()> {
    run(&Check {
        name: "logsumexp",
        path: Path::Tree,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| x.logsumexp(axis),
        // A sum that is wrong by some part of itself has a logarithm that is wrong by so much.
        expected: |x| one(log_sum_exp(x), 1.0),
    })
}

#[test]
fn running_sums() -> Result<()> {
    run(&Check {
        name: "cumsum",
        path: Path::Tree,
        is_elementwise: true,
        lies: EVERYWHERE,
        call: |x, axis| x.cumsum(axis),
        expected: |x| {
            let add = |state: &mut (f64, f64), x: &f64| {
                *state = (state.0 + x, state.1 + x.abs());
                Some(Expected { value: state.0, size: state.1 })
            };
            x.iter().scan((0.0, 0.0), add).collect()
        },
    })
}

#[test]
fn softmaxes() -> Result<()> {
    run(&Check {
        name: "softmax",
        path: Path::Block,
        is_elementwise: true,
        lies: EVERYWHERE,
        call: |x, axis| x.softmax(axis),
        expected: |x| {
            let log = log_sum_exp(x);
            let share = |x: &f64| (x - log).exp();
            // Exponentials have an error of a few units in their last place for each unit of what is taken from them.
            x.iter().map(|x| Expected { value: share(x), size: share(x) * 2.0 }).collect()
        },
    })
}

#[test]
fn cross_entropies() -> Result<()> {
    run(&Check {
        name: "sparse_cross_entropy",
        path: Path::Block,
        is_elementwise: false,
        lies: LAST_AXIS,
        call: |x, _| {
            let last = x.shape()[1] as i64 - 1;
            x.sparse_cross_entropy(&Tensor::from_slice(&vec![last; x.shape()[0]], x.shape()[0])?)
        },
        expected: |x| {
            let (log, last) = (log_sum_exp(x), x[x.len() - 1]);
            one(log - last, 1.0 + log.abs())
        },
    })
}

#[test]
fn layer_norms() -> Result<()> {
    run(&Check {
        name: "layer_norm",
        path: Path::Block,
        is_elementwise: true,
        lies: LAST_AXIS,
        call: |x, _| {
            let (n, dtype) = (x.shape()[1], x.dtype());
            let (gamma, beta) = (Tensor::ones([n])?.cast(dtype)?, Tensor::zeros([n])?.cast(dtype)?);
            x.layer_norm(&gamma, &beta, 1e-5)
        },
        expected: |x| {
            let (mean, scale) = (mean_of(x, |x| x), 1.0 / (variance(x) + 1e-5).sqrt());
            // The mean is wrong by roundings of what it is the mean of.
            let sizes = mean_of(x, f64::abs) * scale;
            let normal = |x: &f64| (x - mean) * scale;
            x.iter().map(|x| Expected { value: normal(x), size: normal(x).abs() + sizes }).collect()
        },
    })
}

#[test]
fn root_mean_square_norms() -> Result<()> {
    run(&Check {
        name: "rms_norm",
        path: Path::Block,
        is_elementwise: true,
        lies: LAST_AXIS,
        call: |x, _| x.rms_norm(&Tensor::ones([x.shape()[1]])?.cast(x.dtype())?, 1e-5),
        expected: |x| {
            let scale = 1.0 / (mean_of(x, |x| x * x) + 1e-5).sqrt();
            x.iter().map(|x| Expected { value: x * scale, size: (x * scale).abs() }).collect()
        },
    })
}

#[test]
fn products_with_long_inner_sides() -> Result<()> {
    run(&Check {
        name: "matmul",
        path: Path::Library,
        is_elementwise: false,
        lies: EVERYWHERE,
        call: |x, axis| {
            let n = x.shape()[axis as usize];
            let other: Vec<f32> = (0..n).map(|place| number(100, place)).collect();
            let other = Tensor::from_slice(&other, [n, 1])?.cast(x.dtype())?;
            match axis {
                0 => other.transpose(0, 1)?.matmul(x),
                _ => x.matmul(&other),
            }
        },
        expected: |x| {
            let products = || x.iter().enumerate().map(|(place, x)| x * f64::from(number(100, place)));
            one(products().sum(), products().map(f64::abs).sum())
        },
    })
}

/// The test of the tests: sums whose parts are rounded to 16 bits, and sums that miss a number, are caught.
#[test]
fn sums_that_are_made_badly_are_caught() -> Result<()> {
    let device = device_under_test();
    let _on = device.enter();
    const ROWS: usize = 2048;
    let n = 32 * ROWS;
    let x = line(0, n);
    let expected = one(x.iter().sum(), x.iter().map(|x| x.abs()).sum());
    for dtype in [DType::F16, DType::BF16] {
        let x = numbers(Lie::Contiguous, n)?.0.cast(dtype)?.reshape([ROWS, 32])?;
        let right = x.sum(..)?.to_f64_vec()?;
        assert_eq!(wrong(Path::Tree, n, dtype, &right, &expected), None);
        let mut rows = x.narrow(0, 0, 1)?;
        for row in 1..ROWS {
            rows = rows.add(&x.narrow(0, row, 1)?)?;
        }
        let rounded = rows.sum(..)?.to_f64_vec()?;
        let text = wrong(Path::Tree, n, dtype, &rounded, &expected).expect("parts in 16 bits are too coarse");
        assert!(text.starts_with("result 0 of 65536 numbers"), "{text}");
    }
    let (short, x) = (1025, line(0, 1025));
    let expected = one(x.iter().sum(), x.iter().map(|x| x.abs()).sum());
    let missed = numbers(Lie::Contiguous, short)?.0.narrow(1, 0, short - 1)?.sum(..)?;
    assert!(wrong(Path::Tree, short, DType::F32, &missed.to_f64_vec()?, &expected).is_some());
    Ok(())
}
