//! Adafactor.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// Adafactor: steps relative to the size of a parameter, with the means of squares of a matrix kept by rows and columns.
///
/// PyTorch's `Adafactor`, with its defaults: β₂ decay -0.8, ε₁ the precision of the dtype, ε₂ 1e-3, threshold 1. A matrix
/// of n × m keeps n + m numbers instead of n · m; it has no momentum.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    learning_rate: f64,
    rule: optimizer::Adafactor,
    weight_decay: f64,
}

impl Adafactor {
    /// Adafactor (PyTorch's default learning rate is 1e-2).
    pub fn new(learning_rate: f64) -> Adafactor {
        let rule = optimizer::Adafactor {
            beta_2_decay: -0.8,
            epsilon_1: None,
            epsilon_2: 1e-3,
            clip_threshold: 1.0,
        };
        Adafactor { learning_rate, rule, weight_decay: 0.0 }
    }

    /// The power of the step number by which new squares count; -0.8 by default.
    pub fn beta_2_decay(mut self, beta_2_decay: f64) -> Adafactor {
        self.rule.beta_2_decay = beta_2_decay;
        self
    }

    /// The least root of a mean of squares; the precision of the parameter's dtype by default.
    pub fn epsilon_1(mut self, epsilon_1: f64) -> Adafactor {
        self.rule.epsilon_1 = Some(epsilon_1);
        self
    }

    /// The least size of a parameter that steps are relative to; 1e-3 by default.
    pub fn epsilon_2(mut self, epsilon_2: f64) -> Adafactor {
        self.rule.epsilon_2 = epsilon_2;
        self
    }

    /// The greatest root mean square of an update before its size is applied; 1 by default.
    pub fn clip_threshold(mut self, clip_threshold: f64) -> Adafactor {
        self.rule.clip_threshold = clip_threshold;
        self
    }

    /// How much parameters shrink at every step, as a multiple of the learning rate; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Adafactor {
        Adafactor { weight_decay, ..self }
    }
}

impl OptimizerConfig for Adafactor {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        Arc::new(self.rule)
    }

    fn decay(&self) -> Decay {
        Decay::Decoupled(self.weight_decay)
    }
}
