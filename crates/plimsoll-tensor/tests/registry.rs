//! Every check of the test kit on every op of the registry: `cargo test -p plimsoll-tensor --test registry gelu` runs
//! those of one op, and `... -- ::layouts` one check on all of them.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use plimsoll_testkit::CheckOutcome;

fn main() -> ExitCode {
    // A check that has nothing to look at is ignored, with the reason; one that passes has looked.
    let trials = plimsoll_testkit::suite::tests().into_iter().map(|test| {
        Trial::ignorable_test(test.name, || match (test.run)() {
            Ok(CheckOutcome::Passed) => Ok(Completion::Completed),
            Ok(CheckOutcome::Ignored(reason)) => Ok(Completion::ignored_with(reason)),
            Err(failure) => Err(Failed::from(failure.text())),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
