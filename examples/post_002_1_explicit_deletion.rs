//! Post 002, example 1: what deleting the tape, the output and the loss frees.
//!
//! Run it with `cargo run --release --example post_002_1_explicit_deletion`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]

#[path = "shared/figures.rs"]
mod figures;
#[path = "shared/table.rs"]
mod table;

use figures::{bits, in_use};
use plimsoll::prelude::*;

/// What the example measures.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Held by the tape and by nobody else, before `gradient`.
    pub own_before: u64,
    /// The same afterwards, with the tape alive.
    pub own_after: u64,
    /// What dropping the tape frees then.
    pub tape_frees: u64,
    /// What dropping the output y frees.
    pub y_frees: u64,
    /// The bytes of y.
    pub y_bytes: u64,
    /// A checksum of every bit of the gradients.
    pub gradient_bits: u64,
}

/// Runs the post's program and measures it; with `early`, y is dropped before `gradient`.
pub fn measure(early: bool) -> Result<Figures> {
    set_seed(0);
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = Sequential::new()
        .add(Dense::new(512).activation(Activation::Relu))
        .add(Dense::new(256))
        .build([128])?;
    let variables = model.trainable_variables();
    let (x, target) = (Tensor::randn([64, 128])?, Tensor::randn([64, 256])?);

    let tape = GradientTape::new();
    let (y, loss) = tape.record(|| {
        let y = model.call(&x)?;
        let loss = y.sub(&target)?.square()?.mean(..)?;
        Ok((y, loss))
    })?;
    let own_before = tape.saved().own_bytes() as u64;
    let y_bytes = y.n_bytes() as u64;
    let mut y = Some(y);
    if early {
        y = None;
    }
    let gradients = tape.variable_gradients(&loss, &variables)?;
    let own_after = tape.saved().own_bytes() as u64;
    let freed = |drop: &mut dyn FnMut()| {
        let before = in_use(&device);
        drop();
        before - in_use(&device)
    };
    let mut tape = Some(tape);
    let tape_frees = freed(&mut || tape = None);
    let y_frees = freed(&mut || y = None);
    let gradient_bits = bits(&gradients)?;
    SGD::new(0.1).build().apply_gradients(gradients, &variables)?;
    Ok(Figures { own_before, own_after, tape_frees, y_frees, y_bytes, gradient_bits })
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let (late, early) = (measure(false)?, measure(true)?);
    let same = if late.gradient_bits == early.gradient_bits { "the same bits" } else { "DIFFERENT bits" };
    table::print(
        "post 002, example 1: deleting tape, output and loss",
        "deleting the tape is crucial",
        "false: `gradient` has freed what it held",
        &[
            table::bytes("held by the tape alone before gradient", late.own_before),
            table::bytes("and after it, with the tape alive", late.own_after),
            table::bytes("what dropping the tape frees then", late.tape_frees),
            table::bytes("what dropping y frees", late.y_frees),
            table::words("gradients if y is dropped before gradient", same),
        ],
    );
    Ok(())
}
