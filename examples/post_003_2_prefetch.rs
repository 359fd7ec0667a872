//! Post 003, example 2: what prefetching costs, and whether a dataset made anew every epoch leaves anything behind.
//!
//! Run it with `cargo run --release --example post_003_2_prefetch`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::{in_use, owned};
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// The bytes of the source.
    pub source: u64,
    /// The allowance that was given to the pipeline.
    pub allowance: u64,
    /// The bytes of data while an epoch runs, at every step of every epoch: the least and the most.
    pub data: (u64, u64),
    /// Bytes in use after the first epoch and after the last.
    pub in_use: (u64, u64),
    /// Threads of the process after the first epoch and after the last.
    pub threads: (usize, usize),
}

const EPOCHS: usize = 50;

/// The threads of this process. The system lists a thread for a moment after it has ended and been waited for, so the
/// least of many looks counts; one that goes on is in all of them.
fn n_threads() -> usize {
    let look = |_| {
        std::thread::yield_now();
        std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
    };
    (0..100).map(look).min().unwrap_or(0)
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = Sequential::new().add(Dense::new(10)).build([128])?;
    let variables = model.trainable_variables();
    let loss_function = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut optimizer = Adam::new(1e-3).build();
    let data = (Tensor::randn([512, 128])?, Tensor::randint([512], 0, 10, DType::I64)?);
    let source = (data.0.n_bytes() + data.1.n_bytes()) as u64;
    let allowance = Bytes::kib(256);

    let (mut least, mut most) = (u64::MAX, 0);
    let mut after = Vec::new();
    for _epoch in 0..EPOCHS {
        let dataset = Dataset::from_tensor_slices(data.clone())?.batch(32)?;
        for batch in &dataset.prefetch(AUTOTUNE).allowance(allowance) {
            let [inputs, labels] = batch?.tensors()?;
            let tape = GradientTape::new();
            let loss = tape.record(|| loss_function.call(&labels, &model.call(&inputs)?))?;
            let gradients = tape.variable_gradients(&loss, &variables)?;
            optimizer.apply_gradients(gradients, &variables)?;
            let now = owned(&device, Owner::Data);
            (least, most) = (least.min(now), most.max(now));
        }
        after.push((in_use(&device), n_threads()));
    }
    let (first, last) = (after[0], after[EPOCHS - 1]);
    Ok(Figures {
        source,
        allowance: allowance.get(),
        data: (least, most),
        in_use: (first.0, last.0),
        threads: (first.1, last.1),
    })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    table::print(
        "post 003, example 2: prefetch",
        "prefetching minimises memory",
        "false: it adds buffers",
        &[
            table::bytes("the source", figures.source),
            table::bytes("the pipeline's buffers, at every step", figures.data.1 - figures.source),
            table::bytes("which is within its allowance of", figures.allowance),
            table::bytes("in use after epoch 1", figures.in_use.0),
            table::bytes("in use after epoch 50", figures.in_use.1),
            table::words(
                "threads after epoch 1 and 50",
                format!("{} and {}", figures.threads.0, figures.threads.1),
            ),
        ],
    );
    Ok(())
}
