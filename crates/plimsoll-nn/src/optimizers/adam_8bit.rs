//! Adam with states of eight bits.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// [`Adam`](super::Adam) whose states take a byte each instead of four, with a scale for each 256 of them: about 2 bytes
/// per parameter instead of 8. Parameters of fewer than 4096 elements keep float32 states.
#[derive(Clone, Copy, Debug)]
pub struct Adam8bit {
    learning_rate: f64,
    rule: optimizer::Adam8bit,
    decay: Decay,
}

impl Adam8bit {
    /// Adam with the usual betas (the default learning rate elsewhere is 1e-3).
    pub fn new(learning_rate: f64) -> Adam8bit {
        let rule = optimizer::Adam8bit { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8 };
        Adam8bit { learning_rate, rule, decay: Decay::None }
    }

    /// How much of the mean of gradients stays from step to step; 0.9 by default.
    pub fn beta_1(mut self, beta_1: f64) -> Adam8bit {
        self.rule.beta_1 = beta_1;
        self
    }

    /// How much of the mean of squares stays from step to step; 0.999 by default.
    pub fn beta_2(mut self, beta_2: f64) -> Adam8bit {
        self.rule.beta_2 = beta_2;
        self
    }

    /// What keeps the division from zero; 1e-8 by default.
    pub fn epsilon(mut self, epsilon: f64) -> Adam8bit {
        self.rule.epsilon = epsilon;
        self
    }

    /// How much parameters shrink at every step, as a multiple of the learning rate, as in
    /// [`AdamW`](super::AdamW); 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Adam8bit {
        Adam8bit { decay: Decay::Decoupled(weight_decay), ..self }
    }
}

impl OptimizerConfig for Adam8bit {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        Arc::new(self.rule)
    }

    fn decay(&self) -> Decay {
        self.decay
    }
}
