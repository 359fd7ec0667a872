//! Post 001, example 3: a persistent tape over x² and x⁴.
//!
//! Run it with `cargo run --release --example post_001_3_persistent_tape`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// The derivative of x⁴ at 1.
    pub dz_dx: f32,
    /// The derivative of x² at 1.
    pub dy_dx: f32,
    /// Bytes held by the tape and by nobody else, while it lives.
    pub own_with_tape: u64,
    /// Bytes labelled as saved once the tape is dropped.
    pub own_without_tape: u64,
    /// Bytes in use before 10,000 persistent tapes in a loop.
    pub loop_before: u64,
    /// Bytes in use after them.
    pub loop_after: u64,
    /// The most in use during the loop.
    pub loop_peak: u64,
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::from(1.0f32)?).named("x");

    let tape = GradientTape::new().persistent(true);
    let (y, z) = tape.record(|| {
        let y = x.mul(&x)?;
        let z = y.mul(&y)?;
        Ok((y, z))
    })?;
    let [dz_dx] = tape.gradient(&z, [&x])?;
    let [dy_dx] = tape.gradient(&y, [&x])?;
    let (dz_dx, dy_dx) = (dz_dx.item()?, dy_dx.item()?);
    drop(y);
    let own_with_tape = tape.saved().own_bytes() as u64;
    drop(tape);
    let own_without_tape = device.stats().rows().get(Owner::Saved);
    drop(z);

    let loop_before = device.stats().in_use;
    device.pool().reset_peaks();
    for _ in 0..10_000 {
        let tape = GradientTape::new().persistent(true);
        let z = tape.record(|| x.mul(&x)?.mul(2.0))?;
        tape.gradient(&z, [&x])?;
    }
    let stats = device.stats();
    Ok(Figures {
        dz_dx,
        dy_dx,
        own_with_tape,
        own_without_tape,
        loop_before,
        loop_after: stats.in_use,
        loop_peak: stats.peak_in_use,
    })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 001, example 3: a persistent tape",
        "not deleting the tape leaks memory",
        "false in a loop: each tape goes when its name is bound anew",
        &[
            table::words("dz/dx", format!("{:.1}", figures.dz_dx)),
            table::words("dy/dx", format!("{:.1}", figures.dy_dx)),
            table::bytes("the tape's own while it lives (y)", figures.own_with_tape),
            table::bytes("the tape's own once it is dropped", figures.own_without_tape),
            table::bytes("in use before 10,000 tapes", figures.loop_before),
            table::bytes("in use after 10,000 tapes", figures.loop_after),
            table::bytes("most in use meanwhile", figures.loop_peak),
        ],
    );
    Ok(())
}
