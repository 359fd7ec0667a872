//! The train loop: a model, an optimizer, a loss and data become a trained model.
//!
//! A [`Trainer`] makes steps. Each is atomic: forward, loss, gradients and update happen inside one
//! [`Step`](plimsoll_tensor::Step), and one that fails leaves model, optimizer and generator as they were. What else
//! is to happen, saving, stopping, logging, showing progress, is the business of [`callbacks`]; the library itself never
//! prints. A run that was saved and is resumed goes on bit for bit as if it had never stopped, in the middle of an epoch
//! as well.
//!
//! ```
//! use plimsoll_data::Dataset;
//! use plimsoll_nn::layers::{Dense, Sequential};
//! use plimsoll_nn::losses::MeanSquaredError;
//! use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
//! use plimsoll_nn::train::{Trainer, Until, callbacks::EarlyStopping};
//! use plimsoll_nn::Layer;
//! use plimsoll_tensor::{Activation, Tensor, set_seed};
//!
//! set_seed(0);
//! let inputs = Tensor::randn([256, 3])?;
//! let labels = inputs.sum(1)?.sin()?.reshape([256, 1])?;
//! let data = Dataset::from_tensor_slices((inputs, labels))?;
//! let (held_out, data) = (data.take(64).batch(64)?, data.skip(64).shuffle(192, 1).batch(32)?.prefetch(2));
//!
//! let model = Sequential::new().add(Dense::new(32).activation(Activation::Tanh)).add(Dense::new(1)).build([3])?;
//! let mut trainer = Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError)
//!     .held_out(held_out)
//!     .callback(EarlyStopping::new(5));
//! let history = trainer.fit(&data, Until::Epochs(50))?;
//! let best = history.epochs.iter().filter_map(|epoch| Some(epoch.held_out.as_ref()?.loss)).fold(1.0, f64::min);
//! assert!(best < 0.1, "{best}");
//! # Ok::<(), plimsoll_tensor::Error>(())
//! ```

mod callback;
pub mod callbacks;
mod data_parallel;
mod dry_run;
mod evaluation;
mod event;
mod examples;
mod finite;
mod history;
mod own;
mod pending;
mod predict;
mod programs;
mod saving;
mod step;

use std::path::Path;
use std::time::Instant;

use plimsoll_memory::STEP;
use plimsoll_plan::PlanSet;
use plimsoll_tensor::{Bytes, Device, Error, ErrorKind, Generator, Result, Unconnected, at_callers_line};

use crate::checkpoint::{self, Change, NameMap, RunState};
use crate::losses::Loss;
use crate::metrics::Metric;
use crate::model::Model;
use crate::optimizers::{LossScale, Optimizer};
use crate::plan::SAVE;
use callback::Wanted;
pub use callback::{Callback, Requests};
use dry_run::CycleSkipper;
use evaluation::Evaluator;
pub use event::{EpochEvent, Evaluation, MemoryUse, StepEvent};
pub use examples::{Batch, Epoch, Examples};
pub use history::{Epochs, History};
pub use own::{StepParts, TrainStep};
use pending::{Numbers, Pending};
use programs::Programs;
use step::{Stepper, in_batch};

/// Why a run ends when somebody asked for it, by a signal or otherwise.
pub const INTERRUPTED: &str = "interrupted";

/// When a run is complete. Both count from its very beginning, resumed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so many passes through the data.
    Epochs(u64),
    /// After so many optimizer steps.
    Steps(u64),
}

impl Until {
    fn is_reached(self, state: &RunState) -> bool {
        match self {
            Until::Epochs(n) => state.epoch >= n,
            Until::Steps(n) => state.step >= n,
        }
    }

    /// The steps that the present epoch can have before the run is complete.
    fn steps_left(self, state: &RunState) -> u64 {
        match self {
            Until::Epochs(_) => u64::MAX,
            Until::Steps(n) => n.saturating_sub(state.step),
        }
    }

    /// The whole epochs, of so many batches, that are left.
    fn epochs_left(self, state: &RunState, n_batches: u64) -> u64 {
        match self {
            Until::Epochs(n) => n.saturating_sub(state.epoch),
            Until::Steps(n) => n.saturating_sub(state.step).checked_div(n_batches).unwrap_or(0),
        }
    }
}

/// A run: trains a model, and knows how far it has come.
pub struct Trainer {
    stepper: Stepper,
    metrics: Vec<Box<dyn Metric>>,
    held_out: Option<Box<dyn Examples>>,
    callbacks: Vec<Box<dyn Callback>>,
    state: RunState,
    /// The generator of a run that was resumed, until it goes on.
    generator: Option<Generator>,
    /// The last step, if its numbers have not been told.
    pending: Option<Pending>,
    /// When a step was last told of.
    told: Option<Instant>,
    /// The limit under which the evaluation of the held-out data was last found to work.
    preflighted: Option<Option<Bytes>>,
    /// How many epochs the history keeps.
    kept_epochs: usize,
}

impl Trainer {
    /// A run that has not begun. Under `mixed_float16` the loss is scaled, as the optimizer says or as
    /// [`LossScale::new`] does.
    pub fn new(model: Model, optimizer: Optimizer, loss: impl Loss + 'static) -> Trainer {
        let needs_scale = model.policy().needs_loss_scale() && !optimizer.has_loss_scale();
        let optimizer = if needs_scale { optimizer.loss_scale(LossScale::new()) } else { optimizer };
        let zero = model.take_shards();
        Trainer {
            state: RunState::start(model.policy()),
            stepper: Stepper {
                all_variables: model.variables(),
                variables: model.trainable_variables(),
                metrics: Vec::new(),
                model,
                optimizer,
                loss: Box::new(loss),
                n_parts: 1,
                check_gradients: false,
                unconnected: Unconnected::None,
                strategy: None,
                zero,
                is_as_first_rank: false,
                own: None,
                steps: Programs::default(),
                evaluations: Programs::default(),
            },
            metrics: Vec::new(),
            held_out: None,
            callbacks: Vec::new(),
            generator: None,
            pending: None,
            told: None,
            preflighted: None,
            kept_epochs: usize::MAX,
        }
    }

    /// This run with each batch worked through in `n_parts` parts whose sizes differ by at most one: less memory for
    /// activations, and the same gradient up to rounding. Under a mixed policy the gradients are added up in f32.
    #[must_use]
    pub fn accumulate(mut self, n_parts: usize) -> Trainer {
        self.stepper.n_parts = n_parts;
        self
    }

    /// This run with every gradient looked at: one that is not finite is an error that names its variable. With a loss
    /// scale there is no need for it: such steps are skipped, and say why.
    #[must_use]
    pub fn check_gradients(mut self) -> Trainer {
        self.stepper.check_gradients = !self.stepper.optimizer.has_loss_scale();
        self
    }

    /// This run with a choice for variables that a step's loss does not depend on, such as those of a layer that is left out
    /// at random: they are an error, unless their gradients are to be zeros.
    #[must_use]
    pub fn unconnected_gradients(mut self, unconnected: Unconnected) -> Trainer {
        self.stepper.unconnected = unconnected;
        self
    }

    /// This run with a train step of one's own, which is given each batch whole.
    #[must_use]
    pub fn train_step(mut self, step: impl TrainStep + 'static) -> Trainer {
        self.stepper.own = Some(Box::new(step));
        self
    }

    /// This run with one metric more, which evaluations tell.
    #[must_use]
    pub fn metric(mut self, metric: impl Metric + 'static) -> Trainer {
        self.metrics.push(Box::new(metric));
        self
    }

    /// This run with a metric of its training steps, told with each step and epoch: it takes in what the model said before
    /// the update, as part of the step, so a step that fails does not count. A model that leaves its last linear function to
    /// the loss computes it for the metric, too.
    #[must_use]
    pub fn training_metric(mut self, metric: impl Metric + 'static) -> Trainer {
        self.stepper.metrics.push(Box::new(metric));
        self
    }

    /// This run with data that it is not trained on, evaluated after each epoch.
    #[must_use]
    pub fn held_out(mut self, data: impl Examples + 'static) -> Trainer {
        self.held_out = Some(Box::new(data));
        self.preflighted = None;
        self
    }

    /// This run with a history of at most so many epochs, the last ones, rather than of all: what it retains is then
    /// bounded, see [`History`].
    #[must_use]
    pub fn keep_epochs(mut self, most: usize) -> Trainer {
        self.kept_epochs = most;
        self
    }

    /// This run with something that its numbers follow from, under a name, such as the seed of its data. A checkpoint
    /// keeps it, and a run that says otherwise cannot resume from there.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Trainer {
        self.state.settings.insert(name.into(), value.to_string());
        self
    }

    /// This run with one callback more.
    #[must_use]
    pub fn callback(mut self, callback: impl Callback + 'static) -> Trainer {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.stepper.model
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.stepper.optimizer
    }

    /// The optimizer, with all that it keeps, of a run that is over.
    pub fn into_optimizer(self) -> Optimizer {
        self.stepper.optimizer
    }

    /// How far the run has come, and all else that a checkpoint of it would say.
    pub fn state(&self) -> RunState {
        let callbacks = self.callbacks.iter().enumerate();
        let states =
            callbacks.filter_map(|(idx, callback)| Some((callback_key(idx, &**callback), callback.state()?)));
        let rate_factor = self.stepper.optimizer.rate_factor();
        RunState { callbacks: states.collect(), rate_factor, ..self.state.clone() }
            .with_generator(self.generator.unwrap_or_else(Generator::current))
    }

    /// Saves the run in a folder, in place of the checkpoint that it holds.
    ///
    /// # Errors
    /// A folder that cannot be written; the checkpoint before stays.
    #[track_caller]
    pub fn save(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        let _line = at_callers_line();
        self.prepare()?;
        let device = self.device();
        device.pool().mark(SAVE, 0);
        // Files are written straight from where the values are, and a ghost has none.
        if device.is_ghost() {
            return Ok(());
        }
        let saved = self.save_values(folder.as_ref());
        self.report_failure(&saved);
        saved
    }

    /// The device of the model.
    fn device(&self) -> Device {
        self.stepper.variables.first().map_or_else(Device::current, |variable| variable.device())
    }

    /// The devices of the model; the first is where a run begins and ends.
    fn devices(&self) -> Vec<Device> {
        let first = self.device();
        let others = self.stepper.model.devices().into_iter().filter(|device| *device != first);
        std::iter::once(first.clone()).chain(others).collect()
    }

    /// Takes up a run that was saved in a folder: model, optimizer, generator, callbacks, and the place in the data.
    ///
    /// # Errors
    /// No checkpoint, a damaged one, or one of another model or optimizer, or of a run with other settings; model and
    /// optimizer are then as before.
    #[track_caller]
    pub fn resume(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        let _line = at_callers_line();
        self.prepare()?;
        self.note_leaves()?;
        // What was trained before and is frozen now has its state there, too.
        let kept = checkpoint::with_optimizer_state(folder.as_ref(), &self.stepper.all_variables)?;
        self.keep_for(&kept)?;
        let mut state = self.load_values(folder.as_ref())?;
        state.settings.extend(std::mem::take(&mut self.state.settings));
        for (idx, callback) in self.callbacks.iter_mut().enumerate() {
            if let Some(known) = state.callbacks.get(&callback_key(idx, &**callback)) {
                callback.restore(known)?;
            }
        }
        self.generator = Some(state.generator());
        self.stepper.optimizer.set_rate_factor(state.rate_factor);
        self.state = state;
        Ok(())
    }

    /// Makes the optimizer's state and that of metrics, which the first step needs and a checkpoint is loaded into.
    fn prepare(&mut self) -> Result<()> {
        self.stepper.select_variables()?;
        let device = self.device();
        self.stepper.metrics.iter_mut().try_for_each(|metric| metric.prepare(&device))?;
        self.stepper.optimizer.prepare(&self.stepper.updated())
    }

    /// The memory plans of a step with this batch on its device, from the leanest to the natural one: what each commits, and how
    /// long it takes by the cost model. Under a limit a step takes the fastest that fits.
    ///
    /// # Errors
    /// A batch that does not fit the model; memory that is full.
    #[track_caller]
    pub fn memory_plans(&mut self, batch: &Batch) -> Result<PlanSet> {
        let _line = at_callers_line();
        self.prepare()?;
        self.stepper.memory_plans(&batch.device(), batch)
    }

    /// The program of a step with this batch, after passes.
    #[doc(hidden)]
    #[track_caller]
    pub fn step_program(&mut self, batch: &Batch) -> Result<plimsoll_tensor::Program> {
        let _line = at_callers_line();
        self.prepare()?;
        Ok(self.stepper.program(batch)?.program().clone())
    }

    /// Trains until so many epochs or steps are done, counted from the beginning of the run, or a callback stops it.
    ///
    /// # Errors
    /// No data; data that do not fit the model; a loss that is not finite, with what causes it; memory that is full. The
    /// step that failed has changed nothing. Held-out data that could not be evaluated are refused before the first step.
    #[track_caller]
    pub fn fit(&mut self, data: &dyn Examples, until: Until) -> Result<History> {
        let _line = at_callers_line();
        let ended = self.train(data, until);
        self.report_failure(&ended);
        ended
    }

    fn train(&mut self, data: &dyn Examples, until: Until) -> Result<History> {
        self.prepare()?;
        self.check_ranks(&self.device())?;
        self.preflight(data, until)?;
        if let Some(generator) = self.generator.take() {
            generator.make_current();
        }
        self.check_place(data)?;
        let _threads = data.start_threads()?;
        let epochs = Epochs::keeping(self.kept_epochs);
        let mut history = History { epochs, steps: self.state.step, ..History::default() };
        let mut epochs = CycleSkipper::new(&self.devices());
        while history.stopped.is_none() && !until.is_reached(&self.state) {
            self.skip_epochs(&mut epochs, data, until);
            self.epoch(data, until, &mut history)?;
        }
        let wanted = self.tell(|callback, run| callback.on_end(&history, run))?;
        history.stopped = history.stopped.or(wanted);
        Ok(history)
    }

    /// Refuses held-out data whose evaluation would fail at the end of the epoch, if the run gets there.
    fn preflight(&mut self, data: &dyn Examples, until: Until) -> Result<()> {
        let n_left = data.n_batches().unwrap_or(0).saturating_sub(self.state.batch);
        let limit = self.device().pool().limit();
        let is_known = self.preflighted == Some(limit);
        if let Some(held_out) = self.held_out.as_deref()
            && !is_known
            && !until.is_reached(&self.state)
            && until.steps_left(&self.state) >= n_left
        {
            Evaluator { stepper: &mut self.stepper, metrics: &mut self.metrics }.preflight(held_out)?;
            self.preflighted = Some(limit);
        }
        Ok(())
    }

    /// Refuses to go on in the middle of an epoch whose batches were of another size: it would be at another place.
    fn check_place(&mut self, data: &dyn Examples) -> Result<()> {
        let here = data.batch_size();
        match (self.state.batch_size, here) {
            (Some(before), Some(here)) if self.state.batch > 0 && before != here => Err(Error::argument(
                "fit",
                format!(
                    "the run is {} batches of {before} examples into its epoch, and these data come in batches of {here}: \
                     a run that is resumed goes on with batches of the same size",
                    self.state.batch
                ),
            )),
            _ => {
                self.state.batch_size = here;
                Ok(())
            }
        }
    }

    /// Leaves out epochs that repeat what a dry run has been through: those of data of which at most the last batch is of
    /// another shape, which it then is in every epoch.
    fn skip_epochs(&mut self, epochs: &mut CycleSkipper, data: &dyn Examples, until: Until) {
        let Some(n_batches) = data.n_batches().filter(|&n| n <= data.n_alike().saturating_add(1)) else {
            return;
        };
        if self.state.batch == 0 {
            let n_skipped = epochs.skip(until.epochs_left(&self.state, n_batches));
            self.state.epoch += n_skipped;
            self.state.step += n_skipped * n_batches;
        }
    }

    /// Goes through an epoch, from where the run is in it, to its end or the run's.
    fn epoch(&mut self, data: &dyn Examples, until: Until, history: &mut History) -> Result<()> {
        let mut batches = data.epoch(self.state.epoch, self.state.batch)?;
        if self.state.batch == 0 {
            self.stepper.metrics.iter_mut().for_each(|metric| metric.reset());
        }
        let (mut steps, n_alike) = (CycleSkipper::new(&self.devices()), data.n_alike());
        loop {
            if history.stopped.is_some() || until.is_reached(&self.state) {
                self.report_step(data, history)?;
                // A run that ends with an epoch tells of it, too.
                match data.n_batches() == Some(self.state.batch) {
                    true => break,
                    false => return Ok(()),
                }
            }
            let alike = n_alike.saturating_sub(self.state.batch).min(until.steps_left(&self.state));
            let n_skipped = steps.skip(alike);
            (self.state.batch, self.state.step) = (self.state.batch + n_skipped, self.state.step + n_skipped);
            let started = Instant::now();
            let batch = match batches.nth(n_skipped as usize) {
                None => break,
                Some(Err(error)) if matches!(error.kind(), ErrorKind::Interrupted { .. }) => {
                    history.stopped = Some(INTERRUPTED.to_owned());
                    continue;
                }
                Some(batch) => batch?,
            };
            self.device().pool().mark(STEP, self.state.step + 1);
            let issued = self.dispatch(&batch, data, started);
            drop(batch);
            // The device is busy with this step; what it was given before is looked at meanwhile.
            self.report_step(data, history)?;
            self.pending = Some(issued?);
            if !self.may_lag() {
                self.report_step(data, history)?;
            }
        }
        drop(batches);
        self.report_step(data, history)?;
        if self.state.batch == 0 {
            return Err(Error::argument("fit", "the data are empty: an epoch has no batch"));
        }
        let event = self.end_epoch()?;
        let stopped = self.tell(|callback, run| callback.on_epoch(&event, run))?;
        history.stopped = history.stopped.take().or(stopped);
        history.epochs.push(&event);
        Ok(())
    }

    /// Makes a step with a batch; on a GPU it is only begun.
    fn dispatch(&mut self, fetched: &Batch, data: &dyn Examples, started: Instant) -> Result<Pending> {
        let before = (self.state.clone(), Generator::current());
        let (epoch, batch) = (self.state.epoch + 1, self.state.batch + 1);
        let names = fetched.names(data.names());
        let stepped = self.stepper.step(fetched, &names);
        let numbers = stepped.map_err(|error| in_batch(error, (epoch, batch), fetched, &names))?;
        self.state.step += 1;
        self.state.batch += 1;
        let event = StepEvent {
            step: self.state.step,
            epoch,
            batch,
            n_batches: data.n_batches(),
            n_examples: fetched.n_examples()? as u64,
            loss: f64::NAN,
            learning_rate: f64::NAN,
            loss_scale: f64::NAN,
            skipped: None,
            metrics: Vec::new(),
            ms: 0.0,
            memory: MemoryUse::of(&fetched.device()),
        };
        Ok(Pending { event, numbers, started, before })
    }

    /// Whether the next step may begin before the last one is told of: not on the host, where it is known at once, not if a
    /// callback may want something done, and not if nothing would stop it where the last one did not happen.
    fn may_lag(&self) -> bool {
        let Some(pending) = &self.pending else { return true };
        let is_known = matches!(pending.numbers, Numbers::Here { .. }) || self.stepper.own.is_some();
        !is_known && !self.callbacks.iter().any(|callback| callback.waits_for(pending.event.step))
    }

    /// Tells the callbacks of the step that they do not know yet, if there is one.
    fn report_step(&mut self, data: &dyn Examples, history: &mut History) -> Result<()> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let event = self.finish_step(pending, data)?;
        (history.steps, history.loss) = (event.step, Some(event.loss));
        let stopped = self.tell(|callback, run| callback.on_step(&event, run))?;
        history.stopped = history.stopped.take().or(stopped);
        Ok(())
    }

    /// Waits for the numbers of a step. One whose loss is not finite, or in which a kernel refused a value, did not happen.
    fn finish_step(&mut self, pending: Pending, data: &dyn Examples) -> Result<StepEvent> {
        let Pending { mut event, numbers, started, before } = pending;
        let was_known = matches!(numbers, Numbers::Here { .. });
        let (results, control) = match numbers.wait() {
            Ok(numbers) => numbers,
            Err(error) => {
                self.go_back(before)?;
                return Err(self.explain(Err(error), (event.epoch, event.batch), data)?);
            }
        };
        if !was_known {
            let explained = |loss| self.explain(Ok(loss), (event.epoch, event.batch), data);
            if let Some(failure) = self.stepper.failure(&results, explained)? {
                self.go_back(before)?;
                return Err(failure);
            }
        }
        let loss = results[0];
        event.loss = loss;
        event.metrics = self.stepper.metrics_of(&results);
        if let Some(control) = control {
            (event.learning_rate, event.loss_scale) = (control.learning_rate, control.loss_scale);
            event.skipped = self.stepper.optimizer.overflowed_in(&control);
        }
        self.state.loss_sum += loss;
        self.state.n_losses += 1;
        let now = Instant::now();
        let since = self.told.map_or(started, |told| told.max(started));
        (event.ms, self.told) = ((now - since).as_secs_f64() * 1e3, Some(now));
        Ok(event)
    }

    /// Takes a step back that changed nothing, and those that were begun after it. The losses that have been told of are all
    /// of steps before it.
    fn go_back(&mut self, (state, generator): (RunState, Generator)) -> Result<()> {
        let (loss_sum, n_losses) = (self.state.loss_sum, self.state.n_losses);
        self.state = RunState { loss_sum, n_losses, ..state };
        generator.make_current();
        self.stepper.optimizer.release()
    }

    /// The error of a step: its own, or that of a loss that was not finite, with what causes it. The batch is fetched again
    /// for that.
    fn explain(&self, loss: Result<f64>, (epoch, batch): (u64, u64), data: &dyn Examples) -> Result<Error> {
        let batches = data.epoch(epoch - 1, batch - 1);
        let fetched = match (batches.and_then(|mut batches| batches.next().transpose()), &loss) {
            (Ok(Some(fetched)), _) => fetched,
            (Err(error), Ok(_)) => return Err(error),
            (_, Err(_)) => return Ok(loss.unwrap_err()),
            (Ok(None), Ok(loss)) => {
                let detail = format!("the loss of batch {batch} of epoch {epoch} is {loss}");
                return Ok(Error::argument("fit", detail));
            }
        };
        let names = fetched.names(data.names());
        let error = loss.map_or_else(Ok, |loss| self.stepper.explained(loss, &fetched, &names))?;
        Ok(in_batch(error, (epoch, batch), &fetched, &names))
    }

    /// Evaluates the epoch that is complete, and goes on to the next.
    fn end_epoch(&mut self) -> Result<EpochEvent> {
        let devices = self.devices();
        let mut evaluator = Evaluator { stepper: &mut self.stepper, metrics: &mut self.metrics };
        let evaluated = self.held_out.as_deref().map(|data| evaluator.evaluate(data, &devices));
        let held_out = evaluated.transpose()?;
        let loss = self.state.loss_sum / self.state.n_losses as f64;
        let trained = self.stepper.metrics.iter();
        let metrics = trained.map(|metric| (metric.name().to_owned(), metric.result())).collect();
        self.state.epoch += 1;
        (self.state.batch, self.state.loss_sum, self.state.n_losses) = (0, 0.0, 0);
        Ok(EpochEvent { epoch: self.state.epoch, step: self.state.step, loss, metrics, held_out })
    }

    /// The mean loss and the metrics of the model on some data, without training. No more than one layer's input and
    /// output are held at a time.
    ///
    /// # Errors
    /// No data; data that do not fit the model; memory that is full.
    #[track_caller]
    pub fn evaluate(&mut self, data: &dyn Examples) -> Result<Evaluation> {
        let _line = at_callers_line();
        let devices = self.devices();
        Evaluator { stepper: &mut self.stepper, metrics: &mut self.metrics }.evaluate(data, &devices)
    }

    /// Tells all callbacks something, and then does what they ask for; returns why the run is to stop, if it is.
    fn tell(
        &mut self,
        mut what: impl FnMut(&mut dyn Callback, &mut Requests<'_>) -> Result<()>,
    ) -> Result<Option<String>> {
        let mut wanted = Wanted::default();
        let Stepper { model, optimizer, .. } = &mut self.stepper;
        for callback in &mut self.callbacks {
            what(&mut **callback, &mut Requests { model, optimizer, wanted: &mut wanted })?;
        }
        wanted.saves.iter().try_for_each(|folder| self.save(folder))?;
        if let Some(folder) = wanted.weights {
            self.check_whole("restoring the best weights")?;
            NameMap::new()
                .rule("model.{name..}", "{name..}", Change::Nothing)
                .ignore("optimizer.{name..}")
                .load(self.model(), folder.join(checkpoint::FILE_NAME))?;
        }
        Ok(wanted.stop)
    }
}

/// The name under which a checkpoint keeps a callback's state.
fn callback_key(idx: usize, callback: &dyn Callback) -> String {
    format!("{idx} {}", callback.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_may_go_on_on_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Trainer>();
        is_send::<Box<dyn Examples>>();
    }
}
