//! Post 002, example 3: what a dataset of tensor slices holds while it is gone through in batches.
//!
//! Run it with `cargo run --release --example post_002_3_dataset_batches`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::owned;
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// The bytes of features and labels.
    pub source: u64,
    /// The bytes of one batch.
    pub batch: u64,
    /// The most bytes of data at any time, without rounding.
    pub peak: u64,
    /// Batches that came out of one epoch.
    pub n_batches: usize,
}

const EXAMPLES: usize = 10_000;
const WIDTH: usize = 256;
const BATCH_SIZE: usize = 64;

/// Goes through an epoch of training with that many batches made ahead.
pub fn measure(depth: usize) -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = Sequential::new().add(Dense::new(10)).build([WIDTH])?;
    let variables = model.trainable_variables();
    let compute_loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut optimizer = SGD::new(0.01).build();

    let features = Tensor::randn([EXAMPLES, WIDTH])?;
    let labels = Tensor::randint([EXAMPLES], 0, 10, DType::I64)?;
    let source = (features.n_bytes() + labels.n_bytes()) as u64;
    let dataset = Dataset::from_tensor_slices((features, labels))?.batch_exactly(BATCH_SIZE)?.prefetch(depth);

    let (mut batch_bytes, mut peak, mut n_batches) = (0, 0, 0);
    for batch in &dataset {
        let [batch_features, batch_labels] = batch?.tensors()?;
        batch_bytes = (batch_features.n_bytes() + batch_labels.n_bytes()) as u64;
        let tape = GradientTape::new();
        let loss = tape.record(|| compute_loss.call(&batch_labels, &model.call(&batch_features)?))?;
        let gradients = tape.variable_gradients(&loss, &variables)?;
        optimizer.apply_gradients(gradients, &variables)?;
        peak = peak.max(owned(&device, Owner::Data));
        n_batches += 1;
    }
    Ok(Figures { source, batch: batch_bytes, peak, n_batches })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let (plain, ahead) = (measure(0)?, measure(2)?);
    table::print(
        "post 002, example 3: batches of a dataset",
        "the entire dataset is not loaded",
        "false: the arrays are copied, 157 MB became 470",
        &[
            table::bytes("the arrays themselves", plain.source),
            table::bytes("one batch", plain.batch),
            table::bytes("most data in use, no prefetch: arrays and 1 batch", plain.peak),
            table::bytes("most data in use, prefetch(2): arrays and 3 batches", ahead.peak),
        ],
    );
    Ok(())
}
