//! Post 000, example 2: the same program with its variables watched by hand.
//!
//! Run it with `cargo run --release --example post_000_2_explicit_watching`.
#![allow(clippy::print_stdout, reason = "an example shows its figures")]
#![allow(clippy::duplicate_mod, reason = "each example brings the table that it prints with")]

#[allow(dead_code, reason = "the first example has a `main` of its own")]
#[path = "post_000_1_implicit_watching.rs"]
mod implicit;
#[path = "shared/table.rs"]
mod table;

use plimsoll::prelude::*;

/// Runs example 1 with nothing watched by hand, and with both variables.
pub fn measure() -> Result<[implicit::Figures; 2]> {
    let by_itself = implicit::measure(|_, _, _| Ok(()))?;
    let by_hand = implicit::measure(|tape, x, y| {
        tape.watch(x)?;
        tape.watch(y)
    })?;
    Ok([by_itself, by_hand])
}

#[allow(dead_code, reason = "the tests use `measure` alone")]
fn main() -> Result<()> {
    let [by_itself, by_hand] = measure()?;
    let same = if by_itself == by_hand { "the same" } else { "different" };
    table::print(
        "post 000, example 2: variables watched by hand",
        "watching by hand frees z early",
        "false: z is kept just as in example 1",
        &[
            table::bytes("held by the tape and by nobody else", by_hand.own),
            table::bytes("in use with z alive", by_hand.with_z),
            table::bytes("in use with z dropped", by_hand.without_z),
            table::bytes("most in use during gradient", by_hand.gradient_peak),
            table::words("bytes and bits of example 1 are", same),
        ],
    );
    Ok(())
}
