//! The setup of a training run on the current device: model, data, optimizer and length, as recipe and options say.
//!
//! It is the same on a ghost, which takes no memory and does no arithmetic: that is how the memory of the run is predicted.

use plimsoll::data::Dataset;
use plimsoll::nn::metrics::SparseCategoricalAccuracy;
use plimsoll::nn::optimizers::Optimizer;
use plimsoll::nn::train::callbacks::ModelCheckpoint;
use plimsoll::nn::train::{Callback, EpochEvent, History, Trainer, Until};
use plimsoll::nn::{Policy, with_policy, with_strategy};
use plimsoll::{Error, ErrorKind};

use crate::failure::Failure;
use crate::optimizers;
use crate::options::{RunOptions, TrainOptions};
use crate::recipe::{Length, Recipe};

/// Batches that are prepared while a step runs.
const PREFETCHED: usize = 1;
/// The size of the shuffle buffer where the number of examples is unknown.
const SHUFFLE_BUFFER: usize = 4096;

/// A run that has not begun.
pub struct RunSetup {
    /// The run itself, with what is held out.
    pub trainer: Trainer,
    /// The examples to train on, shuffled, in batches that are prefetched.
    batches: Dataset,
    /// What the run is evaluated on.
    held_out: Option<Dataset>,
    /// Where the examples come from: `shipped`, `random`, or a path.
    pub source: String,
    /// Examples of one optimizer step.
    pub batch: usize,
    /// When the run is complete.
    until: Until,
    /// The optimizer steps of the whole run.
    pub steps: u64,
}

impl RunSetup {
    /// Makes everything that a run needs before its first step.
    ///
    /// # Errors
    /// Options that do not fit the recipe; files that cannot be used; memory that is full.
    pub fn new(recipe: &Recipe, options: &TrainOptions) -> Result<RunSetup, Failure> {
        let run = &options.run;
        let batch = batch(recipe, run)?;
        let built = || with_policy(policy(recipe, run), || recipe.model());
        let model = match &options.strategy {
            None => built(),
            // What is cut into shards is never there as a whole.
            Some(strategy) => with_strategy(strategy, built),
        }?;
        let data = recipe.examples(options.data.as_ref(), batch)?;
        data.check(recipe.inputs(), recipe.labels())?;
        let n_examples = data.train.len();
        let examples = data.train.shuffle(n_examples.unwrap_or(SHUFFLE_BUFFER), run.seed);
        // As many at a time as a step holds, so that evaluating never takes more memory than training.
        let part = batch.div_ceil(n_parts(options)?);
        let held_out = data.held_out.as_ref().map(|held_out| held_out.batch(part)).transpose()?;
        let until = until(recipe, options);
        let steps = match until {
            Until::Steps(steps) => steps,
            Until::Epochs(epochs) => {
                epochs.saturating_mul(n_examples.map_or(1, |n| n.div_ceil(batch)) as u64)
            }
        };
        if options.strategy.is_some() {
            check_last_batch(n_examples, batch, steps, n_parts(options)?)?;
        }
        let optimizer = optimizer(recipe, run, steps)?;
        let mut trainer = Trainer::new(model, optimizer, recipe.loss())
            .accumulate(run.accumulate.get())
            // Epochs are reported as they end and are not needed afterwards.
            .keep_epochs(0)
            .setting("--batch", batch)
            .setting("--accumulate", run.accumulate)
            .setting("--seed", run.seed)
            .setting("--optimizer", run.optimizer.as_deref().unwrap_or("of the recipe"))
            .setting("a number of examples", n_examples.map_or("unknown".to_owned(), |n| n.to_string()));
        if let Some(strategy) = &options.strategy {
            trainer = trainer.strategy(strategy.clone());
        }
        if let Some(held_out) = &held_out {
            trainer = trainer.held_out(held_out.clone());
        }
        if recipe.labels().are_classes() {
            trainer = trainer.metric(SparseCategoricalAccuracy::new());
        }
        let batches = examples.batch(batch)?.prefetch(PREFETCHED);
        Ok(RunSetup { trainer, batches, held_out, source: data.source, batch, until, steps })
    }

    /// This run with another callback.
    pub fn callback(self, callback: impl Callback + 'static) -> RunSetup {
        RunSetup { trainer: self.trainer.callback(callback), ..self }
    }

    /// This run with checkpoints, if the options ask for them.
    pub fn saving(self, options: &TrainOptions) -> RunSetup {
        match &options.save {
            Some(folder) => self.callback(ModelCheckpoint::new(folder)),
            None => self,
        }
    }

    /// Resumes from a checkpoint, if the options ask for it.
    ///
    /// # Errors
    /// No checkpoint, a damaged one, or one of another run.
    pub fn resume(&mut self, options: &TrainOptions) -> Result<(), Failure> {
        match &options.resume {
            Some(folder) => Ok(self.trainer.resume(folder)?),
            None => Ok(()),
        }
    }

    /// Trains until the run is complete.
    ///
    /// # Errors
    /// Those of [`Trainer::fit`].
    pub fn fit(&mut self) -> Result<History, Failure> {
        self.trainer.fit(&self.batches, self.until).map_err(|error| self.blamed(error))
    }

    /// An error of a step: what an op refuses in examples that come from files is wrong with the files, such as a label
    /// that names no class. Their shapes were checked before.
    fn blamed(&self, error: Error) -> Failure {
        let is_of_values = match error.kind() {
            ErrorKind::Shape { op, .. } | ErrorKind::DType { op, .. } | ErrorKind::Argument { op, .. } => {
                *op != "fit"
            }
            _ => false,
        };
        match is_of_values && !matches!(self.source.as_str(), "shipped" | "random") {
            true => Failure::file(format!("{}: {error}", self.source)),
            false => error.into(),
        }
    }

    /// Evaluates the last epoch if the run ended in the middle of it.
    ///
    /// # Errors
    /// Those of [`Trainer::evaluate`].
    pub fn eval_partial_epoch(&mut self) -> Result<Option<EpochEvent>, Failure> {
        let state = self.trainer.state();
        if state.batch == 0 {
            return Ok(None);
        }
        let held_out = self.held_out.as_ref().map(|held_out| self.trainer.evaluate(held_out)).transpose();
        let held_out = held_out.map_err(|error| self.blamed(error))?;
        let loss = state.loss_sum / state.n_losses as f64;
        Ok(Some(EpochEvent { epoch: state.epoch + 1, step: state.step, loss, metrics: Vec::new(), held_out }))
    }
}

/// In how many parts a batch is worked through, by all ranks together.
fn n_parts(options: &TrainOptions) -> Result<usize, Failure> {
    let accumulate = options.run.accumulate.get();
    match &options.strategy {
        None => Ok(accumulate),
        Some(strategy) => strategy
            .share_out(accumulate)
            .map(|leaves| leaves.n_leaves())
            .map_err(|error| Failure::options(format!("--leaves: {error}"))),
    }
}

/// Refuses leaves that are more than the examples of an epoch's last batch, if the run comes to it.
fn check_last_batch(
    n_examples: Option<usize>,
    batch: usize,
    steps: u64,
    n_leaves: usize,
) -> Result<(), Failure> {
    let Some(n_examples) = n_examples else { return Ok(()) };
    let (n_whole, last) = (n_examples / batch, n_examples % batch);
    match last > 0 && last < n_leaves && steps > n_whole as u64 {
        true => Err(Failure::options(format!(
            "--leaves: the last batch of an epoch has {last} examples, fewer than {n_leaves} leaves; take another --batch than \
             {batch}, of which {n_examples} examples leave none or enough"
        ))),
        false => Ok(()),
    }
}

fn until(recipe: &Recipe, options: &TrainOptions) -> Until {
    match (options.run.steps, options.run.epochs, recipe.default_length()) {
        (Some(steps), _, _) => Until::Steps(steps.get() as u64),
        (None, Some(epochs), _) => Until::Epochs(epochs.get() as u64),
        (None, None, Length::Steps(steps)) => Until::Steps(steps),
        (None, None, Length::Epochs(epochs)) => Until::Epochs(epochs),
    }
}

/// The addresses that a process can have: no batch of more bytes can be, and all bytes of a smaller one's steps can be counted.
const MOST_BYTES: usize = 1 << 47;

/// The examples of one optimizer step.
///
/// # Errors
/// More parts than examples; more examples than there can be.
pub fn batch(recipe: &Recipe, options: &RunOptions) -> Result<usize, Failure> {
    let batch = options.batch.map_or(recipe.default_batch(), |batch| batch.get());
    let parts = options.accumulate.get();
    let example = recipe.inputs().n_bytes().saturating_add(recipe.labels().n_bytes());
    let most = MOST_BYTES / example.max(1);
    if batch > most {
        return Err(Failure::options(format!(
            "--batch {batch}: an example of {} takes {example} bytes, and no process has addresses for more than {most} of \
             them",
            recipe.name()
        )));
    }
    match parts <= batch {
        true => Ok(batch),
        false => Err(Failure::options(format!(
            "--accumulate {parts}: a batch of {batch} cannot be worked through in {parts} parts"
        ))),
    }
}

/// How layers compute: as the options say, or as the recipe does.
pub fn policy(recipe: &Recipe, options: &RunOptions) -> Policy {
    options.precision.unwrap_or(recipe.default_precision())
}

/// The optimizer that the options name, or the recipe's.
///
/// # Errors
/// An unknown name; a schedule that does not fit the number of steps.
pub fn optimizer(recipe: &Recipe, options: &RunOptions, steps: u64) -> Result<Optimizer, Failure> {
    match &options.optimizer {
        Some(name) => Ok(optimizers::by_name(name)?.build()),
        None => Ok(recipe.make_optimizer(steps)?),
    }
}
