//! A run of any length retains nothing: what is anonymous memory of the process after its first steps stays what it is.
//!
//! A short run with the other tests, and `cargo xtask soak` for a million steps. The pool's pages are committed by then, so
//! whatever grew would lie outside of it: histories, records, names, caches.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// How many steps are made, if not the few for every day.
const STEPS: &str = "PLIMSOLL_SOAK_STEPS";
const FEW_STEPS: u64 = 12_000;
/// The steps after which nothing grows any more, and by how many bytes it may all the same.
const FIRST: u64 = 10_000;
const MOST_GROWTH: u64 = 64 << 10;

/// The anonymous memory of a process in bytes.
fn anonymous(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says so");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

#[test]
#[allow(clippy::print_stdout, reason = "a long run is watched")]
fn a_long_run_does_not_grow() {
    let asked = std::env::var(STEPS).ok().map(|text| text.parse().expect("a whole number"));
    let n_steps: u64 = asked.unwrap_or(FEW_STEPS);
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([
            "train",
            "digits",
            "--batch",
            "32",
            "--threads",
            "1",
            "--optimizer",
            "adam",
            "--json",
            "--steps",
        ])
        .arg(n_steps.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (mut first, mut most) = (None, 0);
    for line in lines.map(|line| line.expect("text")) {
        let step = line.strip_prefix("{\"event\":\"step\",\"step\":").and_then(|rest| rest.split(',').next());
        let Some(step) = step.and_then(|step| step.parse::<u64>().ok()) else { continue };
        if step < FIRST || !step.is_multiple_of(500) || step + 500 > n_steps {
            continue;
        }
        let now = anonymous(child.id());
        let first = *first.get_or_insert(now);
        most = most.max(now.saturating_sub(first));
        if step.is_multiple_of(100_000) {
            println!("step {step:>8}: {now} B of anonymous memory, {} more than after {FIRST}", most);
        }
    }
    assert!(child.wait().expect("it ends").success());
    println!("{n_steps} steps: {} B after {FIRST}, at most {most} more later", first.unwrap_or_default());
    assert!(first.is_some() && most <= MOST_GROWTH, "it grew by {most} bytes");
}
