//! A fixed sample of layers, losses, metrics, optimizers and datasets with sizes and numbers that nobody means well with: a
//! result or an error, never a signal, a panic or a hang. Ops and functions of tensors have a sample of their own, in
//! plimsoll-tensor; `cargo xtask sweep --calls N` makes as many of all of them as one likes.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use plimsoll_testkit::hostile::{CHILD, Child, Sweep, of_networks};

/// What the sample consists of: some hundred calls of each kind, of which cheap ones go to the device.
const SAMPLE: Child = Child { seed: 2026, from: 0, to: 4_000, most_visits: 500_000 };

fn main() -> ExitCode {
    if let Ok(calls) = std::env::var(CHILD) {
        let run = calls.parse::<Child>().map_err(Into::into);
        let run = run.and_then(|child| child.run(&of_networks(), io::stdout().lock()));
        return if run.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let trials = vec![Trial::test("no_call_ends_the_process_panics_or_hangs", sample)];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn sample() -> Result<(), Failed> {
    Sweep { calls: SAMPLE, n_children: 2 }.sample(5).map_err(|failure| failure.text().into())
}
