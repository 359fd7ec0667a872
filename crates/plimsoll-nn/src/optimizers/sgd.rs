//! Stochastic gradient descent.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// Stochastic gradient descent: p ← p - η g, with momentum p ← p - η b, b ← μ b + g.
///
/// PyTorch's `SGD`; Keras's differs in that a change of the learning rate reaches the momentum only slowly there. Without
/// momentum it keeps no state, with momentum one number per parameter.
#[derive(Clone, Copy, Debug)]
pub struct SGD {
    learning_rate: f64,
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
}

impl SGD {
    /// Descent without momentum (PyTorch's default learning rate is 1e-3, Keras's 1e-2).
    pub fn new(learning_rate: f64) -> SGD {
        SGD { learning_rate, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// How much of the running sum of gradients stays from step to step; 0 by default.
    pub fn momentum(self, momentum: f64) -> SGD {
        SGD { momentum, ..self }
    }

    /// Nesterov's form of momentum, which looks a step ahead; off by default.
    pub fn nesterov(self, nesterov: bool) -> SGD {
        SGD { nesterov, ..self }
    }

    /// The weight of a penalty on the parameters' squares, added to the gradients (L2); 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> SGD {
        SGD { weight_decay, ..self }
    }
}

impl OptimizerConfig for SGD {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        Arc::new(optimizer::Sgd { momentum: self.momentum, nesterov: self.nesterov })
    }

    fn decay(&self) -> Decay {
        Decay::L2(self.weight_decay)
    }
}
