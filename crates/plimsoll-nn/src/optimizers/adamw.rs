//! AdamW: Adam with decoupled weight decay.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{Algorithm, Decay};

use super::{Adam, OptimizerConfig};

/// [`Adam`] whose parameters shrink by the learning rate times the weight decay at every step, apart from the gradients.
///
/// PyTorch's `AdamW`, with its defaults: β₁ 0.9, β₂ 0.999, ε 1e-8, weight decay 0.01 (Keras: 0.004).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    adam: Adam,
    weight_decay: f64,
}

impl AdamW {
    /// AdamW with the usual betas and a weight decay of 0.01 (the default learning rate elsewhere is 1e-3).
    pub fn new(learning_rate: f64) -> AdamW {
        AdamW { adam: Adam::new(learning_rate), weight_decay: 0.01 }
    }

    /// How much of the mean of gradients stays from step to step; 0.9 by default.
    pub fn beta_1(self, beta_1: f64) -> AdamW {
        AdamW { adam: self.adam.beta_1(beta_1), ..self }
    }

    /// How much of the mean of squares stays from step to step; 0.999 by default.
    pub fn beta_2(self, beta_2: f64) -> AdamW {
        AdamW { adam: self.adam.beta_2(beta_2), ..self }
    }

    /// What keeps the division from zero; 1e-8 by default.
    pub fn epsilon(self, epsilon: f64) -> AdamW {
        AdamW { adam: self.adam.epsilon(epsilon), ..self }
    }

    /// Division by the greatest mean of squares so far, which is one more number per parameter; off by default.
    pub fn amsgrad(self, amsgrad: bool) -> AdamW {
        AdamW { adam: self.adam.amsgrad(amsgrad), ..self }
    }

    /// Epsilon as TensorFlow and Keras add it, see [`Adam::epsilon_hat`]; off by default.
    pub fn epsilon_hat(self, epsilon_hat: bool) -> AdamW {
        AdamW { adam: self.adam.epsilon_hat(epsilon_hat), ..self }
    }

    /// How much parameters shrink, as a multiple of the learning rate; 0.01 by default.
    pub fn weight_decay(self, weight_decay: f64) -> AdamW {
        AdamW { weight_decay, ..self }
    }
}

impl OptimizerConfig for AdamW {
    fn learning_rate(&self) -> f64 {
        self.adam.learning_rate()
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        self.adam.algorithm()
    }

    fn decay(&self) -> Decay {
        Decay::Decoupled(self.weight_decay)
    }
}
