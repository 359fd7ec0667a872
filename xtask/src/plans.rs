//! `cargo xtask plans`: `plan` and `plan --max-batch` for every recipe, every shipped GPU profile and the CPU, with and
//! without `--limit`, as text and as JSON.
//!
//! Every call must answer, within [`MOST_SECONDS`]; the largest batch must fit and the next one must not. The tests hold a
//! sample of this in seconds; the whole takes minutes and needs a release build, so it is a command of its own.

use std::path::Path;
use std::time::Instant;

use crate::Outcome;
use crate::json::field;
use crate::step::Step;

/// The most time that one call may take.
const MOST_SECONDS: f64 = 5.0;

/// Every recipe; the one whose data is not shipped with data that is there everywhere.
const RECIPES: [&str; 9] = [
    "digits",
    "dense",
    "fashion --data random",
    "chars",
    "gpt-nano",
    "gpt2-124m",
    "gpt2-355m",
    "resnet18",
    "resnet50",
];

const TARGETS: [&str; 7] =
    ["--device cpu", "--as h200", "--as h100", "--as a100-80", "--as a100-40", "--as rtx4090", "--as t4"];

/// The device's whole memory, and a part of it that a user sets.
const LIMITS: [&str; 2] = ["", "--limit 40%"];

/// Runs the whole matrix and reports everything that failed.
///
/// # Errors
/// A call that does not answer, answers too late, or answers wrongly.
pub fn run(root: &Path) -> Outcome {
    Step::cargo(root, &["build", "--release", "--package", "plimsoll-cli"]).run()?;
    let program = Program { root, path: root.join("target/release/plimsoll").display().to_string() };
    let mut complaints = Vec::new();
    let mut slowest = (0.0, String::new());
    for recipe in RECIPES {
        for target in TARGETS {
            for limit in LIMITS {
                let arguments = format!("plan {recipe} {target} {limit}");
                match program.check(&arguments) {
                    Ok((seconds, line)) if seconds > slowest.0 => slowest = (seconds, line),
                    Ok(_) => {}
                    Err(complaint) => {
                        println!("{complaint}");
                        complaints.push(complaint);
                    }
                }
            }
        }
    }
    println!("the slowest call took {:.1} s: {}", slowest.0, slowest.1);
    match complaints.len() {
        0 => Ok(()),
        n => Err(format!("{n} of the plans above are wrong, missing or late")),
    }
}

/// The built program.
struct Program<'a> {
    root: &'a Path,
    path: String,
}

impl Program<'_> {
    /// Checks the plan with these arguments in all its forms; returns the slowest call.
    fn check(&self, arguments: &str) -> Result<(f64, String), String> {
        let mut slowest = (0.0, String::new());
        let mut call = |form: &str| {
            let line = format!("{arguments} {form}");
            let started = Instant::now();
            let words: Vec<&str> = line.split_whitespace().collect();
            let answer = Step::new(self.root, &self.path, &words).read()?;
            let seconds = started.elapsed().as_secs_f64();
            if seconds > slowest.0 {
                slowest = (seconds, line.clone());
            }
            match seconds > MOST_SECONDS {
                true => Err(format!("{line}: took {seconds:.1} s")),
                false => Ok(answer),
            }
        };
        call("")?;
        call("--json")?;
        let text = call("--max-batch")?;
        let largest = call("--max-batch --json")?;
        let batch: u64 = field(&largest, "batch")
            .and_then(|batch| batch.parse().ok())
            .ok_or_else(|| format!("{arguments} --max-batch --json: no batch in {largest}"))?;
        let is_all = text.contains("all examples that there are");
        // What is free on this machine changes from call to call; the question is about one limit.
        let limit = match field(&largest, "limit_bytes") {
            Some(bytes) if !arguments.contains("--limit") => format!("--limit {bytes}"),
            _ => String::new(),
        };
        for (batch, fits) in [(batch, true), (batch + 1, is_all)] {
            let planned = call(&format!("--batch {batch} --json {limit}"))?;
            // Where a batch has all examples, the next has as many.
            if field(&planned, "fits") != Some(if fits { "true" } else { "false" }) {
                return Err(format!("{arguments} --batch {batch}: fits should be {fits}"));
            }
        }
        Ok(slowest)
    }
}
