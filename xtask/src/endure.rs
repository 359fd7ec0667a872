//! `cargo xtask fuzz | soak | kills`: tests that are short every day, at their full length.
//!
//! Each is a test of the ordinary kind that reads from its environment how much to do, in a build for speed: the fuzzer's has
//! checks for overflow and debug assertions, too, the others are released programs. What it printed last is kept in
//! `docs/endurance`.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Damaged files for every parser.
pub fn fuzz(root: &Path, n_cases: &str) -> Outcome {
    test(root, "endure", ["plimsoll-cli", "fuzz"], ("PLIMSOLL_FUZZ_CASES", n_cases))
}

/// Training steps during which no memory may be retained.
pub fn soak(root: &Path, n_steps: &str) -> Outcome {
    test(root, "release", ["plimsoll-cli", "soak"], ("PLIMSOLL_SOAK_STEPS", n_steps))
}

/// Processes that save into one folder and are killed.
pub fn kills(root: &Path, n_kills: &str) -> Outcome {
    test(root, "release", ["plimsoll-nn", "kill"], ("PLIMSOLL_KILLS", n_kills))
}

fn test(root: &Path, profile: &str, [package, test]: [&str; 2], (variable, amount): (&str, &str)) -> Outcome {
    if amount.parse::<u64>().is_err() {
        return Err(format!("`{amount}` is no whole number"));
    }
    let arguments = ["test", "--profile", profile, "--package", package, "--test", test, "--", "--nocapture"];
    Step::cargo(root, &arguments).env(variable, amount).run()
}
