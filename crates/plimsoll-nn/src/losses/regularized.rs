//! `Regularized`: a loss with penalties on the weights of the model.

use plimsoll_tensor::{Result, Tensor};

use super::{Loss, LossContext};
use crate::filter::VariableFilter;
use crate::prediction::Prediction;
use crate::regularizers::Regularizer;

/// A loss, and penalties on some of the model's trained variables: what Keras's `kernel_regularizer` adds.
///
/// ```
/// use plimsoll_nn::losses::{MeanSquaredError, Regularized};
/// use plimsoll_nn::regularizers::L2;
///
/// let loss = Regularized::new(MeanSquaredError).penalty("kernel", L2::new(1e-4));
/// ```
pub struct Regularized {
    loss: Box<dyn Loss>,
    penalties: Vec<(VariableFilter, Box<dyn Regularizer>)>,
}

impl Regularized {
    /// A loss without penalties yet.
    pub fn new(loss: impl Loss + 'static) -> Regularized {
        Regularized { loss: Box::new(loss), penalties: Vec::new() }
    }

    /// With a penalty on the variables that are meant: `"kernel"`, `"encoder"`, `"*.embeddings"`.
    #[must_use]
    pub fn penalty(
        mut self,
        variables: impl Into<VariableFilter>,
        regularizer: impl Regularizer + 'static,
    ) -> Regularized {
        self.penalties.push((variables.into(), Box::new(regularizer)));
        self
    }
}

impl Loss for Regularized {
    fn name(&self) -> &str {
        self.loss.name()
    }

    fn losses(&self, labels: &Tensor, predictions: &Tensor) -> Result<Tensor> {
        self.loss.losses(labels, predictions)
    }

    fn of_batch(&self, context: &LossContext<'_>, prediction: Prediction) -> Result<Tensor> {
        let mut loss = self.loss.of_batch(context, prediction)?;
        for (name, variable) in context.model.named_variables() {
            let meant = self.penalties.iter().filter(|(filter, _)| filter.matches(&name));
            for (_, regularizer) in meant.filter(|_| variable.is_trainable()) {
                loss = loss.add(&regularizer.call(&variable.cast(loss.dtype())?)?)?;
            }
        }
        Ok(loss)
    }

    fn is_pure(&self) -> bool {
        self.loss.is_pure() && self.penalties.iter().all(|(_, regularizer)| regularizer.is_pure())
    }
}
