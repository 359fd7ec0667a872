//! `plimsoll train`: a recipe from its data to its weights, with a memory summary at the end.

use plimsoll::nn::Policy;
use plimsoll::nn::checkpoint;
use plimsoll::nn::plan::Footprint;
use plimsoll::nn::train::callbacks::{TensorBoard, WatchGrowth};
use plimsoll::nn::train::{History, INTERRUPTED};
use plimsoll::{Device, Stats};
use serde_json::{Value, json};

use super::find;
use crate::actions;
use crate::digest::parameters_sha256;
use crate::distributed;
use crate::event::{EndEvent, Event};
use crate::failure::{Exit, Failure};
use crate::live::Live;
use crate::options::TrainOptions;
use crate::preflight;
use crate::profile::{self, About, ProfileFile, Recording, ReportPlace};
use crate::progress::Progress;
use crate::recipe::Recipe;
use crate::reporter::Reporter;
use crate::run_setup::{self, RunSetup, batch};
use crate::session::{Outside, Session, allow_spilling};
use crate::stop;
use crate::summary;
use crate::terminal::{self, Style};

/// Trains a recipe.
///
/// # Errors
/// Bad options, files that cannot be used, a limit that cannot be kept, an interruption.
pub fn run(recipes: &[Recipe], options: &TrainOptions) -> Result<(), Failure> {
    match distributed::join(options)? {
        None => run_here(recipes, options),
        Some(joined) => distributed::ended(&joined, run_here(recipes, &joined)),
    }
}

/// Trains a recipe in this process, as a rank if it has joined others.
fn run_here(recipes: &[Recipe], options: &TrainOptions) -> Result<(), Failure> {
    let recipe = find(recipes, &options.recipe)?;
    profile::check_report(options.report.as_deref())?;
    let session = Session::open(&options.run)?;
    let _on = session.device.enter();
    let joined = distributed::between_gpus(options, &session.device)?;
    let options = joined.as_ref().unwrap_or(options);
    allow_spilling(&session.device, options.spill.as_deref())?;
    // A signal ends all ranks at once: one that ended by itself would be waited for.
    if !options.distributed {
        stop::listen()?;
    }
    let style = if options.is_first() { Style::of(options.run.json) } else { Style::Silent };
    let place = ReportPlace::of(options.oom_report.as_deref(), recipe, options.report.as_deref());
    let predicted = preflight::predicted(recipe, options, &session.device)
        .map_err(|failure| explain_refusal(failure, recipe, options, &session, place.as_ref()))?;
    let prediction = match options.report {
        Some(_) if predicted.is_some() => {
            Some(record_dry_run(recipe, options, &session.device.ghost(), &session)?)
        }
        _ => None,
    };
    let recording = recording(recipe, options, &session, predicted.as_ref(), place.is_some())?;
    let live = options.live.zip(recording.as_ref());
    let live = live.map(|(port, recording)| Live::start(recording.path(), port)).transpose()?;
    let ended = match (train(recipe, options, &session, style, live), recording) {
        (Ok(ended), recording) => {
            if let Some(recording) = &recording {
                recording.profiler.add(&recomputed_and_offloaded(&ended.event));
                ended.outside.iter().for_each(|outside| recording.profiler.add(&outside.to_json()));
            }
            // What would help one rank would help the others as much.
            if let (Some(recording), true) = (&recording, predicted.is_some() && options.is_first()) {
                add_actions(recording, recipe, options, &session.device);
            }
            end_recording(recording, prediction.as_ref(), options);
            ended
        }
        (Err(failure), Some(recording)) => return Err(recording.explain(failure, place.as_ref())),
        (Err(failure), None) => {
            return Err(explain_refusal(failure, recipe, options, &session, place.as_ref()));
        }
    };
    // Model, optimizer and data have been dropped by now, and their pages returned.
    let released_bytes = ended.stats.committed.saturating_sub(session.device.stats().committed);
    style.say(&summary::describe(&ended.stats, session.limit, ended.outside, released_bytes))?;
    let mut event = EndEvent {
        predicted_peak_bytes: predicted.map(|footprint| footprint.peak),
        predicted_committed_bytes: predicted.map(|footprint| footprint.committed),
        released_bytes,
        ..ended.event
    };
    event.ranks = distributed::memory_of_ranks(options, &event)?;
    if let Some(ranks) = event.ranks.as_deref().filter(|ranks| ranks.len() > 1) {
        style.say(&summary::ranks(ranks))?;
    }
    style.emit(&Event::End(Box::new(event)))?;
    match ended.history.stopped.as_deref() {
        Some(INTERRUPTED) => {
            let message = format!("{INTERRUPTED} after step {}", ended.history.steps);
            Err(Failure::with(Exit::Interrupted, message))
        }
        _ => Ok(()),
    }
}

/// A recording where options ask for one, or where a failure for lack of memory could not be explained without.
fn recording(
    recipe: &Recipe,
    options: &TrainOptions,
    session: &Session,
    predicted: Option<&Footprint>,
    explains_failures: bool,
) -> Result<Option<Recording>, Failure> {
    let is_asked = options.profile.is_some() || options.report.is_some() || options.live.is_some();
    if !is_asked && (predicted.is_some() || !explains_failures) {
        return Ok(None);
    }
    match record(recipe, options, session, predicted) {
        Err(failure) if is_asked => Err(failure),
        // Where nobody asked for it, a disk that is full is no reason not to train.
        recording => Ok(recording.ok()),
    }
}

/// Begins to record a run.
fn record(
    recipe: &Recipe,
    options: &TrainOptions,
    session: &Session,
    predicted: Option<&Footprint>,
) -> Result<Recording, Failure> {
    let about = about(recipe, options, session, false)?;
    let file = ProfileFile::at(options.profile.as_deref())?;
    let recording = file.record(&session.device, &options.run, &about)?.keep_steps(options.profile_steps);
    if let Some(Footprint { peak, committed, .. }) = predicted {
        let known = json!({ "predicted_peak_bytes": peak, "predicted_committed_bytes": committed });
        recording.profiler.add(&known);
    }
    Ok(recording)
}

/// Ends the recording of a run that has succeeded, and writes its page. What cannot be written is a warning, because the run is
/// what counts.
fn end_recording(recording: Option<Recording>, prediction: Option<&ProfileFile>, options: &TrainOptions) {
    let file = recording.map(Recording::finish_or_warn);
    if let (Some(file), Some(path)) = (file, &options.report)
        && let Err(failure) = file.write_page(path, prediction)
    {
        terminal::warn(&format!("warning: {failure}"));
    }
}

/// For a profile: what was recomputed and offloaded to keep the limit.
fn recomputed_and_offloaded(event: &EndEvent) -> Value {
    json!({
        "recomputed_ops": event.recomputed_ops,
        "recomputed_flops": event.recomputed_flops,
        "offloaded_bytes": event.offloaded_bytes,
    })
}

/// Adds to a profile what would help the run; by now everything that it made is gone from the device.
fn add_actions(recording: &Recording, recipe: &Recipe, options: &TrainOptions, device: &Device) {
    // A run that goes on from a checkpoint would look for it again, after it was written over.
    if let Some(actions) = actions::json(recipe, &TrainOptions { resume: None, ..options.clone() }, device) {
        recording.profiler.add(&actions);
    }
}

/// The profile of a run's dry run.
fn record_dry_run(
    recipe: &Recipe,
    options: &TrainOptions,
    ghost: &Device,
    session: &Session,
) -> Result<ProfileFile, Failure> {
    let about = about(recipe, options, session, true)?;
    let recording = ProfileFile::at(None)?.record(ghost, &options.run, &about)?;
    let _on = ghost.enter();
    preflight::recorded_dry_run(recipe, options)?;
    recording.finish()
}

/// A run that lacks memory and was not recorded: profile and page show the run as it would be without a limit, against the one
/// that it has.
fn explain_refusal(
    failure: Failure,
    recipe: &Recipe,
    options: &TrainOptions,
    session: &Session,
    place: Option<&ReportPlace>,
) -> Failure {
    let Some(place) = place.filter(|_| failure.exit == Exit::Limit) else { return failure };
    let recorded = || {
        let ghost = session.device.ghost();
        ghost.set_limit(None)?;
        let about = about(recipe, options, session, true)?;
        let file = ProfileFile::at(options.profile.as_deref())?;
        let recording = file.record(&ghost, &options.run, &about)?;
        recording.profiler.add(&profile::refused(&failure));
        add_actions(&recording, recipe, options, &ghost.ghost());
        let _on = ghost.enter();
        preflight::recorded_dry_run(recipe, options)?;
        recording.finish()
    };
    match recorded() {
        Ok(file) => place.keep(file, failure),
        // Whatever is wrong with the run without a limit, too, the refusal is what there is to say.
        Err(_) => failure,
    }
}

fn about<'a>(
    recipe: &'a Recipe,
    options: &TrainOptions,
    session: &'a Session,
    is_plan: bool,
) -> Result<About<'a>, Failure> {
    Ok(About {
        recipe,
        batch: batch(recipe, &options.run)?,
        device: session.device.name(),
        limit_bytes: session.limit.bytes,
        is_plan,
        rank: options.rank(),
    })
}

/// What is left of a run.
struct Ended {
    history: History,
    /// The memory before model, optimizer and data were dropped.
    stats: Stats,
    outside: Option<Outside>,
    event: EndEvent,
}

/// Trains, and drops everything that it made.
fn train(
    recipe: &Recipe,
    options: &TrainOptions,
    session: &Session,
    style: Style,
    live: Option<Live>,
) -> Result<Ended, Failure> {
    if let Some(folder) = options.save.as_ref().filter(|_| options.is_first()) {
        checkpoint::check_writable(folder).map_err(|error| Failure::file(format!("--save: {error}")))?;
    }
    let run = RunSetup::new(recipe, options)?;
    let reporter = Reporter::new(style, Progress::new(run.steps, session.limit.bytes));
    let watch = WatchGrowth::new(&session.device);
    let mut run = run.callback(reporter.clone()).callback(watch.clone()).saving(options);
    if let Some(live) = live {
        run = run.callback(live);
    }
    if let Some(folder) = &options.tensorboard {
        let board = TensorBoard::new(folder);
        run = run.callback(board.map_err(|error| Failure::file(format!("--tensorboard: {error}")))?);
    }
    run.resume(options)?;
    if options.resume.is_some() {
        reporter.resume_from(run.trainer.state().step);
    }
    introduce(recipe, &run.source, style)?;
    let history = stop::between_steps(|| run.fit())?;
    // A profile has the names of those that keep memory alive from here.
    drop(session.device.pool().has_sink().then(|| session.device.why_alive()));
    if options.watch_growth {
        style.say(&summary::growth(&watch.growth()))?;
    }
    if history.stopped.is_none() {
        reporter.evaluating();
        run.eval_partial_epoch()?.map_or(Ok(()), |part| reporter.report_epoch(&part))?;
    }
    let report = RunReport {
        batch: run.batch,
        data: run.source,
        steps: history.steps,
        loss: reporter.last_loss(),
        median_ms: reporter.median_ms(),
        policy: run_setup::policy(recipe, &options.run),
        parameters_sha256: parameters_sha256(&run.trainer)?,
        outside: session.outside(),
    };
    let (stats, outside) = (session.device.stats(), report.outside);
    Ok(Ended { history, stats, outside, event: end_event(recipe, session, report) })
}

/// Says what is trained, and on what.
fn introduce(recipe: &Recipe, source: &str, style: Style) -> Result<(), Failure> {
    let what = match source {
        "random" => "random data, from which nothing can be learnt but by heart".to_owned(),
        "shipped" => "the data that the program ships".to_owned(),
        path => path.to_owned(),
    };
    style.say(&format!("{}: {}\ndata: {what}", recipe.name(), recipe.description()))
}

/// The last event, but for the released bytes.
fn end_event(recipe: &Recipe, session: &Session, report: RunReport) -> EndEvent {
    let (stats, repeated) = (session.device.stats(), session.device.recomputed());
    EndEvent {
        recipe: recipe.name().to_owned(),
        device: session.device.name().to_owned(),
        batch: report.batch,
        precision: report.policy.name(),
        seed: session.seed,
        data: report.data,
        version: env!("CARGO_PKG_VERSION"),
        steps: report.steps,
        loss: report.loss,
        loss_bits: report.loss.map(|loss| format!("{:08x}", (loss as f32).to_bits())),
        parameters_sha256: report.parameters_sha256,
        predicted_peak_bytes: None,
        predicted_committed_bytes: None,
        peak_bytes: stats.peak_in_use,
        committed_bytes: stats.peak_committed,
        outside_bytes: report.outside.map(Outside::bytes),
        limit_bytes: session.limit.bytes,
        limit_from: session.limit.from,
        recomputed_ops: repeated.ops,
        recomputed_flops: repeated.flops,
        offloaded_bytes: session.device.offloaded().get(),
        median_step_ms: report.median_ms,
        released_bytes: 0,
        ranks: None,
    }
}

/// What the run itself reports in its last line.
struct RunReport {
    batch: usize,
    data: String,
    steps: u64,
    loss: Option<f64>,
    median_ms: Option<f64>,
    policy: Policy,
    parameters_sha256: String,
    outside: Option<Outside>,
}
