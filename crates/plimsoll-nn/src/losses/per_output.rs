//! `Losses`: a loss for each output of a model, with weights.

use plimsoll_tensor::{Error, Nested, Result, Tensor};

use super::{Loss, LossContext};
use crate::prediction::Prediction;

/// The sum of the losses of several outputs, each times its weight: Keras's `loss` and `loss_weights`.
///
/// Outputs and labels are known by their names, or by their places in a tuple: `"0"`, `"1"`. Sample weights are one tensor for
/// all of them, or arranged as the labels are. An output without a loss does not count.
///
/// ```
/// use plimsoll_nn::losses::{Huber, Losses, SparseCategoricalCrossentropy};
///
/// let loss = Losses::new()
///     .output("class", 1.0, SparseCategoricalCrossentropy::new().from_logits(true))
///     .output("box", 0.5, Huber::new(1.0));
/// ```
#[doc(alias = "loss_weights")]
#[derive(Default)]
pub struct Losses {
    outputs: Vec<Output>,
}

struct Output {
    name: String,
    weight: f64,
    loss: Box<dyn Loss>,
}

impl Losses {
    /// No loss yet.
    pub fn new() -> Losses {
        Losses::default()
    }

    /// With the loss of one more output, which counts so much.
    #[must_use]
    pub fn output(mut self, name: impl Into<String>, weight: f64, loss: impl Loss + 'static) -> Losses {
        self.outputs.push(Output { name: name.into(), weight, loss: Box::new(loss) });
        self
    }
}

impl Output {
    fn of(&self, context: &LossContext<'_>, outputs: &Nested<Tensor>) -> Result<Tensor> {
        let of_output = |error| Error::within(format!("the loss of output {:?}", self.name), error);
        let part = |whole: &Nested<Tensor>| whole.get(&self.name).cloned().map_err(of_output);
        let (output, labels) = (part(outputs)?, part(context.labels)?);
        let weights = match context.sample_weights {
            Some(one @ Nested::One(_)) => Some(one.clone()),
            several => several.map(part).transpose()?,
        };
        let context = LossContext { labels: &labels, sample_weights: weights.as_ref(), ..*context };
        let loss = self.loss.of_batch(&context, Prediction::from(output)).map_err(of_output)?;
        if self.weight == 1.0 { Ok(loss) } else { loss.mul(self.weight) }
    }
}

impl Loss for Losses {
    fn name(&self) -> &str {
        "losses"
    }

    fn losses(&self, _labels: &Tensor, _predictions: &Tensor) -> Result<Tensor> {
        Err(Error::argument(
            "losses",
            "there is a loss for each of several outputs, and one tensor was given",
        ))
    }

    fn of_batch(&self, context: &LossContext<'_>, prediction: Prediction) -> Result<Tensor> {
        let outputs = prediction.nested()?;
        let mut total: Option<Tensor> = None;
        for output in &self.outputs {
            let loss = output.of(context, &outputs)?;
            total = Some(match total {
                None => loss,
                Some(sum) => sum.add(&loss)?,
            });
        }
        total.ok_or_else(|| Error::argument("losses", "there is no loss; add one with `output`"))
    }

    fn is_pure(&self) -> bool {
        self.outputs.iter().all(|output| output.loss.is_pure())
    }
}
