//! `plimsoll plan`: what a run will need, without its arithmetic and without its device.

use std::fmt::Write;
use std::path::Path;

use plimsoll::nn::plan::{Fit, Plan, RunError, largest, least_limit, plan, predict};

use super::find;
use crate::actions;
use crate::event::{Event, Holder, PeakAt, PlanEvent};
use crate::failure::{Exit, Failure};
use crate::options::{PlanOptions, TrainOptions};
use crate::preflight::{dry_run, recorded_dry_run, with_least_limit};
use crate::profile::{self, About, ProfileFile};
use crate::progress::scaled;
use crate::recipe::Recipe;
use crate::run_setup::batch;
use crate::target::Target;
use crate::terminal::Style;

/// How many holders the JSON line lists.
const N_HOLDERS: usize = 20;

/// Plans a recipe.
///
/// # Errors
/// Bad options, files that cannot be used, a limit under which no batch fits.
pub fn run(recipes: &[Recipe], options: &PlanOptions) -> Result<(), Failure> {
    let recipe = find(recipes, &options.recipe)?;
    profile::check_report(options.report.as_deref())?;
    let target = Target::of(options)?;
    let mut training = options.training();
    let mut found = None;
    if options.max_batch {
        let largest = largest_batch(recipe, &training, &target)?;
        training = with_batch(&training, largest.batch);
        found = Some(largest);
    }
    let planned = plan(&target.device, || dry_run(recipe, &training))?;
    let least = least_limit(&target.device, || dry_run(recipe, &training))?;
    let style = Style::of(options.run.json);
    let batch = batch(recipe, &training.run)?;
    if options.profile.is_some() || options.report.is_some() {
        let file = record(recipe, &training, &target, batch, options.profile.as_deref())?;
        options.report.as_deref().map_or(Ok(()), |path| file.write_page(path, None))?;
    }
    if style == Style::Text {
        let mut text = headline(recipe, &target, batch, found.as_ref());
        let _always = write!(text, "{planned}");
        let _always = writeln!(text, "\nleast limit  {}, or --limit {}MiB", scaled(least), least >> 20);
        let planned = Row { batch, planned: &planned };
        text.push_str(&table(recipe, &training, &target, planned, found.as_ref())?);
        style.say(text.trim_end())?;
    }
    style.emit(&Event::Plan(Box::new(event(recipe, &target, batch, &planned, least))))
}

/// Records the dry run for `explain`. Repetitions are skipped there, too.
fn record(
    recipe: &Recipe,
    training: &TrainOptions,
    target: &Target,
    batch: usize,
    path: Option<&Path>,
) -> Result<ProfileFile, Failure> {
    let ghost = target.device.ghost();
    let limit_bytes = target.limit.bytes;
    let about = About { recipe, batch, device: &target.name, limit_bytes, is_plan: true, rank: (0, 1) };
    let recording = ProfileFile::at(path)?.record(&ghost, &training.run, &about)?;
    let _on = ghost.enter();
    recorded_dry_run(recipe, training)?;
    if let Some(actions) = actions::json(recipe, training, &target.device) {
        recording.profiler.add(&actions);
    }
    recording.finish()
}

/// These options with another batch.
fn with_batch(training: &TrainOptions, batch: usize) -> TrainOptions {
    let mut training = training.clone();
    training.run.batch = batch.try_into().ok();
    training
}

/// The largest batch, and whether there are no more examples than that.
struct Largest {
    batch: usize,
    is_all: bool,
}

/// The largest batch that fits the limit: it does, and one more does not, by plans alone.
fn largest_batch(recipe: &Recipe, training: &TrainOptions, target: &Target) -> Result<Largest, Failure> {
    let Some(limit) = target.limit.bytes else {
        return Err(Failure::options("--max-batch: without a limit any batch fits; set one with --limit"));
    };
    // A batch has at least as many examples as parts.
    let least = training.run.accumulate.get();
    let most = n_examples(recipe, training, target)?.unwrap_or(usize::MAX).max(least);
    let guess = recipe.default_batch().saturating_sub(least) + 1;
    let mut refused = None;
    let found = largest(most - least + 1, guess, limit, |n| {
        let training = with_batch(training, least + n - 1);
        match predict(&target.device, || dry_run(recipe, &training)) {
            Ok(_) => Ok(Fit::Fits),
            Err(failure) if failure.is_over_limit() => {
                let enough = failure.enough();
                refused = Some(failure);
                Ok(Fit::Needs(enough))
            }
            Err(failure) => Err(failure),
        }
    })?;
    match (found, refused) {
        (0, refused) => {
            let message = format!("no batch fits the limit, not even one of {least}");
            let refused = refused.unwrap_or_else(|| Failure::with(Exit::Limit, message));
            Err(with_least_limit(refused, recipe, &with_batch(training, least), &target.device))
        }
        (found, _) => Ok(Largest { batch: least + found - 1, is_all: found == most - least + 1 }),
    }
}

/// How many examples there are to train on; nothing if there are as many as a batch needs.
fn n_examples(recipe: &Recipe, training: &TrainOptions, target: &Target) -> Result<Option<usize>, Failure> {
    let ghost = target.device.ghost();
    ghost.set_limit(None)?;
    let _on = ghost.enter();
    let data = recipe.examples(training.data.as_ref(), 1)?;
    Ok(data.train.len().filter(|_| data.source != "random"))
}

fn headline(recipe: &Recipe, target: &Target, batch: usize, found: Option<&Largest>) -> String {
    let largest = match found {
        Some(Largest { is_all: true, .. }) => ", all examples that there are",
        Some(_) => ", the largest that fits",
        None => "",
    };
    let Target { name, profile, .. } = target;
    format!("{} on {name} ({profile}), batch {batch}{largest}\n", recipe.name())
}

/// A batch whose plan is known.
struct Row<'a> {
    batch: usize,
    planned: &'a Plan,
}

/// What this batch and some others need.
fn table(
    recipe: &Recipe,
    training: &TrainOptions,
    target: &Target,
    known: Row<'_>,
    found: Option<&Largest>,
) -> Result<String, Failure> {
    let (parts, batch) = (training.run.accumulate.get(), known.batch);
    let mut batches: Vec<usize> =
        [batch / 4, batch / 2, batch, batch.saturating_mul(2), batch.saturating_mul(4)].into();
    batches.retain(|&other| other >= parts.max(1));
    batches.dedup();
    let unlimited = target.device.ghost();
    unlimited.set_limit(None)?;
    let mut text = format!("\n{:>8}  {:>14}  {:>14}  {:>12}\n", "batch", "in use", "taken", "ms per step");
    for other in batches {
        // What is larger than the largest that fits does not.
        let is_too_large = found.is_some_and(|found| !found.is_all && other > found.batch);
        let training = with_batch(training, other);
        let plan_of = |device| plan(device, || dry_run(recipe, &training));
        let planned = match (other == batch, is_too_large) {
            (true, _) => known.planned.clone(),
            (false, true) => plan_of(&unlimited)?,
            (false, false) => plan_of(&target.device)?,
        };
        let (peak, taken) = (scaled(planned.peak_bytes), scaled(planned.committed_bytes));
        let ms = planned.step_nanoseconds as f64 / 1e6;
        let fits = if planned.fits() && !is_too_large { "" } else { "  does not fit" };
        // Writing into a string cannot fail.
        let _always = writeln!(text, "{other:>8}  {peak:>14}  {taken:>14}  {ms:>12.2}{fits}");
    }
    Ok(text)
}

/// When a plan's peak is reached.
pub fn describe_peak(planned: &Plan) -> PeakAt {
    let at = planned.peak_at;
    PeakAt { step: at.step, phase: at.phase, layer: at.layer, op: at.op }
}

/// The JSON line of a plan.
pub fn event(recipe: &Recipe, target: &Target, batch: usize, planned: &Plan, least: u64) -> PlanEvent {
    let holder = |holder: &plimsoll::memory::Holder| {
        let site = holder.site;
        // The line that described the layer tells rows apart; that of the call is the same for a whole model.
        let place = site.described().or(site.place());
        let line = place.map_or_else(String::new, |(file, line)| format!("{file}:{line}"));
        Holder { owner: holder.owner.name(), layer: site.scope(), op: site.op(), line, bytes: holder.bytes }
    };
    PlanEvent {
        recipe: recipe.name().to_owned(),
        device: target.name.clone(),
        device_profile: target.profile.clone(),
        batch,
        limit_bytes: target.limit.bytes,
        limit_from: target.limit.from,
        fits: planned.fits(),
        peak_bytes: planned.peak_bytes,
        committed_bytes: planned.committed_bytes,
        least_limit_bytes: least,
        owners: planned.owners.iter().collect(),
        peak_at: describe_peak(planned),
        holders: planned.holders.iter().take(N_HOLDERS).map(holder).collect(),
        predicted_step_ms: planned.step_nanoseconds as f64 / 1e6,
        recomputed_flops: planned.repeated.flops,
        offloaded_bytes: planned.offloaded_bytes,
        cluster: None,
        zero: None,
        ranks: None,
    }
}
