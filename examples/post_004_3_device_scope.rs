//! Post 004, example 3: training inside a device scope, with a loss that is given raw outputs.
//!
//! Run it with `cargo run --release --example post_004_3_device_scope`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use std::sync::Mutex;

use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// The device that the scope gave.
    pub device: String,
    /// The losses of the five steps.
    pub losses: Vec<f32>,
    /// What was warned of, once each.
    pub warnings: Vec<String>,
    /// Committed by the pool when the function has returned.
    pub committed_after: u64,
}

/// A logger that remembers warnings, as a program shows them.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if let Ok(mut warnings) = self.0.lock() {
            warnings.push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

fn train_with_scope(data: &Tensor) -> Result<Vec<f32>> {
    let model = Sequential::new()
        .add(Dense::new(100).activation(Activation::Relu))
        .add(Dense::new(10))
        .build([10])?;
    let mut optimizer = Adam::new(0.001).build();
    let loss_fn = CategoricalCrossentropy::new();
    let variables = model.trainable_variables();
    let mut losses = Vec::new();
    for _ in 0..5 {
        let tape = GradientTape::new();
        let loss = tape.record(|| {
            let logits = model.call(data)?;
            let labels = Tensor::randint([1], 0, 10, DType::I32)?.one_hot(10, DType::F32)?;
            loss_fn.call(&labels, &logits)
        })?;
        let gradients = tape.variable_gradients(&loss, &variables)?;
        optimizer.apply_gradients(gradients, &variables)?;
        losses.push(loss.item::<f32>()?);
    }
    Ok(losses)
}

/// Runs the post's program and measures it.
pub fn measure() -> Result<Figures> {
    // Another logger may be there already; then it shows the warnings.
    if log::set_logger(&WARNINGS).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    set_seed(0);
    let device = Device::named_or_cpu("/GPU:0")?;
    let losses = {
        let _on = device.enter();
        let data = Tensor::randn([1, 10])?;
        train_with_scope(&data)?
    };
    let warnings = WARNINGS.0.lock().map(|warnings| warnings.clone()).unwrap_or_default();
    Ok(Figures {
        device: device.name().to_owned(),
        losses,
        warnings,
        committed_after: device.stats().committed,
    })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let figures = measure()?;
    let mut rows = vec![
        table::words("ran on", figures.device),
        table::words("losses of five steps", format!("{:.3?}", figures.losses)),
        table::bytes("committed when the function has returned", figures.committed_after),
    ];
    rows.extend(figures.warnings.into_iter().map(|warning| table::words("warned of, once", warning)));
    table::print(
        "post 004, example 3: a device scope",
        "even with the scope left, memory may persist",
        "the loss is given raw outputs: it divides them by their sum and clips, without a word",
        &rows,
    );
    Ok(())
}
