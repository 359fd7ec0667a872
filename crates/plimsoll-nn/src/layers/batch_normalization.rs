//! `BatchNormalization`: each channel to mean 0 and variance 1, over the batch while training, by running statistics else.

use plimsoll_tensor::{Activation, Result, Shape, Tensor, Variable};

use super::last_extent;
use crate::buffers::update_buffer;
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, buffer, variable};
use crate::model::Mode;

/// `activation((x - mean) / √(variance + epsilon) * gamma + beta)` over all axes but the last, the channels; the shape stays.
///
/// Training takes mean and variance from the batch and moves the running ones towards them; inference uses the running
/// ones. Variables, all `[channels]`: `gamma`, ones, and `beta`, zeros; and, not trained, `moving_mean`, zeros, and
/// `moving_variance`, ones, which moves towards the variance divided by n - 1, as in PyTorch. Saved for backward: the input
/// and two numbers per channel; a relu as activation keeps nothing more, others keep what they need.
#[doc(alias("BatchNorm", "BatchNorm1d", "BatchNorm2d"))]
#[derive(Clone, Copy, Debug)]
pub struct BatchNormalization {
    epsilon: f64,
    momentum: f64,
    activation: Activation,
}

impl BatchNormalization {
    /// A norm with PyTorch's epsilon, 1e-5, whose running statistics keep 0.9 of themselves at each step.
    pub fn new() -> BatchNormalization {
        BatchNormalization { epsilon: 1e-5, momentum: 0.9, activation: Activation::None }
    }

    /// This norm with another epsilon.
    pub fn epsilon(self, epsilon: f64) -> BatchNormalization {
        BatchNormalization { epsilon, ..self }
    }

    /// This norm with running statistics that keep so much of themselves at each step, as Keras counts; PyTorch's
    /// momentum is one less this.
    pub fn momentum(self, momentum: f64) -> BatchNormalization {
        BatchNormalization { momentum, ..self }
    }

    /// This norm with its values going through a function. A relu given here, rather than as a layer of its own, saves its
    /// output in memory and a pass over it.
    pub fn activation(self, activation: Activation) -> BatchNormalization {
        BatchNormalization { activation, ..self }
    }

    /// Moves a running statistic towards that of a batch.
    fn follow(self, running: &Variable, batch: &Tensor) -> Result<()> {
        let batch = batch.cast(running.dtype())?.into_affine(1.0 - self.momentum, 0.0)?;
        update_buffer(running, |running| running.affine(self.momentum, 0.0)?.into_add(batch))
    }
}

impl Default for BatchNormalization {
    fn default() -> BatchNormalization {
        BatchNormalization::new()
    }
}

impl Layer for BatchNormalization {
    fn name(&self) -> &str {
        "batch_norm"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let channels = last_extent("batch_norm", input)?;
        let fans = Fans { inputs: channels, outputs: channels };
        let gamma = variable("gamma", channels, Initializer::Ones, fans)?;
        let beta = variable("beta", channels, Initializer::Zeros, fans)?;
        let mean = buffer("moving_mean", channels, Initializer::Zeros)?;
        let variance = buffer("moving_variance", channels, Initializer::Ones)?;
        let norm = *self;
        BuiltLayer::new(input, move |x, mode| match mode {
            Mode::Infer => {
                let y = x.batch_norm_inference(&gamma, &beta, &mean, &variance, norm.epsilon)?;
                norm.activation.apply(y)
            }
            Mode::Train => {
                let (y, batch_mean, batch_variance) = match norm.activation {
                    Activation::Relu => x.batch_norm_relu(&gamma, &beta, norm.epsilon)?,
                    other => {
                        let (y, mean, variance) = x.batch_norm(&gamma, &beta, norm.epsilon)?;
                        (other.apply(y)?, mean, variance)
                    }
                };
                let n = (x.n_elems() / channels.max(1)) as f64;
                norm.follow(&mean, &batch_mean)?;
                norm.follow(&variance, &batch_variance.into_affine(n / (n - 1.0).max(1.0), 0.0)?)?;
                Ok(y)
            }
        })
    }
}
