//! `plimsoll bench`: one workload, timed and measured.

use plimsoll::nn::train::{Batch, Trainer, Until};
use plimsoll::nn::with_policy;
use plimsoll::threads;
use plimsoll::{Bytes, Device};

use super::row;
use crate::bench::workloads::Call;
use crate::bench::{self, Pace, Timing, Workload, measure, measure_on_gpu};
use crate::event::{BenchEvent, Event};
use crate::failure::Failure;
use crate::machine::Resident;
use crate::options::{BenchOptions, RunOptions};
use crate::recipe::Recipe;
use crate::run_setup;
use crate::session::Session;
use crate::terminal::{Style, write_line};

/// Measures a workload, or lists them.
///
/// # Errors
/// An unknown workload; options that mean nothing here; memory that is full.
pub fn run(recipes: &[Recipe], options: &BenchOptions) -> Result<(), Failure> {
    let workloads = bench::all();
    if options.list {
        let shipped = workloads.iter().map(|workload| row(workload.name(), workload.about()));
        let own = recipes.iter().map(|recipe| row(recipe.name(), recipe.description()));
        let list: String = shipped.chain(own).collect();
        return write_line(list.trim_end());
    }
    let name = options.workload.as_deref().unwrap_or_default();
    let own = recipes.iter().find(|recipe| recipe.name() == name);
    let shipped = workloads.iter().find(|workload| workload.name() == name);
    let measured = match (shipped, own) {
        (Some(Workload::Call { make, .. }), _) => Measured::Call(*make),
        (Some(Workload::Train(recipe)), _) | (None, Some(recipe)) => Measured::Training(recipe),
        (None, None) => {
            return Err(Failure::options(format!(
                "there is no workload `{name}`; `bench --list` lists them"
            )));
        }
    };
    let pace = measured.pace(&options.run)?;
    // Before anything is made, so that everything counts.
    Resident::forget_peak();
    let base = Resident::now();
    let session = Session::open(&options.run)?;
    let _on = session.device.enter();
    let call = match measured {
        Measured::Training(recipe) => training(recipe, options)?,
        Measured::Call(make) => make()?,
    };
    let timing = match session.device.is_host() {
        true => measure(pace, call)?,
        false => measure_on_gpu(pace, call, || session.device.synchronize())?,
    };
    let stats = session.device.stats();
    let event = BenchEvent {
        workload: name.to_owned(),
        device: session.device.name().to_owned(),
        median_ms: timing.median_ms,
        min_ms: timing.min_ms,
        peak_bytes: stats.peak_in_use,
        committed_bytes: stats.peak_committed,
        peak_anon_over_base_bytes: base.and_then(|base| Some(Resident::now()?.peak_anonymous_since(&base))),
        threads: threads::n_threads(),
        deterministic: session.device.is_deterministic(),
    };
    let style = Style::of(options.run.json);
    style.say(&describe(&event, &timing))?;
    style.emit(&Event::Bench(event))
}

/// What is measured.
enum Measured<'a> {
    /// Steps of a recipe.
    Training(&'a Recipe),
    /// A call that this makes.
    Call(fn() -> plimsoll::Result<Call>),
}

impl Measured<'_> {
    /// How long warm-up and repeats are: as many steps as the options say, or a second. An epoch has as many steps as in
    /// `train`; a call, which has no data, is an epoch of its own.
    fn pace(&self, options: &RunOptions) -> Result<Pace, Failure> {
        let epochs = match (options.steps, options.epochs) {
            (Some(steps), _) => return Ok(Pace::Calls(steps.get())),
            (None, None) => return Ok(Pace::STANDARD),
            (None, Some(epochs)) => epochs.get(),
        };
        let steps = match self {
            Measured::Training(recipe) => steps_of_epoch(recipe, options)?,
            Measured::Call(_) => 1,
        };
        Ok(Pace::Calls(epochs.saturating_mul(steps)))
    }
}

/// The steps of one pass through a recipe's data, which are only counted: a ghost has no bytes.
fn steps_of_epoch(recipe: &Recipe, options: &RunOptions) -> Result<usize, Failure> {
    let batch = run_setup::batch(recipe, options)?;
    let _on = Device::ghost_cpu().enter();
    let batches = recipe.examples(None, batch)?.train.batch(batch)?;
    batches.len().ok_or_else(|| {
        let message = "--epochs: the number of examples of the recipe is unknown; use --steps";
        Failure::options(message)
    })
}

fn describe(event: &BenchEvent, timing: &Timing) -> String {
    let process = event.peak_anon_over_base_bytes.map_or("unknown".to_owned(), |n| Bytes::new(n).to_string());
    format!(
        "{} on {}, {} threads\n  step       {:.3} ms median, {:.3} ms smallest, {:.1} ms the first; {} steps\n  \
         pool       {} in use at the peak, {} committed\n  process    {process} more than before",
        event.workload,
        event.device,
        event.threads,
        event.median_ms,
        event.min_ms,
        timing.first_ms,
        timing.n_calls,
        Bytes::new(event.peak_bytes),
        Bytes::new(event.committed_bytes),
    )
}

/// Training steps of a recipe on one fixed random batch; each reads its loss.
fn training(recipe: &Recipe, options: &BenchOptions) -> Result<Call, Failure> {
    let batch = run_setup::batch(recipe, &options.run)?;
    let model = with_policy(run_setup::policy(recipe, &options.run), || recipe.model())?;
    let optimizer = run_setup::optimizer(recipe, &options.run, u64::MAX)?;
    let pair = Batch::new(recipe.inputs().random(batch)?, recipe.labels().random(batch)?);
    let (pairs, mut steps) = (vec![pair], 0);
    let mut trainer = Trainer::new(model, optimizer, recipe.loss()).accumulate(options.run.accumulate.get());
    Ok(Box::new(move || {
        steps += 1;
        trainer.fit(&pairs, Until::Steps(steps)).map(drop)
    }))
}
