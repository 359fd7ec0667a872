//! Post 004, example 1: whether memory comes back when a model is dropped.
//!
//! Run it with `cargo run --release --example post_004_1_dispose`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use plimsoll::prelude::*;

/// What the example measures, in bytes.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Committed while the model is alive.
    pub with_model: u64,
    /// Committed when the function has returned.
    pub after: u64,
    /// How much the process's resident memory grows from the 10th to the 200th model.
    pub growth: i64,
}

/// Makes a model, calls it once and drops it; returns what the pool had committed meanwhile.
fn create_and_dispose(device: &Device) -> Result<u64> {
    let model = Sequential::new()
        .add(Dense::new(100).activation(Activation::Relu))
        .add(Dense::new(10))
        .build([10])?;
    model.call(&Tensor::randn([1, 10])?)?;
    Ok(device.stats().committed)
}

/// The bytes of this process that are resident.
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<i64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let with_model = create_and_dispose(&device)?;
    let after = device.stats().committed;
    for _ in 1..10 {
        create_and_dispose(&device)?;
    }
    let before = resident();
    for _ in 10..200 {
        create_and_dispose(&device)?;
    }
    Ok(Figures { with_model, after, growth: resident() - before })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 004, example 1: a model that is disposed of",
        "memory stays occupied",
        "true on a GPU; on the host 200 models leak 29 MB",
        &[
            table::bytes("committed while the model is alive", figures.with_model),
            table::bytes("committed when the function has returned", figures.after),
            table::words("growth of the process over 190 models more", format!("{} B", figures.growth)),
        ],
    );
    Ok(())
}
