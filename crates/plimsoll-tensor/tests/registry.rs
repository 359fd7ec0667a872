//! Every check of the test kit on every op of the registry: `cargo test -p plimsoll-tensor --test registry gelu` runs
//! those of one op, and `... -- ::layouts` one check on all of them.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let trials = plimsoll_testkit::suite::tests().into_iter().map(|test| {
        Trial::test(test.name, || (test.run)().map_err(|failure| Failed::from(failure.text())))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
