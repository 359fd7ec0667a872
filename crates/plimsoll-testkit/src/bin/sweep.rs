//! `sweep [--calls N] [--seed S] [--from K] [--visits V]`: calls every op, public function, layer and dataset with arguments that nobody
//! means well with, in child processes; see [`plimsoll_testkit::hostile`]. `cargo xtask sweep` runs it.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use plimsoll_testkit::hostile::{CHILD, Child, Sweep, of_networks, of_tensors};

fn main() -> ExitCode {
    let mut out = io::stdout().lock();
    match swept(&mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(out, "error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the sweep, or a child of it. Whether nothing was found.
fn swept(out: &mut impl Write) -> Result<bool, Box<dyn std::error::Error>> {
    if let Ok(calls) = std::env::var(CHILD) {
        let targets: Vec<_> = of_tensors().into_iter().chain(of_networks()).collect();
        calls.parse::<Child>()?.run(&targets, out)?;
        return Ok(true);
    }
    let (mut seed, mut from, mut n_calls, mut most_visits) = (1, 0, 100_000, 100_000_000);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--seed", Some(value)) => seed = value,
            ("--from", Some(value)) => from = value,
            ("--calls", Some(value)) => n_calls = value,
            ("--visits", Some(value)) => most_visits = value,
            _ => {
                return Err(
                    format!("`{name}` is not --seed, --from, --calls or --visits with a number").into()
                );
            }
        }
    }
    let calls = Child { seed, from, to: from + n_calls, most_visits };
    let n_children = std::thread::available_parallelism().map_or(1, usize::from);
    let tally = Sweep { calls, n_children }
        .run(&std::env::current_exe()?)
        .map_err(|failure| failure.text().to_owned())?;
    for failure in &tally.failures {
        writeln!(out, "{failure}")?;
    }
    writeln!(
        out,
        "seed {seed}, calls {from} to {}, on the device up to {most_visits} visits\n{tally}",
        calls.to
    )?;
    Ok(tally.failures.is_empty())
}
