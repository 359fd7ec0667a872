//! Adagrad.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// Adagrad: the gradient over the root of the sum of all its squares so far, which it keeps: one number per parameter.
///
/// PyTorch's `Adagrad`, with its defaults: the sum begins at 0 (Keras: 0.1), ε is 1e-10 (Keras: 1e-7).
#[derive(Clone, Copy, Debug)]
pub struct Adagrad {
    learning_rate: f64,
    initial_accumulator_value: f64,
    epsilon: f64,
    weight_decay: f64,
}

impl Adagrad {
    /// Adagrad (PyTorch's default learning rate is 1e-2, Keras's 1e-3).
    pub fn new(learning_rate: f64) -> Adagrad {
        Adagrad { learning_rate, initial_accumulator_value: 0.0, epsilon: 1e-10, weight_decay: 0.0 }
    }

    /// What the sums of squares begin with; 0 by default.
    pub fn initial_accumulator_value(self, initial_accumulator_value: f64) -> Adagrad {
        Adagrad { initial_accumulator_value, ..self }
    }

    /// What keeps the division from zero; 1e-10 by default.
    pub fn epsilon(self, epsilon: f64) -> Adagrad {
        Adagrad { epsilon, ..self }
    }

    /// The weight of a penalty on the parameters' squares, added to the gradients (L2); 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Adagrad {
        Adagrad { weight_decay, ..self }
    }
}

impl OptimizerConfig for Adagrad {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        Arc::new(optimizer::Adagrad { initial: self.initial_accumulator_value, epsilon: self.epsilon })
    }

    fn decay(&self) -> Decay {
        Decay::L2(self.weight_decay)
    }
}
