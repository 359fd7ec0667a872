//! Post 001, example 2: how the memory of a training step grows with the batch.
//!
//! Run it with `cargo run --release --example post_001_2_batch_size`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::{in_use, owned};
use plimsoll::prelude::*;

/// What the example measures, in bytes that were asked for.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Parameters, gradients and the optimizer's two moments, whatever the batch.
    pub fixed: u64,
    /// The optimizer's buffer for learning rate, step number and the like.
    pub control: u64,
    /// What one more example adds after the forward pass.
    pub per_example: u64,
    /// The loss of each batch size; the labels are no distribution, and that is accepted.
    pub losses: Vec<f32>,
}

const BATCH_SIZES: [usize; 3] = [32, 128, 512];

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = Sequential::new()
        .add(Dense::new(1024).activation(Activation::Relu))
        .add(Dense::new(10))
        .build([784])?;
    let loss_fn = CategoricalCrossentropy::new().from_logits(true);
    let mut optimizer = Adam::new(1e-3).build();
    let variables = model.trainable_variables();

    let (mut fixed, mut control) = (0, 0);
    let (mut after_forward, mut losses) = (Vec::new(), Vec::new());
    for batch_size in BATCH_SIZES {
        let before = in_use(&device);
        let x_batch = Tensor::randn([batch_size, 784])?;
        let y_batch = Tensor::randn([batch_size, 10])?;

        let tape = GradientTape::new();
        let (predictions, loss) = tape.record(|| {
            let predictions = model.call(&x_batch)?;
            let loss = loss_fn.call(&y_batch, &predictions)?;
            Ok((predictions, loss))
        })?;
        after_forward.push(in_use(&device) - before);
        drop(predictions);

        let gradients = tape.variable_gradients(&loss, &variables)?;
        let gradient_bytes: u64 = gradients.iter().map(|gradient| gradient.n_bytes() as u64).sum();
        optimizer.apply_gradients(gradients, &variables)?;
        let control_buffer =
            optimizer.variables().into_iter().find(|state| state.name().ends_with("control"));
        control = control_buffer.map_or(0, |control| control.n_bytes() as u64);
        fixed =
            owned(&device, Owner::Parameters) + owned(&device, Owner::Optimizer) - control + gradient_bytes;
        losses.push(loss.item::<f32>()?);
    }
    let [_, smaller, larger] = BATCH_SIZES.map(|batch| batch as u64);
    Ok(Figures {
        fixed,
        control,
        per_example: (after_forward[2] - after_forward[1]) / (larger - smaller),
        losses,
    })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 001, example 2: the batch size",
        "memory grows in proportion to the batch",
        "false: a fixed part, and a part for each example",
        &[
            table::bytes("fixed: parameters, gradients, Adam's two moments", figures.fixed),
            table::bytes("the optimizer's control buffer", figures.control),
            table::bytes("for each example, after the forward pass", figures.per_example),
            table::bytes("so at a batch of 32", figures.fixed + 32 * figures.per_example),
            table::bytes("and at a batch of 512", figures.fixed + 512 * figures.per_example),
        ],
    );
    Ok(())
}
