//! Ops through the public interface, in the shapes of the peers' benchmark: `w6_matmul1024`, `w6_matmul2048`,
//! `w6_add16m` and `w7_eager`. Each prints the best and the median of its repeats.
//!
//! Run with `cargo bench -p plimsoll --bench ops [NAME]`; `PLIMSOLL_REPEATS` sets the number of repeats.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::Instant;

use plimsoll::prelude::*;

fn main() -> Result<()> {
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    for (name, bench) in BENCHES {
        if name.contains(&*wanted) {
            bench(name)?;
        }
    }
    Ok(())
}

type Bench = fn(&str) -> Result<()>;

const BENCHES: &[(&str, Bench)] = &[
    ("w6_matmul1024", |name| matmul(name, 1024)),
    ("w6_matmul2048", |name| matmul(name, 2048)),
    ("w6_add16m", add),
    ("w7_eager", eager),
];

/// Calls `f` in repeats of about a fifth of a second; returns the least and the median time of one call, in seconds.
fn time(mut f: impl FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let repeats = std::env::var("PLIMSOLL_REPEATS").ok().and_then(|n| n.parse().ok()).unwrap_or(15);
    f()?;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..repeats {
        let (start, mut calls) = (Instant::now(), 0);
        while calls < 2 || start.elapsed().as_secs_f64() < 0.2 {
            f()?;
            calls += 1;
        }
        times.push(start.elapsed().as_secs_f64() / f64::from(calls));
    }
    times.sort_by(f64::total_cmp);
    Ok((times[0], times[times.len() / 2]))
}

fn matmul(name: &str, n: usize) -> Result<()> {
    let (a, b) = (Tensor::randn([n, n])?, Tensor::randn([n, n])?);
    let (best, median) = time(|| a.matmul(&b).map(drop))?;
    let gflops = |seconds: f64| 2e-9 * (n as f64).powi(3) / seconds;
    println!("{name}: {:.1} GFLOP/s best, {:.1} median", gflops(best), gflops(median));
    Ok(())
}

fn add(name: &str) -> Result<()> {
    let n = 16 << 20;
    let (a, b) = (Tensor::randn(n)?, Tensor::randn(n)?);
    let (best, median) = time(|| a.add(&b).map(drop))?;
    let rate = |seconds: f64| 12e-9 * n as f64 / seconds;
    println!("{name}: {:.1} GB/s best, {:.1} median", rate(best), rate(median));
    Ok(())
}

fn eager(name: &str) -> Result<()> {
    let (x, b) = (Variable::new(Tensor::randn(8)?), Tensor::randn(8)?);
    let (best, median) = time(|| {
        let tape = GradientTape::new();
        let sum = tape.record(|| (0..1000).try_fold(x.value(), |y, _| y.add(&b))?.sum(..))?;
        tape.gradient(&sum, [&x]).map(drop)
    })?;
    println!("{name}: {:.3} µs per op best, {:.3} median", best * 1e3, median * 1e3);
    Ok(())
}
