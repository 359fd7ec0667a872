//! Recipes at their own size, through the program: what `plan` predicts for a GPU that is not there, what `train` predicts
//! and what it then takes are the same bytes, without a limit and under one, and so are the losses and the weights.

use std::env;
use std::process::Command;

use serde_json::Value;

use super::Outcome;

const RECIPES: [&str; 8] =
    ["digits", "dense", "chars", "gpt-nano", "resnet18", "resnet50", "gpt2-124m", "gpt2-355m"];
const PRECISIONS: [&str; 2] = ["float32", "mixed_bfloat16"];
/// The bytes of a run, by the names that the event of its end gives them.
const BYTES: [&str; 2] = ["peak_bytes", "committed_bytes"];
/// The part of the natural bytes that a limit leaves.
const SHARE: f64 = 0.85;

/// One line per recipe and precision.
pub fn checks() -> impl Iterator<Item = (&'static str, Outcome)> {
    let settings = RECIPES.into_iter().flat_map(|recipe| PRECISIONS.map(|precision| (recipe, precision)));
    settings.map(|(recipe, precision)| (recipe, check(recipe, precision)))
}

fn check(recipe: &str, precision: &str) -> Outcome {
    let natural = train(recipe, precision, "none")?;
    let planned = plan(recipe, precision)?;
    if BYTES.iter().any(|name| planned[name] != natural[name]) {
        return Err(format!("planned {}, taken {}", bytes(&planned), bytes(&natural)));
    }
    let limit = (number(&natural, "committed_bytes") as f64 * SHARE) as u64;
    let limited = match train(recipe, precision, &limit.to_string()) {
        Err(refused) if refused.contains("limit") => {
            let least = refused.lines().last().unwrap_or_default().trim();
            return Ok(format!("{precision} {}; no less: {least}", bytes(&natural)));
        }
        limited => limited?,
    };
    for same in ["loss_bits", "parameters_sha256"] {
        if limited[same] != natural[same] {
            return Err(format!("{precision}: other {same} under {limit} bytes"));
        }
    }
    Ok(format!("{precision} {}, and the same bits under {limit} B: {}", bytes(&natural), bytes(&limited)))
}

/// A short run; its last event, in which nothing was mispredicted.
fn train(recipe: &str, precision: &str, limit: &str) -> Result<Value, String> {
    let options = ["--device", "cuda:0", "--limit", limit];
    let end = event(&[&["train", recipe, "--precision", precision, "--steps", "3"], &options[..]].concat())?;
    for name in BYTES {
        let (predicted, taken) = (number(&end, &format!("predicted_{name}")), number(&end, name));
        if predicted != taken {
            return Err(format!("{precision}, limit {limit}: {name} {taken}, predicted {predicted}"));
        }
    }
    Ok(end)
}

/// The same run on a ghost, as a machine without a GPU would plan it.
fn plan(recipe: &str, precision: &str) -> Result<Value, String> {
    let options = ["--device", "cuda:0", "--as", "h200", "--limit", "none"];
    event(&[&["plan", recipe, "--precision", precision, "--steps", "3"], &options[..]].concat())
}

/// What the program says last.
pub fn event(arguments: &[&str]) -> Result<Value, String> {
    event_with(arguments, &[])
}

/// What the program says last, with these environment variables.
pub fn event_with(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Value, String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.envs(variables.iter().copied());
    let run = command.arg("program").args(arguments).arg("--json").output();
    let run = run.map_err(|error| error.to_string())?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&run.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).map_err(|error| error.to_string())
}

pub fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or(0)
}

fn bytes(event: &Value) -> String {
    format!("peak {} B, committed {} B", number(event, BYTES[0]), number(event, BYTES[1]))
}
