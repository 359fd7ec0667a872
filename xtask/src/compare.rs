//! `cargo xtask compare PROGRAM`: this tree's `plimsoll` beside another build of it, run after run in turn.
//!
//! A change that is meant to change nothing (names, rooms, a rewritten planner) shows it here: bits of the last loss and of the
//! parameters, most bytes in use and committed, and milliseconds per step. Bits and bytes must be equal, or the command fails;
//! times are figures, because a machine is never quiet enough for a test of them. Each takes the least of [`ROUNDS`] turns.

use std::path::Path;

use crate::Outcome;
use crate::json::field;
use crate::step::Step;

/// How often either program runs; other work on the machine makes a turn slower, never faster.
const ROUNDS: usize = 3;

/// Runs that touch every kind of layer, with and without a limit, in seconds each.
const RUNS: [&str; 11] = [
    "digits --epochs 5",
    "dense --steps 40",
    "dense --steps 40 --limit 24MiB",
    "fashion --data random --steps 8 --batch 32",
    "fashion --data random --steps 8 --batch 32 --accumulate 4",
    "chars --steps 20",
    "gpt-nano --steps 8 --batch 4",
    "gpt-nano --steps 8 --batch 4 --limit 66MiB",
    "gpt-nano --steps 8 --batch 4 --precision mixed_bfloat16",
    "resnet18 --data random --steps 2 --batch 4",
    "digits --epochs 5 --threads 1",
];

/// What must be the same, by its name in the line that ends a run.
const EQUAL: [&str; 4] = ["loss_bits", "parameters_sha256", "peak_bytes", "committed_bytes"];

/// Runs everything and prints a table, in Markdown, so that it can be kept.
///
/// # Errors
/// A run that fails, or one that differs.
pub fn run(root: &Path, other: &str) -> Outcome {
    Step::cargo(root, &["build", "--release", "--package", "plimsoll-cli"]).run()?;
    let ours = root.join("target/release/plimsoll").display().to_string();
    println!(
        "| run | bits | most in use | committed | ms per step, other | ours |\n|---|---|---:|---:|---:|---:|"
    );
    let mut n_different = 0;
    for arguments in RUNS {
        let (mut before, mut now) = (Run::of(root, other, arguments)?, Run::of(root, &ours, arguments)?);
        for _ in 1..ROUNDS {
            before.least_ms = before.least_ms.min(Run::of(root, other, arguments)?.least_ms);
            now.least_ms = now.least_ms.min(Run::of(root, &ours, arguments)?.least_ms);
        }
        let [loss, parameters, in_use, committed] =
            [0, 1, 2, 3].map(|i| compared(&before.values[i], &now.values[i]));
        let bits = if loss.is_equal && parameters.is_equal { "equal" } else { "DIFFERENT" };
        println!(
            "| `{arguments}` | {bits} | {} | {} | {:.2} | {:.2} |",
            in_use.text, committed.text, before.least_ms, now.least_ms
        );
        n_different += usize::from(before.values != now.values);
    }
    match n_different {
        0 => Ok(()),
        n => Err(format!("{n} of {} runs differ in bits or bytes", RUNS.len())),
    }
}

/// What a run said at its end.
struct Run {
    /// In the order of [`EQUAL`].
    values: [String; 4],
    least_ms: f64,
}

impl Run {
    fn of(root: &Path, program: &str, arguments: &str) -> Result<Run, String> {
        let line = format!("train {arguments} --device cpu --json");
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = Step::new(root, program, &words).read()?;
        let end = output.lines().last().unwrap_or_default();
        let value = |name: &str| {
            field(end, name).map(str::to_owned).ok_or_else(|| format!("`{program} {line}` printed no {name}"))
        };
        let [loss, parameters, in_use, committed] = EQUAL.map(value);
        let least_ms = output
            .lines()
            .filter(|line| field(line, "event") == Some("\"step\""))
            .filter_map(|line| field(line, "ms")?.parse().ok())
            .fold(f64::INFINITY, f64::min);
        Ok(Run { values: [loss?, parameters?, in_use?, committed?], least_ms })
    }
}

/// A value of both programs as a cell of the table.
struct Compared {
    is_equal: bool,
    text: String,
}

fn compared(before: &str, now: &str) -> Compared {
    let is_equal = before == now;
    let text = if is_equal { now.to_owned() } else { format!("{before} → {now}") };
    Compared { is_equal, text }
}
