//! Post 003, example 1: whether memory grows from epoch to epoch, and how a leak is found.
//!
//! Run it with `cargo run --release --example post_003_1_epochs`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use std::collections::HashMap;

use figures::in_use;
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Bytes in use after each step of all epochs, if it was one number.
    pub steady: Option<u64>,
    /// How many steps that were.
    pub n_steps: usize,
    /// With an injected leak: the line whose bytes grew most.
    pub leak: String,
    /// And by how much.
    pub leaked: u64,
}

const EPOCHS: usize = 50;

/// Trains for some epochs; `after_step` sees the predictions of each step.
fn train(device: &Device, mut after_step: impl FnMut(Tensor)) -> Result<Vec<u64>> {
    set_seed(0);
    let model =
        Sequential::new().add(Dense::new(64).activation(Activation::Relu)).add(Dense::new(10)).build([32])?;
    let variables = model.trainable_variables();
    let loss_function = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut optimizer = Adam::new(1e-3).build();
    let inputs = Tensor::randn([256, 32])?;
    let labels = Tensor::randint([256], 0, 10, DType::I64)?;
    let dataset = Dataset::from_tensor_slices([("inputs", inputs), ("labels", labels)])?.batch(64)?;

    let mut after = Vec::new();
    for _epoch in 0..EPOCHS {
        for batch in &dataset {
            let batch = batch?;
            let tape = GradientTape::new();
            let (predictions, loss) = tape.record(|| {
                let predictions = model.call(&batch["inputs"])?;
                let loss = loss_function.call(&batch["labels"], &predictions)?;
                Ok((predictions, loss))
            })?;
            let gradients = tape.variable_gradients(&loss, &variables)?;
            drop((tape, loss));
            optimizer.apply_gradients(gradients, &variables)?;
            after_step(predictions);
            after.push(in_use(device));
        }
    }
    Ok(after)
}

/// The bytes of each line that holds some.
fn by_line(device: &Device) -> HashMap<String, u64> {
    let mut lines = HashMap::new();
    for block in device.snapshot().blocks() {
        *lines.entry(block.site.to_string()).or_insert(0) += block.requested;
    }
    lines
}

/// Runs the post's program, as it is and with a leak, and measures it.
pub fn measure() -> Result<Figures> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let after = train(&device, drop)?;
    // The first step makes the optimizer's state.
    let steady = after.windows(2).all(|pair| pair[0] == pair[1]).then_some(after[0]);

    let before = by_line(&device);
    let mut kept = Vec::new();
    train(&device, |predictions| kept.push(predictions))?;
    let grown = by_line(&device).into_iter().map(|(line, bytes)| {
        let already = before.get(&line).copied().unwrap_or(0);
        (bytes - already.min(bytes), line)
    });
    let (leaked, leak) = grown.max().unwrap_or_default();
    Ok(Figures { steady, n_steps: after.len(), leak, leaked })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 003, example 1: fifty epochs",
        "memory increases progressively unless tensors are deleted",
        "false: it does not",
        &[
            table::words("steps", figures.n_steps.to_string()),
            table::bytes("in use after each of them", figures.steady.unwrap_or(0)),
            table::bytes("with predictions kept in a list: grown by", figures.leaked),
            table::words("named by the snapshot as made at", figures.leak),
        ],
    );
    Ok(())
}
