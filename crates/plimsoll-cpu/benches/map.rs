//! Speed of the elementwise drivers: nanoseconds per call, and bytes per second through memory, best of repeats.
//!
//! The plain loop beside `add` is what the compiler makes of the obvious code on each of two threads, into a buffer that
//! exists already.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use plimsoll_cpu::map::{Operand, map1, map2};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::threads;

const LARGE: usize = 16 << 20;
const SIDE: usize = 4096;

fn main() {
    println!("{} threads", threads::n_threads());
    small();
    large();
    layouts();
    functions();
}

/// Seconds of the fastest of some runs.
fn best(n_runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    (0..n_runs).map(time).fold(f64::INFINITY, f64::min)
}

fn report(name: &str, n_elems: usize, n_bytes: usize, seconds: f64) {
    let (per_elem, rate) = (seconds * 1e9 / n_elems as f64, n_bytes as f64 / seconds / 1e9);
    println!("{name:<28} {:>9.3} ms {per_elem:>8.3} ns/element {rate:>7.1} GB/s", seconds * 1e3);
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 1013) as f32 * 0.01 - 5.0).collect()
}

#[inline(always)]
fn add_tile(a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = a + b;
    }
}

/// Adds over `shape` with the given strides of the right-hand side.
fn add(shape: &[usize], strides: &[isize], a: &[f32], b: &[f32], b_strides: &[isize], y: &mut [f32]) {
    // SAFETY: the benchmarks below pass strides that stay inside their slices.
    unsafe {
        map2(
            shape,
            Operand::new(y.as_mut_ptr(), strides),
            Operand::new(a.as_ptr(), strides),
            Operand::new(b.as_ptr(), b_strides),
            #[inline(always)]
            |a: &[f32], b: &[f32], y: &mut [f32]| add_tile(a, b, y),
        );
    }
}

fn small() {
    for len in [8, 1024, 16 * 1024] {
        let (a, b, mut y) = (numbers(len), numbers(len), numbers(len));
        const N_CALLS: usize = 10_000;
        let seconds = best(10, || {
            for _ in 0..N_CALLS {
                add(black_box(&[len]), &[1], black_box(&a), &b, &[1], &mut y);
            }
        });
        println!("add [{len}]: {:.1} ns per call", seconds * 1e9 / N_CALLS as f64);
        let seconds = best(10, || {
            for _ in 0..N_CALLS {
                add(black_box(&[len]), &[1], black_box(&a), &b, &[0], &mut y);
            }
        });
        println!("add [{len}] and a scalar: {:.1} ns per call", seconds * 1e9 / N_CALLS as f64);
    }
}

fn large() {
    let (a, b, mut y) = (numbers(LARGE), numbers(LARGE), numbers(LARGE));
    let seconds = best(10, || {
        std::thread::scope(|scope| {
            let half = LARGE / 2;
            let (y_low, y_high) = y.split_at_mut(half);
            let (a_high, b_high) = (&a[half..], &b[half..]);
            scope.spawn(move || add_tile(a_high, b_high, y_high));
            add_tile(&a[..half], &b[..half], y_low);
        });
    });
    report("plain loop, two threads", LARGE, 12 * LARGE, seconds);
    let seconds = best(10, || add(&[LARGE], &[1], &a, &b, &[1], &mut y));
    report("add", LARGE, 12 * LARGE, seconds);
    let seconds = best(10, || threads::with_threads(1, || add(&[LARGE], &[1], &a, &b, &[1], &mut y)));
    report("add, one thread", LARGE, 12 * LARGE, seconds);
    let ptr = y.as_mut_ptr();
    let seconds = best(10, || {
        // SAFETY: output and left-hand side are the same memory.
        unsafe {
            map2(
                &[LARGE],
                Operand::new(ptr, &[1]),
                Operand::new(ptr.cast_const(), &[1]),
                Operand::new(b.as_ptr(), &[1]),
                #[inline(always)]
                |a: &[f32], b: &[f32], y: &mut [f32]| add_tile(a, b, y),
            );
        }
    });
    report("add in place", LARGE, 12 * LARGE, seconds);
    let narrow: Vec<bf16> = a.iter().map(|&x| bf16::from_f32(x)).collect();
    let mut output = narrow.clone();
    let seconds = best(10, || {
        // SAFETY: three slices of the same length.
        unsafe {
            map2(
                &[LARGE],
                Operand::new(output.as_mut_ptr(), &[1]),
                Operand::new(narrow.as_ptr(), &[1]),
                Operand::new(narrow.as_ptr(), &[1]),
                #[inline(always)]
                |a: &[f32], b: &[f32], y: &mut [f32]| add_tile(a, b, y),
            );
        }
    });
    report("add bf16", LARGE, 6 * LARGE, seconds);
}

fn layouts() {
    let side = SIDE as isize;
    let (a, b, mut y) = (numbers(LARGE), numbers(LARGE), numbers(LARGE));
    for (name, strides) in
        [("scalar", [0, 0]), ("row", [0, 1]), ("column", [1, 0]), ("transposed", [1, side])]
    {
        let seconds = best(10, || add(&[SIDE, SIDE], &[side, 1], &a, &b, &strides, &mut y));
        report(&format!("add {name}"), LARGE, if name == "transposed" { 12 } else { 8 } * LARGE, seconds);
    }
    let seconds = best(10, || add(&[LARGE / 16, 16], &[16, 1], &a, &b, &[0, 1], &mut y));
    report("add short row of 16", LARGE, 8 * LARGE, seconds);
}

fn functions() {
    let (x, mut y) = (numbers(1 << 20), numbers(1 << 20));
    let mut time = |name: &str, f: &dyn Fn(&[f32], &mut [f32])| {
        let seconds = best(10, || threads::with_threads(1, || f(&x, &mut y)));
        report(name, x.len(), 8 * x.len(), seconds);
    };
    /// Times one function on one thread, within the cache.
    macro_rules! time {
        ($name:literal, $f:expr) => {
            time($name, &|x, y| {
                // SAFETY: two slices of the same length.
                unsafe {
                    map1(
                        &[x.len()],
                        Operand::new(y.as_mut_ptr(), &[1]),
                        Operand::new(x.as_ptr(), &[1]),
                        #[inline(always)]
                        |x: &[f32], y: &mut [f32]| {
                            for (y, x) in y.iter_mut().zip(x) {
                                *y = $f(*x);
                            }
                        },
                    );
                }
            });
        };
    }
    println!("one thread, 1 Mi elements:");
    let scale = black_box(1.5f32);
    time!("neg", |x: f32| -x);
    time!("times a captured number", |x: f32| x * scale);
    time!("exp", Real::exp);
    time!("exp_m1", Real::exp_m1);
    time!("ln", Real::ln);
    time!("ln_1p", Real::ln_1p);
    time!("tanh", Real::tanh);
    time!("sigmoid", Real::sigmoid);
    time!("erf", Real::erf);
    time!("gelu (tanh)", |x: f32| 0.5 * x * (1.0 + Real::tanh(0.797_884_6 * (x + 0.044_715 * x * x * x))));
    time!("sin", Real::sin);
    time!("sqrt", Real::sqrt);
    time!("round", Real::round);
    time!("pow 1.7", |x: f32| Real::pow(x, 1.7));
    time!("std exp, for comparison", f32::exp);
}
