//! Adam.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// Adam: steps of about the learning rate, along the mean of gradients over the root of the mean of their squares.
///
/// Names are Keras's, defaults those that it shares with PyTorch: β₁ 0.9, β₂ 0.999. It keeps two numbers per parameter,
/// `m` and `v`.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    learning_rate: f64,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    amsgrad: bool,
    epsilon_hat: bool,
    weight_decay: f64,
}

impl Adam {
    /// Adam with the usual betas (the default learning rate elsewhere is 1e-3).
    pub fn new(learning_rate: f64) -> Adam {
        Adam {
            learning_rate,
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            amsgrad: false,
            epsilon_hat: false,
            weight_decay: 0.0,
        }
    }

    /// How much of the mean of gradients stays from step to step; 0.9 by default.
    pub fn beta_1(self, beta_1: f64) -> Adam {
        Adam { beta_1, ..self }
    }

    /// How much of the mean of squares stays from step to step; 0.999 by default.
    pub fn beta_2(self, beta_2: f64) -> Adam {
        Adam { beta_2, ..self }
    }

    /// What keeps the division from zero; 1e-8 by default, as in PyTorch (Keras: 1e-7).
    pub fn epsilon(self, epsilon: f64) -> Adam {
        Adam { epsilon, ..self }
    }

    /// Division by the greatest mean of squares so far, which is one more number per parameter; off by default.
    pub fn amsgrad(self, amsgrad: bool) -> Adam {
        Adam { amsgrad, ..self }
    }

    /// Epsilon added before the mean of squares is corrected for its beginning at zero, as in TensorFlow and Keras: it counts
    /// for more in the first steps; off by default, as in PyTorch.
    pub fn epsilon_hat(self, epsilon_hat: bool) -> Adam {
        Adam { epsilon_hat, ..self }
    }

    /// The weight of a penalty on the parameters' squares, added to the gradients (L2); 0 by default. For decay apart
    /// from the gradients, see [`AdamW`](super::AdamW).
    pub fn weight_decay(self, weight_decay: f64) -> Adam {
        Adam { weight_decay, ..self }
    }
}

impl OptimizerConfig for Adam {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        let Adam { beta_1, beta_2, epsilon, amsgrad, epsilon_hat, .. } = *self;
        Arc::new(optimizer::Adam { beta_1, beta_2, epsilon, amsgrad, epsilon_hat })
    }

    fn decay(&self) -> Decay {
        Decay::L2(self.weight_decay)
    }
}
