//! One optimizer step: forward, loss, gradients and update, all or nothing.
//!
//! A batch may be worked through in parts whose gradients are added up in place. Each part's loss is weighted by its
//! share of the batch, so the sum is the gradient of the whole batch's mean loss, and only rounding differs.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_dist::{Strategy, peers};
use plimsoll_plan::PlanSet;
use plimsoll_tensor::program::Peers;
use plimsoll_tensor::{
    DType, Device, Error, ErrorKind, GatheredVariable, Generator, GradientTape, OwnedVariables, PendingValue,
    PlannedProgram, Program, Result, Step, Tensor, Unconnected, Variable,
};

use super::examples::Batch;
use super::own::{StepParts, TrainStep};
use super::pending::Numbers;
use super::programs::{self, Programs, Work};
use super::{evaluation, finite};
use crate::added_losses::{collect, with_added};
use crate::losses::{Loss, LossContext};
use crate::metrics::Metric;
use crate::model::{Mode, Model};
use crate::optimizers::{Accumulator, Optimizer};
use crate::prediction::Prediction;
use crate::shards::Zero;

/// What a step needs.
pub(super) struct Stepper {
    pub model: Model,
    /// All variables of the model,
    pub all_variables: Vec<Variable>,
    /// and those that are trained now.
    pub variables: Vec<Variable>,
    pub optimizer: Optimizer,
    pub loss: Box<dyn Loss>,
    /// What is told of the predictions of training steps.
    pub metrics: Vec<Box<dyn Metric>>,
    /// In how many parts a batch is worked through.
    pub n_parts: usize,
    /// Whether gradients that are not finite end the run.
    pub check_gradients: bool,
    /// What the gradient of a variable is that the loss does not depend on.
    pub unconnected: Unconnected,
    /// How several ranks train together, if they do.
    pub strategy: Option<Strategy>,
    /// The shards of the variables, if they are cut.
    pub zero: Option<Zero>,
    /// Whether it is recorded with the leaves of the first rank, for a plan that all ranks make alike.
    pub is_as_first_rank: bool,
    /// What is done with a batch, if not what is done here.
    pub own: Option<Box<dyn TrainStep>>,
    /// The programs of its steps,
    pub steps: Programs,
    /// and of its evaluations.
    pub evaluations: Programs,
}

/// A step: forward, backward and the update, which changes something only if the loss is finite. It returns the loss, finite if the update happens;
/// where gradients are checked, also the loss itself and the number of the first gradient that is not finite; and then the
/// metrics of the epoch so far.
impl Work for Stepper {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Tensor>> {
        if let Some(own) = &mut self.own {
            let Stepper { model, variables, optimizer, loss, .. } = self;
            let mut parts = StepParts { model, variables, optimizer, loss: &**loss };
            let finite_loss = own.step(&mut parts, batch)?.stop_gradient().cast(DType::F64)?.reshape(())?;
            self.commit_if_finite(&finite_loss)?;
            return Ok(vec![finite_loss]);
        }
        let (loss, gradients) = self.gradients(batch, batch.n_examples()?)?;
        batch.device().mark("update", 0);
        let mut finite_loss = self.optimizer.finite_loss(&loss)?;
        let mut results = Vec::new();
        let norm = match &self.zero {
            Some(zero) if self.check_gradients || self.optimizer.needs_norm() => {
                Some(zero.norm(&gradients, &self.variables)?)
            }
            _ => None,
        };
        if self.check_gradients {
            let (_, first_bad) = match &norm {
                Some(norm) => norm.clone(),
                None => Tensor::global_norm(&gradients.iter().collect::<Vec<_>>())?,
            };
            let first_bad = first_bad.cast(DType::F64)?.reshape(())?;
            // The number is -1 where all are finite; the logarithm of a negative number is none.
            let is_good = first_bad.mul(-1.0)?.ln()?;
            let is_good = is_good.to_device(&finite_loss.device())?;
            results = vec![loss.cast(DType::F64)?.reshape(())?, first_bad];
            finite_loss = finite_loss.into_add(is_good)?;
        }
        self.commit_if_finite(&finite_loss)?;
        let gathers = self.zero.as_ref().map_or_else(Vec::new, |zero| zero.gathers(&self.variables));
        let updated = self.updated();
        self.optimizer.apply_sharded(&gradients, &updated, &finite_loss, (norm, &gathers))?;
        results.insert(0, finite_loss);
        for metric in &self.metrics {
            let so_far = metric.result_on_device()?;
            let unknown = || Tensor::full_of((), f64::NAN, DType::F64);
            results.push(so_far.map_or_else(unknown, |number| number.cast(DType::F64)?.reshape(()))?);
        }
        Ok(results)
    }

    fn is_pure(&self) -> bool {
        match &self.own {
            Some(own) => own.is_pure(),
            None => {
                let are_metrics_pure = self.metrics.iter().all(|metric| metric.is_pure());
                self.model.is_pure() && self.loss.is_pure() && are_metrics_pure
            }
        }
    }

    fn n_parts(&self) -> usize {
        self.n_parts
    }

    fn trained(&self) -> Vec<bool> {
        self.all_variables.iter().map(Variable::is_trainable).collect()
    }

    fn version(&self) -> u64 {
        self.optimizer.version()
    }

    fn devices(&self) -> Vec<Device> {
        if self.model.is_spread() { self.model.devices() } else { Vec::new() }
    }

    fn strategy(&self) -> Option<&Strategy> {
        self.strategy.as_ref()
    }

    fn gathered(&self) -> Vec<GatheredVariable> {
        self.zero.as_ref().map_or_else(Vec::new, Zero::gathered)
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        let communicator = self.strategy.as_ref()?.communicator();
        let share_plans = self.zero.as_ref().is_some_and(Zero::gathers_parameters);
        (communicator.size() > 1).then(|| peers(communicator, share_plans))
    }

    fn as_first_rank(
        &mut self,
        batch: &Batch,
        f: &mut dyn FnMut(&mut dyn Work) -> Result<Program>,
    ) -> Result<Option<Program>> {
        let Some(strategy) = &self.strategy else { return Ok(None) };
        let n_leaves = strategy.share_out(self.n_parts)?.n_leaves();
        if batch.n_examples()?.is_multiple_of(n_leaves) {
            return Ok(None);
        }
        self.is_as_first_rank = true;
        let recorded = f(self);
        self.is_as_first_rank = false;
        recorded.map(Some)
    }
}

impl Stepper {
    /// Commits the step only if the loss is finite, on all devices of the model.
    fn commit_if_finite(&self, finite_loss: &Tensor) -> Result<()> {
        Step::commit_if_finite(finite_loss)?;
        let here = finite_loss.device();
        let others = self.devices().into_iter().filter(|device| *device != here);
        others.into_iter().try_for_each(|device| Step::commit_if_finite(&finite_loss.to_device(&device)?))
    }

    /// Makes a step and returns its numbers: the mean loss of the batch before it, NaN on a ghost, and what the optimizer
    /// says. `names` are those of the data.
    ///
    /// The loss decides about the update: one that is not finite leaves everything as it was. On the host that is an error
    /// at once; a GPU looks at it by itself, and the host later.
    pub fn step(&mut self, batch: &Batch, names: &[String]) -> Result<Numbers> {
        let device = batch.device();
        let _on = device.enter();
        batch.n_examples()?;
        self.select_variables()?;
        let generator = Generator::current();
        let mut steps = std::mem::take(&mut self.steps);
        let stepped = steps.run(self, batch);
        self.steps = steps;
        let results = stepped?;
        if device.is_ghost() {
            return Ok(Numbers::Here { results: vec![f64::NAN], control: None });
        }
        let results: Vec<PendingValue> = results.iter().map(Tensor::to_f64_later).collect::<Result<_>>()?;
        let numbers = Numbers::InFlight { results, control: self.optimizer.control_later()? };
        if !device.is_host() {
            return Ok(numbers);
        }
        let (results, control) = numbers.wait()?;
        match self.failure(&results, |loss| self.explained(loss, batch, names))? {
            None => Ok(Numbers::Here { results, control }),
            Some(failure) => {
                generator.make_current();
                self.optimizer.release()?;
                Err(failure)
            }
        }
    }

    /// Why a step did not happen, from its numbers, if it did not.
    pub fn failure(
        &self,
        results: &[f64],
        explained: impl FnOnce(f64) -> Result<Error>,
    ) -> Result<Option<Error>> {
        match *results {
            [finite_loss, ..] if finite_loss.is_finite() => Ok(None),
            [_, loss, first_bad, ..] if self.check_gradients && loss.is_finite() && first_bad >= 0.0 => {
                let variable = self.variables.get(first_bad as usize).map(Variable::name).unwrap_or_default();
                Ok(Some(Error::argument(
                    "fit",
                    format!("the gradient of variable {variable:?} is not finite; the loss is {loss}"),
                )))
            }
            [_, loss, ..] if self.check_gradients => explained(loss).map(Some),
            [loss, ..] => explained(loss).map(Some),
            [] => unreachable!("a step has a finite_loss"),
        }
    }

    /// The metrics of the epoch so far, from the numbers of a step.
    pub fn metrics_of(&self, results: &[f64]) -> Vec<(String, f64)> {
        let n_before = if self.check_gradients { 3 } else { 1 };
        let numbers = results.get(n_before..).unwrap_or_default();
        self.metrics.iter().zip(numbers).map(|(metric, &number)| (metric.name().to_owned(), number)).collect()
    }

    /// Looks which variables are trained now, and lets the optimizer know if others are.
    pub fn select_variables(&mut self) -> Result<()> {
        let mut now = self.all_variables.iter().filter(|variable| variable.is_trainable());
        let is_same =
            self.variables.iter().all(|variable| now.next() == Some(variable)) && now.next().is_none();
        if !is_same {
            let trained = self.all_variables.iter().filter(|variable| variable.is_trainable());
            self.variables = trained.cloned().collect();
        }
        self.cut_variables()?;
        if !is_same {
            self.optimizer.select(&self.updated())?;
        }
        Ok(())
    }

    /// What the optimizer updates: the variables that are trained now, or this rank's pieces of them.
    pub fn updated(&self) -> Vec<Variable> {
        self.zero.as_ref().map_or_else(|| self.variables.clone(), |zero| zero.pieces(&self.variables))
    }

    /// What checkpoints keep besides the model, by name.
    pub fn other_variables(&self) -> Vec<(String, Variable)> {
        let optimizer = self.optimizer.variables();
        let mut others: Vec<(String, Variable)> =
            optimizer.into_iter().map(|variable| (variable.name(), variable)).collect();
        let own = self.own.iter().flat_map(|own| own.variables());
        others.extend(own.map(|(name, variable)| (format!("step.{name}"), variable)));
        for (idx, metric) in self.metrics.iter().enumerate() {
            let variables = metric.variables().into_iter().enumerate();
            let name = |part: usize| format!("metrics.{idx}.{}.{part}", metric.name());
            others.extend(variables.map(|(part, variable)| (name(part), variable)));
        }
        others
    }

    /// The memory plans of a step with this batch.
    pub fn memory_plans(&mut self, device: &Device, batch: &Batch) -> Result<PlanSet> {
        self.program(batch)?.program().memory_plans(device)
    }

    /// The program of a step with this batch.
    pub fn program(&mut self, batch: &Batch) -> Result<PlannedProgram> {
        self.select_variables()?;
        PlannedProgram::with_passes(programs::record(self, batch, &mut OwnedVariables::default())?)
    }

    /// The error of a loss that is not finite, with what causes it.
    pub fn explained(&self, loss: f64, batch: &Batch, names: &[String]) -> Result<Error> {
        let cause = finite::cause(batch, names, &self.model.variables())?;
        Ok(Error::argument("fit", format!("the loss is {loss}: {cause}")))
    }

    /// The mean loss of a batch, and the gradient of each variable.
    fn gradients(&mut self, batch: &Batch, n_examples: usize) -> Result<(Tensor, Vec<Tensor>)> {
        if let Some(strategy) = self.strategy.clone() {
            return self.gradients_of_ranks(&strategy, batch, n_examples);
        }
        let parts = parts(n_examples, self.n_parts);
        if parts.len() == 1 {
            return self.gradients_of_part(batch, None);
        }
        let mut sums = Accumulator::new();
        let mut total: Option<Tensor> = None;
        for range in parts {
            let share = range.len() as f64 / n_examples as f64;
            let (loss, gradients) =
                self.gradients_of_part(&batch.part(range.start, range.len())?, Some(share))?;
            sums.add(gradients)?;
            total = Some(match total {
                None => loss,
                Some(before) => before.into_add(loss)?,
            });
        }
        let Some(total) = total else { unreachable!("a batch has at least one part") };
        Ok((total, sums.take()))
    }

    /// The loss of a part of a batch, times its share of it, and the gradient of each variable.
    pub(super) fn gradients_of_part(
        &mut self,
        batch: &Batch,
        share: Option<f64>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let tape = GradientTape::new();
        let (loss, scaled) = self.loss_of_part(&tape, batch, share)?;
        batch.device().mark("backward", 0);
        let gradients = tape.variable_gradients_with(&scaled, &self.variables, self.unconnected)?;
        Ok((loss, gradients))
    }

    /// The same, with each gradient handed out as soon as it is complete; returns the loss.
    pub(super) fn gradients_of_part_each(
        &mut self,
        batch: &Batch,
        share: f64,
        take: &mut dyn FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let tape = GradientTape::new();
        let (loss, scaled) = self.loss_of_part(&tape, batch, Some(share))?;
        batch.device().mark("backward", 0);
        let sources: Vec<&Tensor> = self.variables.iter().map(|variable| &**variable).collect();
        tape.gradient_each(&scaled, &sources, take)?;
        Ok(loss)
    }

    /// The loss of a part of a batch, times its share of it, and what backward begins with.
    fn loss_of_part(
        &mut self,
        tape: &GradientTape,
        batch: &Batch,
        share: Option<f64>,
    ) -> Result<(Tensor, Tensor)> {
        batch.device().mark("forward", 0);
        tape.record(|| {
            let (prediction, added) = collect(|| self.model.prediction(&batch.inputs, Mode::Train));
            let prediction = prediction?;
            let batch = &*batch.beside(&self.model, prediction.device())?;
            update_metrics(&mut self.metrics, batch, &prediction)?;
            let loss = self.loss.of_batch(&loss_context(&self.model, batch), prediction)?;
            let loss = with_added(loss, added)?;
            let loss = share.map_or_else(|| Ok(loss.clone()), |share| loss.mul(share))?;
            let scaled = self.optimizer.scale_loss(&loss)?;
            Ok((loss.stop_gradient(), scaled))
        })
    }
}

/// What a loss may look at.
pub(super) fn loss_context<'a>(model: &'a Model, batch: &'a Batch) -> LossContext<'a> {
    let Batch { inputs, labels, sample_weights } = batch;
    LossContext { inputs, labels, sample_weights: sample_weights.as_ref(), model }
}

/// Tells metrics of what a model said in training. What it left to the loss is computed for them, too.
fn update_metrics(metrics: &mut [Box<dyn Metric>], batch: &Batch, prediction: &Prediction) -> Result<()> {
    if metrics.is_empty() {
        return Ok(());
    }
    evaluation::update(metrics, batch, &prediction.stop_gradient().nested()?)
}

/// The examples of each part of a batch: as many parts as asked for, or as there are examples, and sizes that differ by
/// at most one.
pub(super) fn parts(n_examples: usize, n_parts: usize) -> Vec<Range<usize>> {
    let n_parts = n_parts.clamp(1, n_examples.max(1));
    let start = |part: usize| part * (n_examples / n_parts) + part.min(n_examples % n_parts);
    (0..n_parts).map(|part| start(part)..start(part + 1)).collect()
}

/// An error as it happened in a batch, which the text names; memory that is full says more by itself.
pub(super) fn in_batch(error: Error, (epoch, number): (u64, u64), batch: &Batch, names: &[String]) -> Error {
    let fields = batch.tensors().zip(names);
    let field =
        |(tensor, name): (&Tensor, &String)| format!("{name:?} is {} {}", tensor.dtype(), tensor.shape());
    let fields: Vec<String> = fields.map(field).collect();
    let batch = format!("batch {number} of epoch {epoch}: {}", fields.join(", "));
    match error.kind() {
        ErrorKind::Shape { op, detail } => Error::shape(op, format!("{detail} ({batch})")),
        ErrorKind::DType { op, detail } => Error::dtype(op, format!("{detail} ({batch})")),
        ErrorKind::Argument { op, detail } => Error::argument(op, format!("{detail} ({batch})")),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_batch_and_differ_by_at_most_one() {
        for n_examples in 1..20 {
            for n_parts in 0..25 {
                let parts = parts(n_examples, n_parts);
                assert_eq!(parts.len(), n_parts.clamp(1, n_examples));
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, n_examples));
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                let sizes: Vec<usize> = parts.iter().map(|part| part.len()).collect();
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
            }
        }
    }
}
