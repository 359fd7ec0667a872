//! `cargo xtask sweep`: calls ops, public functions, layers, optimizers and datasets with arguments that nobody means well
//! with.
//!
//! The tests make fixed samples of such calls; this makes as many as one likes. It is built for speed, but with the checks
//! that tests have, because a number that wraps is the beginning of a memory error, and there it is a panic.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Makes `calls` calls, all of them different from seed to seed.
pub fn run(root: &Path, calls: &str, seed: &str) -> Outcome {
    let package =
        ["run", "--quiet", "--profile", "endure", "--package", "plimsoll-testkit", "--features", "whole"];
    let program = ["--bin", "sweep", "--", "--calls", calls, "--seed", seed];
    Step::cargo(root, &[&package[..], &program].concat()).run()
}
