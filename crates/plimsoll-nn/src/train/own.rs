//! Train steps of one's own: what a run does with a batch, in place of forward, loss, gradients and update.
//!
//! Several optimizers, a gradient penalty, a teacher: a [`TrainStep`] says what happens, and the run around it stays what it is,
//! with checkpoints, callbacks, evaluation, plan and limit. Its effects are carried out together at its end, and not at all if
//! the loss that it returns is not finite; what it updates is visible to what it does afterwards.
//!
//! An update that the run cannot hold back by itself is computed into memory of its own first. An optimizer that is given the
//! loss with `Optimizer::apply_if_finite` needs none.

use plimsoll_tensor::{Result, Tensor, Variable, at_callers_line};

use super::examples::Batch;
use super::step::loss_context;
use crate::losses::Loss;
use crate::model::Model;
use crate::optimizers::Optimizer;
use crate::prediction::Prediction;

/// What a run lends to a train step.
pub struct StepParts<'a> {
    /// The model, which evaluations use.
    pub model: &'a Model,
    /// The variables of the model that are trained.
    pub variables: &'a [Variable],
    /// The run's optimizer, whose learning rate callbacks tell and set.
    pub optimizer: &'a mut Optimizer,
    /// The loss, which evaluations use.
    pub loss: &'a dyn Loss,
}

impl StepParts<'_> {
    /// The loss of what the model said to a batch.
    ///
    /// # Errors
    /// Labels that do not fit; memory that is full.
    #[track_caller]
    pub fn loss_of(&self, batch: &Batch, said: impl Into<Prediction>) -> Result<Tensor> {
        let _line = at_callers_line();
        let said = said.into();
        let batch = batch.beside(self.model, said.device())?;
        self.loss.of_batch(&loss_context(self.model, &batch), said)
    }
}

/// A train step of one's own. A function of a run's parts and a batch is one:
///
/// ```
/// use plimsoll_nn::layers::Dense;
/// use plimsoll_nn::losses::MeanSquaredError;
/// use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
/// use plimsoll_nn::train::{Batch, StepParts, Trainer, Until};
/// use plimsoll_nn::{Layer, Mode};
/// use plimsoll_tensor::{GradientTape, Result, Tensor};
///
/// /// Descends along the sign of the gradient of a loss with a penalty.
/// fn step(run: &mut StepParts<'_>, batch: &Batch) -> Result<Tensor> {
///     let tape = GradientTape::new();
///     let loss = tape.record(|| {
///         let output = run.model.forward(&batch.inputs, Mode::Train)?;
///         let loss = run.loss_of(batch, output.clone())?;
///         loss.add(&output.square()?.mean(..)?.mul(0.01)?)
///     })?;
///     let gradients = tape.variable_gradients(&loss, run.variables)?;
///     let gradients = gradients.iter().map(Tensor::sign).collect::<Result<_>>()?;
///     run.optimizer.apply_gradients(gradients, run.variables)?;
///     Ok(loss)
/// }
///
/// let data = vec![Batch::new(Tensor::randn([8, 3])?, Tensor::ones([8, 1])?)];
/// let model = Dense::new(1).build([3])?;
/// let mut trainer = Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError).train_step(step);
/// trainer.fit(&data, Until::Steps(5))?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub trait TrainStep: Send {
    /// Works through a batch, whole, and returns its loss.
    ///
    /// # Errors
    /// A batch that does not fit; memory that is full. The step has changed nothing then.
    fn step(&mut self, run: &mut StepParts<'_>, batch: &Batch) -> Result<Tensor>;

    /// What it changes besides the run's model and optimizer, under names that checkpoints keep it by.
    fn variables(&self) -> Vec<(String, Variable)> {
        Vec::new()
    }

    /// Whether it does the same for all batches that are alike, so that it need not be called for each.
    fn is_pure(&self) -> bool {
        false
    }
}

impl<F: FnMut(&mut StepParts<'_>, &Batch) -> Result<Tensor> + Send> TrainStep for F {
    fn step(&mut self, run: &mut StepParts<'_>, batch: &Batch) -> Result<Tensor> {
        self(run, batch)
    }
}
