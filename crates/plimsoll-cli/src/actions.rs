//! What would help: options that lower the peak of a run, each with the bytes and the time that it changes.
//!
//! What is planned, and what is kept of it, [`ActionSearch`] says; here are the options of the program and how they are written.

use std::num::NonZeroUsize;
use std::time::Duration;

use plimsoll::Device;
use plimsoll::nn::Policy;
use plimsoll::nn::plan::ActionSearch;
use plimsoll::report::Advice;
use serde_json::Value;

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

/// The optimizers that keep less than others.
const LEAN_OPTIMIZERS: [&str; 4] = ["sgd", "momentum", "adafactor", "adam8bit"];

/// The actions that would help a run, for its profile; nothing if the run cannot be planned.
pub fn json(recipe: &Recipe, training: &TrainOptions, device: &Device) -> Option<Value> {
    let run = || dry_run(recipe, training);
    let mut search = ActionSearch::begin(device, budget(), run).ok()??;
    for (options, changed) in changes(recipe, training).ok()? {
        search.consider(Advice::Options(options), || dry_run(recipe, &changed));
    }
    let limit = |bytes: u64| format!("--limit {}MiB", bytes >> 20);
    search.consider_limits(run, |bytes| Advice::Options(limit(bytes))).ok()?;
    search.consider_recomputing(run);
    search.consider_spilling(run, |bytes| Advice::Options(format!("--spill . {}", limit(bytes)))).ok()?;
    Some(search.into_json())
}

/// Options that can be tried, the most usual first, each with the run that they make.
fn changes(recipe: &Recipe, training: &TrainOptions) -> Result<Vec<(String, TrainOptions)>, Failure> {
    let mut all = Vec::new();
    let mut add = |options: String, change: &dyn Fn(&mut RunOptions)| {
        let mut changed = training.clone();
        change(&mut changed.run);
        all.push((options, changed));
    };
    let (batch, parts) = (batch(recipe, &training.run)?, training.run.accumulate.get());
    for parts in [2 * parts, 4 * parts].into_iter().filter(|&parts| parts <= batch) {
        let change =
            |run: &mut RunOptions| run.accumulate = NonZeroUsize::new(parts).unwrap_or(run.accumulate);
        add(format!("--accumulate {parts}"), &change);
    }
    for smaller in [batch / 2, batch / 4].into_iter().filter(|&smaller| smaller >= parts) {
        add(format!("--batch {smaller}"), &|run| run.batch = NonZeroUsize::new(smaller));
    }
    if run_setup::policy(recipe, &training.run) == Policy::Float32 {
        let mixed = Policy::MixedBfloat16;
        add(format!("--precision {}", mixed.name()), &|run| run.precision = Some(mixed));
    }
    for name in LEAN_OPTIMIZERS.into_iter().filter(|name| training.run.optimizer.as_deref() != Some(name)) {
        add(format!("--optimizer {name}"), &|run| run.optimizer = Some(name.to_owned()));
    }
    Ok(all)
}
