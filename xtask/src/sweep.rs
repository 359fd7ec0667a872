//! `cargo xtask sweep`: calls every op and every public function of a tensor with arguments that nobody means well with.
//!
//! The tests make a fixed sample of such calls; this makes as many as one likes. It is built as tests are, with checks for
//! overflow, because a number that wraps is the beginning of a memory error, and there it is a panic.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Makes `calls` calls, all of them different from seed to seed.
pub fn run(root: &Path, calls: &str, seed: &str) -> Outcome {
    let program = ["run", "--quiet", "--package", "plimsoll-testkit", "--bin", "sweep", "--"];
    Step::cargo(root, &[&program[..], &["--calls", calls, "--seed", seed]].concat()).run()
}
