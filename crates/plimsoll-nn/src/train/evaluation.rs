//! Evaluation: a model on data, without training, and the check before a run that it will work.
//!
//! What would fail at the end of the first epoch (held-out data of another shape, an evaluation that the limit has no room
//! for) is found before the first step: one batch is evaluated on a ghost of the device, which takes the memory that it will
//! take and computes nothing.

use plimsoll_tensor::{Error, ErrorKind, Later, Result, with_shadows};

use super::event::Evaluation;
use super::examples::{Examples, Pair};
use super::rehearsal::{RestoredGenerator, Rounds};
use super::step::Stepper;
use crate::metrics::Metric;
use crate::model::Mode;

/// What an evaluation needs of a run.
pub(super) struct Evaluator<'a> {
    pub stepper: &'a Stepper,
    pub metrics: &'a mut [Box<dyn Metric>],
}

impl Evaluator<'_> {
    /// The mean loss and the metrics on some data.
    pub fn evaluate(&mut self, data: &dyn Examples) -> Result<Evaluation> {
        self.metrics.iter_mut().for_each(|metric| metric.reset());
        let (mut loss_sum, mut n_examples, mut before) = (0.0, 0, None);
        let (mut batches, mut rounds, mut n_alike) = (data.epoch(0, 0)?, Rounds::begin(), data.n_alike());
        loop {
            let n_passed = rounds.pass_over(n_alike);
            let Some(pair) = batches.nth(n_passed as usize) else { break };
            n_alike = n_alike.saturating_sub(n_passed + 1);
            let pair = pair?;
            let n = pair.n_examples()?;
            let loss = self.batch(&pair)?;
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

    /// Evaluates one batch; its loss is on its way.
    fn batch(&mut self, pair: &Pair) -> Result<Later> {
        let _on = pair.inputs.device().enter();
        let predictions = self.stepper.model.forward(&pair.inputs, Mode::Infer)?;
        let loss = self.stepper.loss.call(&pair.labels, &predictions)?.to_f64_later()?;
        self.metrics.iter_mut().try_for_each(|metric| metric.update(&pair.labels, &predictions))?;
        Ok(loss)
    }

    /// Evaluates the first batch of held-out data on a ghost of its device as it is, under its limit.
    ///
    /// # Errors
    /// What evaluating the data will say: no data, another shape than the model's, memory that is full.
    pub fn preflight(&mut self, data: &dyn Examples) -> Result<()> {
        let of_held_out = |error| Error::within("the held-out data, looked at before the first step", error);
        let Some(pair) = data.epoch(0, 0).map_err(of_held_out)?.next() else {
            return Err(of_held_out(Error::argument("evaluate", "the data are empty: there is no batch")));
        };
        let pair = pair.map_err(of_held_out)?;
        pair.n_examples().map_err(of_held_out)?;
        let ghost = pair.inputs.device().ghost();
        // As under the limit itself, free pages go back before memory is full.
        ghost.trim();
        let shadows = Pair { inputs: pair.inputs.shadow(&ghost)?, labels: pair.labels.shadow(&ghost)? };
        let _restore = RestoredGenerator::new();
        let evaluated = with_shadows(&self.stepper.model.variables(), &ghost, || self.batch(&shadows));
        self.metrics.iter_mut().for_each(|metric| metric.reset());
        match evaluated {
            // What reads values can only be known when it runs.
            Err(error) if matches!(error.kind(), ErrorKind::Ghost { .. }) => Ok(()),
            Err(error) => Err(of_held_out(error)),
            Ok(_) => Ok(()),
        }
    }
}

/// A single number that was on its way.
fn first(later: Later) -> Result<f64> {
    Ok(later.get()?.first().copied().unwrap_or(f64::NAN))
}
