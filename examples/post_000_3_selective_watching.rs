//! Post 000, example 3: two products in a chain, with all variables watched and with one.
//!
//! Run it with `cargo run --release --example post_000_3_selective_watching`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/table.rs"]
mod table;

use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Bytes held by the tape and by nobody else, once z1 and z2 are dropped.
    pub own: u64,
    /// Which of the gradients of x, y and w there are.
    pub gradients: [bool; 3],
    /// The most that the pool had committed, whatever for.
    pub peak_committed: u64,
}

/// Runs the post's program on a tape that watches x by hand.
pub fn measure(tape: GradientTape) -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::randn([1000, 1000])?).named("x");
    let y = Variable::new(Tensor::randn([1000, 1000])?).named("y");
    let w = Variable::new(Tensor::randn([1000, 1000])?).named("w");

    tape.watch(&x)?;
    let loss = tape.record(|| {
        let z1 = x.matmul(&y)?;
        let z2 = z1.matmul(&w)?;
        z2.sum(..)
    })?;
    let own = tape.saved().own_bytes() as u64;
    let gradients = tape.gradient_or_none(&loss, [&x, &y, &w])?;
    let gradients = gradients.map(|gradient| gradient.is_some());
    Ok(Figures { own, gradients, peak_committed: device.stats().peak_committed })
}

fn named([dx, dy, dw]: [bool; 3]) -> String {
    let name = |there: bool, name: &str| if there { name.to_owned() } else { "none".to_owned() };
    format!("{}, {}, {}", name(dx, "dx"), name(dy, "dy"), name(dw, "dw"))
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let as_written = measure(GradientTape::new())?;
    let only_x = measure(GradientTape::new().watch_accessed_variables(false))?;
    table::print(
        "post 000, example 3: watching one of three variables",
        "only x is watched, so less is kept",
        "false: y and w are watched, too, and z1 and z2 are kept",
        &[
            table::bytes("as written: the tape's own (z1)", as_written.own),
            table::words("as written: gradients", named(as_written.gradients)),
            table::bytes("automatic watching off: the tape's own", only_x.own),
            table::words("automatic watching off: gradients", named(only_x.gradients)),
        ],
    );
    Ok(())
}
