//! Post 002, example 2: a model and its gradients as a function that runs from its program.
//!
//! Run it with `cargo run --release --example post_002_2_function`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::bits;
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// The most bytes in use of a step that runs eagerly.
    pub eager_peak: u64,
    /// The same of a step that runs from its program.
    pub graph_peak: u64,
    /// What the program was predicted to need.
    pub planned_peak: u64,
    /// Checksums of loss and gradients, eagerly and from the program.
    pub bits: [u64; 2],
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let mut layers = Sequential::new();
    for _ in 0..8 {
        layers = layers.add(Dense::new(256).activation(Activation::Relu));
    }
    let model = layers.add(Dense::new(64)).build([128])?;
    let variables = model.trainable_variables();
    let (x, target) = (Tensor::randn([512, 128])?, Tensor::randn([512, 64])?);

    let step = |(x, target): (Tensor, Tensor)| -> Result<Vec<Tensor>> {
        let tape = GradientTape::new();
        let loss = tape.record(|| model.call(&x)?.sub(&target)?.square()?.mean(..))?;
        let gradients = tape.variable_gradients(&loss, &variables)?;
        Ok([loss.reshape([1])?].into_iter().chain(gradients).collect())
    };
    let measured = |f: &dyn Fn((Tensor, Tensor)) -> Result<Vec<Tensor>>| -> Result<(u64, u64)> {
        device.pool().reset_peaks();
        let values = f((x.clone(), target.clone()))?;
        let peak = device.stats().peak_in_use;
        Ok((peak, bits(&values)?))
    };
    let function = Function::new(step);
    let planned_peak = function.plan((x.clone(), target.clone()))?.peak;
    let (eager_peak, eager_bits) = measured(&step)?;
    let (graph_peak, graph_bits) = measured(&|arguments| function.call(arguments))?;
    Ok(Figures { eager_peak, graph_peak, planned_peak, bits: [eager_bits, graph_bits] })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    let same = if figures.bits[0] == figures.bits[1] { "the same bits" } else { "DIFFERENT bits" };
    table::print(
        "post 002, example 2: a function that runs from its program",
        "graph mode uses less memory",
        "false: 15 activations at the peak, 9 eagerly",
        &[
            table::bytes("peak of a step, eagerly", figures.eager_peak),
            table::bytes("peak of a step from its program", figures.graph_peak),
            table::bytes("as it was planned", figures.planned_peak),
            table::words("loss and gradients", same),
        ],
    );
    Ok(())
}
