//! `plimsoll bench`: one workload, timed and measured.

use plimsoll::nn::losses::Loss;
use plimsoll::nn::optimizers::Optimizer;
use plimsoll::nn::{Mode, Model, with_policy};
use plimsoll::{Bytes, Device, Error, GradientTape, Result, Step, Tensor, Unconnected, Variable};
use plimsoll_cpu::threads;

use super::row;
use crate::bench::workloads::Call;
use crate::bench::{self, Pace, Workload, measure};
use crate::event::{BenchEvent, Event};
use crate::failure::Failure;
use crate::machine::Resident;
use crate::optimizers;
use crate::options::BenchOptions;
use crate::recipe::{Recipe, SharedLoss};
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
    if options.run.epochs.is_some() {
        return Err(Failure::options("--epochs: a benchmark has one batch and no epochs; write --steps"));
    }
    // Before anything is made, so that everything that is counts.
    Resident::forget_peak();
    let base = Resident::now();
    let session = Session::open(&options.run)?;
    let _on = session.device.enter();
    let own = recipes.iter().find(|recipe| recipe.name() == name);
    let shipped = workloads.iter().find(|workload| workload.name() == name);
    let call = match (shipped, own) {
        (Some(Workload::Call { make, .. }), _) => make()?,
        (Some(Workload::Train(recipe)), _) | (None, Some(recipe)) => training(recipe, &session, options)?,
        (None, None) => {
            return Err(Failure::options(format!("there is no workload `{name}`; `bench --list` lists them")));
        }
    };
    let pace = options.run.steps.map_or(Pace::STANDARD, |steps| Pace::Calls(steps.get()));
    let timing = measure(pace, call)?;
    let stats = session.device.stats();
    let event = BenchEvent {
        workload: name.to_owned(),
        device: session.device.name().to_owned(),
        median_ms: timing.median_ms,
        min_ms: timing.min_ms,
        peak_bytes: stats.peak_in_use,
        committed_bytes: stats.peak_committed,
        peak_anon_over_base_bytes: base
            .and_then(|base| Some(Resident::now()?.peak_anonymous_since(&base))),
        threads: threads::n_threads(),
    };
    let style = Style::of(options.run.json);
    style.say(&describe(&event, timing.first_ms))?;
    style.emit(&Event::Bench(event))
}

fn describe(event: &BenchEvent, first_ms: f64) -> String {
    let process = event.peak_anon_over_base_bytes.map_or("unknown".to_owned(), |n| Bytes::new(n).to_string());
    format!(
        "{} on {}, {} threads\n  step       {:.3} ms median, {:.3} ms smallest, {first_ms:.1} ms the first\n  \
         pool       {} in use at the peak, {} committed\n  process    {process} more than before",
        event.workload,
        event.device,
        event.threads,
        event.median_ms,
        event.min_ms,
        Bytes::new(event.peak_bytes),
        Bytes::new(event.committed_bytes),
    )
}

/// Training steps of a recipe on one fixed random batch; each reads its loss.
fn training(recipe: &Recipe, session: &Session, options: &BenchOptions) -> Result<Call, Failure> {
    if options.run.accumulate.get() > 1 {
        return Err(Failure::options("--accumulate: a benchmark works through its batch in one part"));
    }
    let batch = options.run.batch.map_or(recipe.default_batch(), |batch| batch.get());
    let model = with_policy(session.policy, || recipe.model())?;
    let optimizer = match &options.run.optimizer {
        Some(name) => optimizers::by_name(name)?.build(),
        None => recipe.make_optimizer(u64::MAX)?,
    };
    let mut trained = Trained {
        variables: model.trainable_variables(),
        device: session.device.clone(),
        x: recipe.inputs().random(batch)?,
        labels: recipe.labels().random(batch)?,
        loss: recipe.loss(),
        model,
        optimizer,
    };
    Ok(Box::new(move || trained.step()))
}

/// A model with its optimizer and one batch.
struct Trained {
    model: Model,
    variables: Vec<Variable>,
    optimizer: Optimizer,
    loss: SharedLoss,
    device: Device,
    x: Tensor,
    labels: Tensor,
}

impl Trained {
    /// Forward, loss, backward and update; then the loss is read.
    fn step(&mut self) -> Result<()> {
        let device = self.device.clone();
        let loss = Step::run(&device, || {
            let tape = GradientTape::new();
            let (loss, scaled) = tape.record(|| {
                let predictions = self.model.forward(&self.x, Mode::Train)?;
                let loss = self.loss.call(&self.labels, &predictions)?;
                let scaled = self.optimizer.scale_loss(&loss)?;
                Ok::<_, Error>((loss.stop_gradient(), scaled))
            })?;
            let sources: Vec<&Tensor> = self.variables.iter().map(|variable| &**variable).collect();
            let gradients = tape.gradients(&[&scaled], None, &sources, Unconnected::None)?;
            self.optimizer.apply_gradients(gradients, &self.variables)?;
            Ok(loss)
        })?;
        loss.to_f64_vec().map(drop)
    }
}
