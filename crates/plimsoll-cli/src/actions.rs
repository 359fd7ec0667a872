//! What would help: options that lower the peak of a run, each with the bytes and the time that it changes.
//!
//! Nothing is guessed. Each action is planned as a run of its own, by a dry run on a ghost of the device, so whoever takes it
//! gets the peak that is said to the byte. Dry runs are cheap but not free: they end after [`budget`], and the profile says
//! whether all actions were tried. An action that does not lower the peak, or does not fit the limit, is left out.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use plimsoll::nn::Policy;
use plimsoll::nn::plan::{Plan, least_limit, plan};
use plimsoll::{Bytes, Device};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::options::{RunOptions, TrainOptions};
use crate::preflight::dry_run;
use crate::recipe::Recipe;
use crate::run_setup::{self, batch};

/// After so long no other action is planned: five seconds, or as many as `PLIMSOLL_ACTIONS_SECONDS` says.
fn budget() -> Duration {
    let set = std::env::var("PLIMSOLL_ACTIONS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(set.unwrap_or(5))
}

/// The most actions that are kept.
const MOST: usize = 10;
/// The optimizers that keep less than others.
const LEAN_OPTIMIZERS: [&str; 4] = ["sgd", "momentum", "adafactor", "adam8bit"];

/// Options that change, as they are written.
struct Action {
    options: String,
    training: TrainOptions,
    /// The limit to set, if that is the action.
    limit: Option<u64>,
}

/// The actions that would help a run, for its profile; nothing if the run cannot be planned.
pub fn json(recipe: &Recipe, training: &TrainOptions, device: &Device) -> Option<Value> {
    let (begun, budget) = (Instant::now(), budget());
    let base = plan(device, || dry_run(recipe, training)).ok().filter(Plan::fits)?;
    let (mut rows, mut is_complete) = (Vec::new(), true);
    for action in actions(recipe, training, device, &base).ok()? {
        if begun.elapsed() >= budget {
            is_complete = false;
            break;
        }
        if let Some(planned) = planned(recipe, &action, device).filter(|it| it.peak_bytes < base.peak_bytes) {
            rows.push((action.options, planned));
        }
    }
    rows.sort_by_key(|(_, planned)| planned.peak_bytes);
    rows.truncate(MOST);
    let ms = |planned: &Plan| planned.step_nanoseconds as f64 / 1e6;
    let row = |(options, planned): &(String, Plan)| {
        json!({
            "options": options,
            "saved_bytes": base.peak_bytes - planned.peak_bytes,
            "peak_bytes": planned.peak_bytes,
            "committed_bytes": planned.committed_bytes,
            "step_ms": ms(planned),
            "more_ms": ms(planned) - ms(&base),
        })
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    let (peak_bytes, step_ms, budget_s) = (base.peak_bytes, ms(&base), budget.as_secs());
    Some(json!({ "actions": {
        "version": 1, "budget_s": budget_s, "is_complete": is_complete, "peak_bytes": peak_bytes, "step_ms": step_ms, "rows": rows,
    } }))
}

/// The plan of a run with an action taken, if it fits.
fn planned(recipe: &Recipe, action: &Action, device: &Device) -> Option<Plan> {
    let ghost = device.ghost();
    if let Some(limit) = action.limit {
        ghost.set_limit(Some(Bytes::new(limit))).ok()?;
    }
    plan(&ghost, || dry_run(recipe, &action.training)).ok().filter(Plan::fits)
}

/// What can be tried, the most usual first.
fn actions(
    recipe: &Recipe,
    training: &TrainOptions,
    device: &Device,
    base: &Plan,
) -> Result<Vec<Action>, Failure> {
    let with = |options: String, change: &dyn Fn(&mut RunOptions)| {
        let mut training = training.clone();
        change(&mut training.run);
        Action { options, training, limit: None }
    };
    let (batch, parts) = (batch(recipe, &training.run)?, training.run.accumulate.get());
    let mut actions = Vec::new();
    for parts in [2 * parts, 4 * parts].into_iter().filter(|&parts| parts <= batch) {
        let change =
            |run: &mut RunOptions| run.accumulate = NonZeroUsize::new(parts).unwrap_or(run.accumulate);
        actions.push(with(format!("--accumulate {parts}"), &change));
    }
    for smaller in [batch / 2, batch / 4].into_iter().filter(|&smaller| smaller >= parts) {
        let change = |run: &mut RunOptions| run.batch = NonZeroUsize::new(smaller);
        actions.push(with(format!("--batch {smaller}"), &change));
    }
    if run_setup::policy(recipe, &training.run) == Policy::Float32 {
        let mixed = Policy::MixedBfloat16;
        actions.push(with(format!("--precision {}", mixed.name()), &|run| run.precision = Some(mixed)));
    }
    for name in LEAN_OPTIMIZERS.into_iter().filter(|name| training.run.optimizer.as_deref() != Some(name)) {
        let change = |run: &mut RunOptions| run.optimizer = Some(name.to_owned());
        actions.push(with(format!("--optimizer {name}"), &change));
    }
    // Under a limit, values are recomputed: as few as may be, or as many as must be.
    let least = least_limit(device, || dry_run(recipe, training))?;
    for limit in [least.midpoint(base.committed_bytes), least].into_iter().map(whole_mib) {
        let action = with(format!("--limit {}MiB", limit >> 20), &|_| {});
        actions.push(Action { limit: Some(limit), ..action });
    }
    actions.dedup_by(|one, other| one.options == other.options);
    Ok(actions)
}

/// The next whole number of MiB, as a person would write it.
fn whole_mib(bytes: u64) -> u64 {
    bytes.next_multiple_of(1 << 20)
}
