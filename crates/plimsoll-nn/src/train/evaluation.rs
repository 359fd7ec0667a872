//! Evaluation: a model on data, without training, and the check before a run that it will work.
//!
//! What would fail at the end of the first epoch (held-out data of another shape, an evaluation that the limit has no room
//! for) is found before the first step: the evaluation of one batch is recorded, and its program says what it takes.

use std::sync::Arc;

use plimsoll_tensor::program::Peers;
use plimsoll_tensor::{
    Device, Error, ErrorKind, GatheredVariable, Nested, OwnedVariables, PendingValue, PlannedProgram, Result,
    Tensor,
};

use super::dry_run::CycleSkipper;
use super::event::Evaluation;
use super::examples::{Batch, Examples};
use super::programs::{self, Work};
use super::step::{Stepper, loss_context};
use crate::added_losses::{collect, with_added};
use crate::losses::Loss;
use crate::metrics::Metric;
use crate::model::{Mode, Model};
use crate::plan::EVALUATE;
use crate::shards::Zero;

/// What an evaluation needs of a run.
pub(super) struct Evaluator<'a> {
    pub stepper: &'a mut Stepper,
    pub metrics: &'a mut [Box<dyn Metric>],
}

/// The evaluation of a batch. It returns the loss, and the predictions where metrics are not updated with it.
struct BatchEvaluation<'a> {
    model: &'a Model,
    loss: &'a dyn Loss,
    metrics: Option<&'a mut [Box<dyn Metric>]>,
    /// The shards of the model's variables, if they are cut.
    zero: Option<&'a Zero>,
}

impl Work for BatchEvaluation<'_> {
    fn run(&mut self, batch: &Batch) -> Result<Vec<Tensor>> {
        let (predictions, added) = collect(|| self.model.forward_nested(&batch.inputs, Mode::Infer));
        let predictions = predictions?;
        let batch = &*batch.beside(self.model, predictions.first().map(Tensor::device))?;
        let loss = self.loss.of_batch(&loss_context(self.model, batch), predictions.clone().into())?;
        let loss = with_added(loss, added)?;
        let Some(metrics) = &mut self.metrics else {
            return Ok(std::iter::once(loss).chain(predictions.into_leaves()).collect());
        };
        update(metrics, batch, &predictions)?;
        Ok(vec![loss])
    }

    fn is_pure(&self) -> bool {
        self.model.is_pure() && self.loss.is_pure()
    }

    fn n_parts(&self) -> usize {
        1
    }

    fn trained(&self) -> Vec<bool> {
        Vec::new()
    }

    fn devices(&self) -> Vec<Device> {
        if self.model.is_spread() { self.model.devices() } else { Vec::new() }
    }

    fn gathered(&self) -> Vec<GatheredVariable> {
        self.zero.map_or_else(Vec::new, Zero::gathered)
    }

    fn peers(&self) -> Option<Arc<dyn Peers>> {
        self.zero.and_then(Zero::peers)
    }
}

impl Evaluator<'_> {
    /// The mean loss and the metrics on some data, for a model on these devices.
    pub fn evaluate(&mut self, data: &dyn Examples, devices: &[Device]) -> Result<Evaluation> {
        let device = &devices[0];
        device.pool().mark(EVALUATE, 0);
        self.metrics.iter_mut().for_each(|metric| metric.reset());
        let (mut loss_sum, mut n_examples, mut before) = (0.0, 0, None);
        let mut skipper = CycleSkipper::new(devices);
        let (mut batches, mut n_alike) = (data.epoch(0, 0)?, data.n_alike());
        let mut number = 0;
        loop {
            let n_skipped = skipper.skip(n_alike);
            let Some(batch) = batches.nth(n_skipped as usize) else { break };
            n_alike = n_alike.saturating_sub(n_skipped + 1);
            // By its number a batch is found again in a dry run, which leaves others out.
            number += n_skipped + 1;
            device.pool().mark(EVALUATE, number);
            let batch = batch?;
            let n = batch.n_examples()?;
            let loss = self.batch(&batch)?;
            n_examples += n;
            // A GPU works on this batch while the loss of the one before is looked at.
            if let Some((loss, n)) = before.replace((loss, n)) {
                loss_sum += first(loss)? * n as f64;
            }
        }
        drop(batches);
        if let Some((loss, n)) = before {
            loss_sum += first(loss)? * n as f64;
        }
        if n_examples == 0 {
            return Err(Error::argument("evaluate", "the data are empty: there is no batch"));
        }
        let metrics = self.metrics.iter().map(|metric| (metric.name().to_owned(), metric.result())).collect();
        Ok(Evaluation { loss: loss_sum / n_examples as f64, metrics })
    }

    /// Evaluates one batch; its loss is on its way. Metrics of somebody's own may do what cannot be recorded, so they are
    /// given the predictions afterwards.
    fn batch(&mut self, batch: &Batch) -> Result<PendingValue> {
        let _on = batch.device().enter();
        let are_pure = self.metrics.iter().all(|metric| metric.is_pure());
        let Stepper { model, loss, evaluations, zero, .. } = &mut *self.stepper;
        let metrics = are_pure.then_some(&mut *self.metrics);
        let mut work = BatchEvaluation { model, loss: &**loss, metrics, zero: zero.as_ref() };
        let mut results = evaluations.run(&mut work, batch)?.into_iter();
        let arrangement = model.output_shapes();
        let loss = results.next().map(|loss| loss.to_f64_later()).transpose()?;
        let Some(loss) = loss else { unreachable!("an evaluation returns its loss") };
        if !are_pure {
            let mut next =
                || results.next().ok_or_else(|| Error::argument("evaluate", "an output is missing"));
            let predictions = arrangement.try_map(&mut |_| next())?;
            let batch = batch.beside(model, predictions.first().map(Tensor::device))?;
            update(self.metrics, &batch, &predictions)?;
        }
        Ok(loss)
    }

    /// Finds out whether the first batch of held-out data can be evaluated on its device as it is, under its limit, by
    /// recording it.
    ///
    /// # Errors
    /// What evaluating the data will say: no data, another shape than the model's, memory that is full.
    pub fn preflight(&mut self, data: &dyn Examples) -> Result<()> {
        let of_held_out = |error| Error::within("the held-out data, looked at before the first step", error);
        let Some(batch) = data.epoch(0, 0).map_err(of_held_out)?.next() else {
            return Err(of_held_out(Error::argument("evaluate", "the data are empty: there is no batch")));
        };
        let batch = batch.map_err(of_held_out)?;
        batch.n_examples().map_err(of_held_out)?;
        let Stepper { model, loss, zero, .. } = &*self.stepper;
        let metrics = Some(&mut *self.metrics);
        let mut work = BatchEvaluation { model, loss: &**loss, metrics, zero: zero.as_ref() };
        let recorded = programs::record(&mut work, &batch, &mut OwnedVariables::default());
        self.metrics.iter_mut().for_each(|metric| metric.reset());
        match recorded {
            // What reads values can only be known when it runs.
            Err(error) if matches!(error.kind(), ErrorKind::ReadsValue { .. }) => Ok(()),
            Err(error) => Err(of_held_out(error)),
            Ok(program) => PlannedProgram::new(program).prepare().map(drop).map_err(of_held_out),
        }
    }
}

/// Tells metrics of a batch.
pub(super) fn update(
    metrics: &mut [Box<dyn Metric>],
    batch: &Batch,
    predictions: &Nested<Tensor>,
) -> Result<()> {
    metrics.iter_mut().try_for_each(|metric| {
        let weights = batch.sample_weights.as_ref().filter(|_| metric.takes_weights());
        metric.update_batch(&batch.labels, predictions, weights)
    })
}

/// A single number that was on its way.
fn first(later: PendingValue) -> Result<f64> {
    Ok(later.get()?.first().copied().unwrap_or(f64::NAN))
}
