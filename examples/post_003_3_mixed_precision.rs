//! Post 003, example 3: what mixed precision saves, and what it does not.
//!
//! Run it with `cargo run --release --example post_003_3_mixed_precision`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::in_use;
use plimsoll::prelude::*;

/// What one model needs under one policy, in bytes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Needs {
    /// Saved for backward after the forward pass.
    pub saved: u64,
    /// Everything after the forward pass, with the optimizer's state, and the gradients that backward adds.
    pub total: u64,
}

/// What a model needs in float32 and in mixed_float16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Under `float32`.
    pub full: Needs,
    /// Under `mixed_float16`.
    pub mixed: Needs,
}

impl Figures {
    /// The share of what is saved for backward.
    pub fn saved_ratio(&self) -> f64 {
        self.mixed.saved as f64 / self.full.saved as f64
    }

    /// The share of everything.
    pub fn total_ratio(&self) -> f64 {
        self.mixed.total as f64 / self.full.total as f64
    }
}

/// A model whose activations outweigh its parameters.
pub fn convolutional() -> Sequential {
    Sequential::new()
        .add(Conv2D::new(16, 3).same().activation(Activation::Relu))
        .add(Conv2D::new(16, 3).same().activation(Activation::Relu))
        .add(GlobalAveragePooling2D::new())
        .add(Dense::new(10))
}

/// The model of the posts, whose parameters outweigh its activations.
pub fn perceptron() -> Sequential {
    Sequential::new().add(Dense::new(1024).activation(Activation::Relu)).add(Dense::new(10))
}

/// Trains a step under both policies and measures it.
pub fn measure(layers: &Sequential, example: &[usize], batch: usize) -> Result<Figures> {
    let needs = |policy| with_policy(policy, || needs(layers, example, batch));
    Ok(Figures { full: needs(Policy::Float32)?, mixed: needs(Policy::MixedFloat16)? })
}

fn needs(layers: &Sequential, example: &[usize], batch: usize) -> Result<Needs> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = layers.build(example)?;
    let variables = model.trainable_variables();
    let loss_function = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut optimizer = Adam::new(1e-3).build();
    let mut found = Needs { saved: 0, total: 0 };
    // The second step is the usual one: the optimizer's state is there.
    for _step in 0..2 {
        let inputs = Tensor::randn([&[batch], example].concat())?.cast(model.policy().compute_dtype())?;
        let labels = Tensor::randint([batch], 0, 10, DType::I64)?;
        let tape = GradientTape::new();
        let loss = tape.record(|| loss_function.call(&labels, &model.call(&inputs)?))?;
        drop(inputs);
        found.saved = tape.saved().own_bytes() as u64;
        found.total = in_use(&device);
        let gradients = tape.variable_gradients(&loss, &variables)?;
        found.total += gradients.iter().map(|gradient| gradient.n_bytes() as u64).sum::<u64>();
        optimizer.apply_gradients(gradients, &variables)?;
    }
    Ok(found)
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let (images, rows) = (measure(&convolutional(), &[32, 32, 3], 64)?, measure(&perceptron(), &[784], 512)?);
    let percent = |ratio: f64| format!("{ratio:.2}");
    table::print(
        "post 003, example 3: mixed precision",
        "mixed precision drastically reduces memory",
        "it saves activations only; the names in the post are gone",
        &[
            table::bytes("convolutions, batch 64: kept in float32", images.full.saved),
            table::bytes("kept in mixed_float16", images.mixed.saved),
            table::words("share of what is kept", percent(images.saved_ratio())),
            table::words("share of everything", percent(images.total_ratio())),
            table::bytes("784-1024-10, batch 512: everything in float32", rows.full.total),
            table::bytes("everything in mixed_float16", rows.mixed.total),
            table::words("share of everything", percent(rows.total_ratio())),
        ],
    );
    Ok(())
}
