//! One optimizer step: forward, loss, gradients and update, all or nothing.
//!
//! A batch may be worked through in parts whose gradients are added up in place. Each part's loss is weighted by its
//! share of the batch, so the sum is the gradient of the whole batch's mean loss, and only rounding differs.

use std::ops::Range;

use plimsoll_tensor::{Course, Device, Error, ErrorKind, GradientTape, Result, Step, Tensor, Variable};

use super::examples::Pair;
use super::finite;
use super::line::Line;
use super::pending::Numbers;
use super::programs::StepPrograms;
use crate::losses::Loss;
use crate::model::{Mode, Model};
use crate::optimizers::{Accumulator, Optimizer};

/// What a step needs.
pub(super) struct Stepper {
    pub model: Model,
    /// The variables that are trained.
    pub variables: Vec<Variable>,
    pub optimizer: Optimizer,
    pub loss: Box<dyn Loss>,
    /// In how many parts a batch is worked through.
    pub n_parts: usize,
    /// Whether gradients that are not finite end the run.
    pub check_gradients: bool,
    /// How its steps stay under the device's limit.
    pub line: Line,
    /// The programs of its steps, where the model is pure.
    pub programs: StepPrograms,
}

impl Stepper {
    /// Makes a step and returns its numbers: the mean loss of the batch before it, NaN on a ghost, and what the optimizer
    /// says. `names` are those of the data.
    ///
    /// The loss decides about the update: one that is not finite leaves everything as it was. On the host it is looked at
    /// before the update and is an error; a GPU looks at it by itself, and the host later.
    pub fn step(&mut self, pair: &Pair, names: &[String; 2]) -> Result<Numbers> {
        let device = pair.inputs.device();
        let _on = device.enter();
        let n_examples = pair.n_examples()?;
        if self.is_pure()
            && let Some(numbers) = self.step_by_program(pair, names)?
        {
            return Ok(numbers);
        }
        let course = self.course(pair)?;
        if !device.is_host() {
            return self.guarded_step(&device, &course, pair);
        }
        let mut bad_loss = None;
        let stepped = Step::on_course(&device, &course, || {
            let (loss, gradients) = self.gradients(pair, n_examples)?;
            let loss = read(&loss)?;
            if !loss.is_finite() && !device.is_ghost() {
                bad_loss = Some(loss);
                return Err(Error::argument("fit", format!("the loss is {loss}")));
            }
            device.pool().mark("update", 0);
            self.optimizer.apply_gradients(gradients, &self.variables)?;
            Ok(loss)
        });
        if let Some(loss) = bad_loss {
            return Err(self.explained(loss, pair, names)?);
        }
        let loss = stepped?;
        // A ghost has no numbers.
        let control = if device.is_ghost() { None } else { Some(self.optimizer.control()?) };
        Ok(Numbers::Here { loss, control })
    }

    /// A step on a GPU, which is not waited for.
    fn guarded_step(&mut self, device: &Device, course: &Course, pair: &Pair) -> Result<Numbers> {
        let verdict = Step::on_course(device, course, || self.judged(pair))?;
        let (loss, control) = (verdict.to_f64_later()?, self.optimizer.control_later()?);
        match device.is_ghost() {
            true => Ok(Numbers::Here { loss: f64::NAN, control: None }),
            false => Ok(Numbers::OnTheirWay { loss, control }),
        }
    }

    /// The inside of a step on a GPU: the loss, which decides about the update.
    pub fn judged(&mut self, pair: &Pair) -> Result<Tensor> {
        let (loss, gradients) = self.gradients(pair, pair.n_examples()?)?;
        loss.device().pool().mark("update", 0);
        let verdict = self.optimizer.verdict(&loss)?;
        Step::guard(&verdict)?;
        self.optimizer.apply_guarded(&gradients, &self.variables, &verdict)?;
        Ok(verdict)
    }

    /// A step on a ghost, on a given course.
    pub fn step_on(&mut self, ghost: &Device, course: &Course, pair: &Pair) -> Result<()> {
        Step::on_course(ghost, course, || self.step_inside(ghost, pair))
    }

    /// The inside of a step on a ghost, which is what it is on the device that the ghost stands for.
    pub fn step_inside(&mut self, ghost: &Device, pair: &Pair) -> Result<()> {
        if !ghost.is_host() {
            return self.judged(pair).map(drop);
        }
        let (_loss, gradients) = self.gradients(pair, pair.n_examples()?)?;
        self.optimizer.apply_gradients(gradients, &self.variables)
    }

    /// The error of a loss that is not finite, with what causes it.
    pub fn explained(&self, loss: f64, pair: &Pair, names: &[String; 2]) -> Result<Error> {
        let cause = finite::cause(pair, names, &self.model.variables())?;
        Ok(Error::argument("fit", format!("the loss is {loss}: {cause}")))
    }

    /// The mean loss of a batch, and the gradient of each variable.
    fn gradients(&mut self, pair: &Pair, n_examples: usize) -> Result<(Tensor, Vec<Tensor>)> {
        let parts = parts(n_examples, self.n_parts);
        if parts.len() == 1 {
            return self.gradients_of_part(pair, None);
        }
        let mut sums = Accumulator::new();
        let mut total: Option<Tensor> = None;
        for range in parts {
            let share = range.len() as f64 / n_examples as f64;
            let (loss, gradients) =
                self.gradients_of_part(&pair.part(range.start, range.len())?, Some(share))?;
            sums.add(gradients)?;
            total = Some(match total {
                None => loss,
                Some(before) => before.into_add(loss)?,
            });
        }
        let Some(total) = total else { unreachable!("a batch has at least one part") };
        Ok((total, sums.take()))
    }

    fn gradients_of_part(&mut self, pair: &Pair, share: Option<f64>) -> Result<(Tensor, Vec<Tensor>)> {
        let device = pair.inputs.device();
        device.pool().mark("forward", 0);
        let tape = GradientTape::new();
        let (loss, scaled) = tape.record(|| {
            let prediction = self.model.prediction(&pair.inputs, Mode::Train)?;
            let loss = self.loss.of(&pair.labels, prediction)?;
            let loss = share.map_or_else(|| Ok(loss.clone()), |share| loss.mul(share))?;
            let scaled = self.optimizer.scale_loss(&loss)?;
            Ok((loss.stop_gradient(), scaled))
        })?;
        device.pool().mark("backward", 0);
        let gradients = tape.variable_gradients(&scaled, &self.variables)?;
        if self.check_gradients
            && !loss.device().is_ghost()
            && let Some(variable) = finite::bad_gradient(&gradients, &self.variables)?
        {
            return Err(Error::argument(
                "fit",
                format!("the gradient of variable {variable:?} is not finite; the loss is {}", read(&loss)?),
            ));
        }
        Ok((loss, gradients))
    }
}

/// A number on the host; NaN for a ghost's.
fn read(scalar: &Tensor) -> Result<f64> {
    if scalar.device().is_ghost() { Ok(f64::NAN) } else { Ok(scalar.to_f64_vec()?[0]) }
}

/// The examples of each part of a batch: as many parts as asked for, or as there are examples, and sizes that differ by
/// at most one.
fn parts(n_examples: usize, n_parts: usize) -> Vec<Range<usize>> {
    let n_parts = n_parts.clamp(1, n_examples.max(1));
    let start = |part: usize| part * (n_examples / n_parts) + part.min(n_examples % n_parts);
    (0..n_parts).map(|part| start(part)..start(part + 1)).collect()
}

/// An error as it happened in a batch, which the text names; memory that is full says more by itself.
pub(super) fn in_batch(error: Error, (epoch, batch): (u64, u64), pair: &Pair, names: &[String; 2]) -> Error {
    let [inputs, labels] = [&pair.inputs, &pair.labels].map(|tensor| (tensor.dtype(), *tensor.shape()));
    let batch = format!(
        "batch {batch} of epoch {epoch}: {:?} is {} {}, {:?} is {} {}",
        names[0], inputs.0, inputs.1, names[1], labels.0, labels.1
    );
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
