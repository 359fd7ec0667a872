//! A plan is small, whatever it plans, and touches no device: both seen from outside the process, for every recipe.
//!
//! One test in a program of its own, because the system tells the most that any of its children took.

use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use plimsoll_cli::recipes;

/// Runs the program, which must succeed, with every library that it asks for named on stderr by the system's loader; returns that.
fn loaded(arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments.split_whitespace()).env("LD_DEBUG", "libs").stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}\n{stderr}");
    assert!(stderr.contains("find library="), "{arguments}: the loader says nothing\n{stderr}");
    stderr
}

/// The most that a child which has ended was ever resident with, in MiB.
fn most_resident() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("the system tells").max_rss() >> 10
}

#[test]
fn no_plan_takes_more_than_300_mib_or_opens_a_device() {
    for recipe in recipes::all() {
        for device in ["--device cpu", "--as h200"] {
            let run = format!("plan {} --data random --limit none --json {device}", recipe.name());
            let libraries = loaded(&run);
            assert!(!libraries.contains("libcuda"), "{run}: the driver was asked for");
            let mib = most_resident();
            assert!(mib < 300, "{run}: {mib} MiB were resident");
        }
    }
    // A program that looks for a GPU does ask for its driver, and is resident with something.
    assert!(loaded("devices").contains("libcuda"));
    assert!(most_resident() > 1);
}
