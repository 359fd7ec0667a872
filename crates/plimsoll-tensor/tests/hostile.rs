//! A fixed sample of calls that nobody means well, from the registry and from the list of public functions: a result or an
//! error, never a signal, a panic or a hang. `cargo xtask sweep --calls N` makes as many as one likes.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use plimsoll_testkit::hostile::{CHILD, Child, Sweep, methods, of_tensors};
use plimsoll_testkit::sources;

/// What the sample consists of: a few dozen calls of every op and function, of which cheap ones go to the device.
const SAMPLE: Child = Child { seed: 2026, from: 0, to: 16_000, most_visits: 500_000 };

fn main() -> ExitCode {
    if let Ok(calls) = std::env::var(CHILD) {
        let run = calls.parse::<Child>().map_err(Into::into);
        let run = run.and_then(|child| child.run(&of_tensors(), io::stdout().lock()));
        return if run.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let trials = vec![
        Trial::test("no_call_ends_the_process_panics_or_hangs", sample),
        Trial::test("every_public_function_with_arguments_is_called", every_function_is_called),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn sample() -> Result<(), Failed> {
    Sweep { calls: SAMPLE, n_children: 2 }.sample(4).map_err(|failure| failure.text().into())
}

/// Public functions of a tensor that need no call of their own: they take tensors alone, which the registry's samples vary,
/// read a figure, or are called inside others.
const ELSEWHERE: &[&str] = &[
    "device",
    "from",
    "from_ndarray",
    "from_vec",
    "into_add",
    "into_div",
    "into_mul",
    "into_sub",
    "item",
    "logical_and",
    "logical_or",
    "logical_xor",
    "minimum",
    "mul",
    "div",
    "sub",
    "owned_by",
    "read_npy",
    "shares_memory_with",
    "sparse_cross_entropy",
    "to_device",
    "write_npy",
];

/// Holds the list of functions against the sources: whatever takes an argument beside `self` is in it, or in the list above.
fn every_function_is_called() -> Result<(), Failed> {
    let called: Vec<&str> = methods().iter().map(|(name, _)| *name).collect();
    let mut missing = Vec::new();
    for source in sources(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").as_path())? {
        for block in source.split("\nimpl Tensor {\n").skip(1) {
            let block = block.split("\n}\n").next().unwrap_or_default();
            for function in block.split("\n    pub fn ").skip(1) {
                let name: String =
                    function.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let arguments =
                    function.split_once('(').map_or("", |(_, rest)| rest.split(')').next().unwrap_or(""));
                let takes_more =
                    arguments.split(',').any(|word| !word.trim().is_empty() && !word.contains("self"));
                if takes_more && !called.contains(&name.as_str()) && !ELSEWHERE.contains(&name.as_str()) {
                    missing.push(name);
                }
            }
        }
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("not called with hostile arguments: {missing:?}").into())
    }
}
