//! Speed of the reductions and of the random fills: nanoseconds per element and bytes per second, best of repeats.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use plimsoll_cpu::operand::Operand;
use plimsoll_cpu::random::{self, Draw};
use plimsoll_cpu::reduce::{ArgMax, Fold, LogSumExp, Max, Sum, Variance, reduce};
use plimsoll_cpu::threads;

const LARGE: usize = 16 << 20;

fn main() {
    println!("{} threads", threads::n_threads());
    let values: Vec<f32> = (0..LARGE).map(|i| (i % 1013) as f32 * 0.01 - 5.0).collect();
    folds(&Sum::<f32, f32>::new(), "sum", &values);
    folds(&Max::<f32>::new(), "max", &values);
    folds(&ArgMax::<f32>::new(), "argmax", &values);
    folds(&Variance::<f32, f32>::new(1.0, false), "variance", &values);
    folds(&LogSumExp::<f32, f32>::new(), "logsumexp", &values);
    let narrow: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
    folds(&Sum::<bf16, f32>::new(), "sum bf16", &narrow);
    small();
    fills();
}

/// Prints the fastest of some runs.
fn report(name: &str, n_elems: usize, n_bytes: usize, mut f: impl FnMut()) {
    f();
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    let seconds = (0..10).map(time).fold(f64::INFINITY, f64::min);
    let (per_elem, rate) = (seconds * 1e9 / n_elems as f64, n_bytes as f64 / seconds / 1e9);
    println!("{name:<32} {:>9.3} ms {per_elem:>8.3} ns/element {rate:>7.1} GB/s", seconds * 1e3);
}

fn folds<F: Fold>(fold: &F, name: &str, values: &[F::In]) {
    let mut output = vec![F::Out::default(); LARGE];
    for (shape, axis) in [
        ([1, LARGE], 1),
        ([4096, 4096], 1),
        ([4096, 4096], 0),
        ([LARGE / 64, 64], 1),
        ([LARGE / 64, 64], 0),
        ([LARGE / 4, 4], 1),
        ([LARGE / 4, 4], 0),
    ] {
        let strides = [shape[1] as isize, 1];
        report(&format!("{name} {shape:?} axis {axis}"), LARGE, size_of_val(values), || {
            let input = Operand::new(values.as_ptr(), &strides);
            let output = Operand::new(output.as_mut_ptr(), &[]);
            // SAFETY: the shape covers the slice, and the output is at least as long as needed.
            unsafe { reduce(fold, &shape, |other| other == axis, input, output) };
        });
    }
}

fn small() {
    const N_CALLS: usize = 10_000;
    for shape in [[1, 8], [8, 8], [32, 128]] {
        let values = vec![1f32; shape[0] * shape[1]];
        let mut output = vec![0f32; 128];
        for axis in [0, 1] {
            report(
                &format!("{N_CALLS} sums {shape:?} axis {axis}"),
                N_CALLS * values.len(),
                N_CALLS * size_of_val(&*values),
                || {
                    for _ in 0..N_CALLS {
                        let strides = [shape[1] as isize, 1];
                        let input = Operand::new(black_box(values.as_ptr()), &strides);
                        let output = Operand::new(output.as_mut_ptr(), &[]);
                        // SAFETY: the shape covers the slice, and the output is at least as long as needed.
                        unsafe {
                            reduce(&Sum::<f32, f32>::new(), &shape, |other| other == axis, input, output)
                        };
                    }
                },
            );
        }
    }
}

fn fills() {
    let mut output = vec![0f32; LARGE];
    let draw = Draw { seed: 1, number: 0 };
    report("uniform f32", LARGE, 4 * LARGE, || {
        // SAFETY: the vector has that many elements.
        unsafe { random::uniform(LARGE, output.as_mut_ptr(), draw, 0.0, 1.0) };
    });
    report("normal f32", LARGE, 4 * LARGE, || {
        // SAFETY: the vector has that many elements.
        unsafe { random::normal(LARGE, output.as_mut_ptr(), draw, 0.0, 1.0) };
    });
}
