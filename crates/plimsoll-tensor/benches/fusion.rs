//! What fusion gains for networks that people write with plain ops: milliseconds and bytes of a step, eagerly, from its program as
//! it was recorded, and after all passes: `cargo bench -p plimsoll-tensor --bench fusion`. `PLIMSOLL_TEST_DEVICE=cuda:0` measures
//! the first GPU, in bfloat16 and at a larger size.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use plimsoll_tensor::{DType, Device, Function, GradientTape, Result, Tensor};

const N_ROUNDS: usize = 20;

/// Milliseconds of one call, and the most bytes that it had in use beyond what was there.
fn measured(device: &Device, mut f: impl FnMut() -> Result<()>) -> Result<(f64, u64)> {
    f()?;
    device.synchronize()?;
    device.pool().reset_peaks();
    let before = device.stats().in_use;
    let mut best = Duration::MAX;
    for _ in 0..N_ROUNDS {
        let start = Instant::now();
        f()?;
        device.synchronize()?;
        best = best.min(start.elapsed());
    }
    Ok((best.as_secs_f64() * 1e3, device.stats().peak_in_use - before))
}

/// A gate and a norm by hand: `rms_norm(silu(a) * b + x) * scale`, and all gradients of its sum.
fn gated_norm(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let tape = GradientTape::new();
    x.iter().try_for_each(|x| tape.watch(x))?;
    let loss = tape.record(|| {
        let gated = x[0].silu()?.mul(&x[1])?.dropout(0.1)?.add(&x[2])?;
        let norm = gated.square()?.mean_keepdims(-1)?.affine(1.0, 1e-5)?.rsqrt()?;
        gated.mul(&norm)?.mul(&x[3])?.sum(..)
    })?;
    tape.gradient(&loss, [&x[0], &x[1], &x[2], &x[3]]).map(Vec::from)
}

/// A loss by hand, `mean(huber(x - y) * weight)`, and the gradient of the first.
fn weighted_huber(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let tape = GradientTape::new();
    tape.watch(&x[0])?;
    let loss = tape.record(|| {
        let error = x[0].sub(&x[1])?.abs()?;
        let (near, far) = (error.square()?.affine(0.5, 0.0)?, error.affine(1.0, -0.5)?);
        error.lt(1.0)?.where_(&near, &far)?.mul(&x[3])?.mean(..)
    })?;
    tape.gradient(&loss, [&x[0]]).map(Vec::from)
}

fn main() -> Result<()> {
    let name = std::env::var("PLIMSOLL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let (device, dtype, rows) = match name.as_str() {
        "cpu" => (Device::cpu(), DType::F32, 4096),
        _ => (Device::cuda(0)?, DType::BF16, 16384),
    };
    let _on = device.enter();
    let shape = [rows, 1024];
    let mut inputs = (0..3).map(|_| Tensor::normal(shape, 0.0, 1.0, dtype)).collect::<Result<Vec<_>>>()?;
    inputs.push(Tensor::normal([1024], 0.0, 1.0, dtype)?);
    println!("{shape:?} {dtype} on {device}");
    println!("{:<16} {:>22} {:>22} {:>22}", "", "eager", "program", "passes");
    type Step = fn(&[Tensor]) -> Result<Vec<Tensor>>;
    for (name, step) in [("gated norm", gated_norm as Step), ("weighted huber", weighted_huber as Step)] {
        let function = |passes: bool| Function::new(move |x: Vec<Tensor>| step(&x)).passes(passes);
        let (plain, passed) = (function(false), function(true));
        let figures = [
            measured(&device, || step(&inputs).map(drop))?,
            measured(&device, || plain.call(inputs.clone()).map(drop))?,
            measured(&device, || passed.call(inputs.clone()).map(drop))?,
        ];
        let cell =
            |(ms, bytes): (f64, u64)| format!("{ms:.3} ms {:.0} MiB", bytes as f64 / f64::from(1 << 20));
        let [eager, program, passes] = figures.map(cell);
        println!("{name:<16} {eager:>22} {program:>22} {passes:>22}");
    }
    Ok(())
}
