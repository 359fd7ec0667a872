//! RMSprop.

use std::sync::Arc;

use plimsoll_tensor::optimizer::{self, Algorithm, Decay};

use super::OptimizerConfig;

/// RMSprop: the gradient over the root of a running mean of its squares.
///
/// Names are Keras's (`rho` is PyTorch's `alpha`), and so is the default of 0.9 for it (PyTorch: 0.99); ε is outside the
/// root, as in PyTorch. It keeps one number per parameter, and one more each when centered and with momentum.
#[derive(Clone, Copy, Debug)]
pub struct RMSprop {
    learning_rate: f64,
    rho: f64,
    momentum: f64,
    epsilon: f64,
    centered: bool,
    weight_decay: f64,
}

impl RMSprop {
    /// RMSprop that is not centered and has no momentum (Keras's default learning rate is 1e-3, PyTorch's 1e-2).
    pub fn new(learning_rate: f64) -> RMSprop {
        RMSprop { learning_rate, rho: 0.9, momentum: 0.0, epsilon: 1e-8, centered: false, weight_decay: 0.0 }
    }

    /// How much of the mean of squares stays from step to step; 0.9 by default.
    #[doc(alias = "alpha")]
    pub fn rho(self, rho: f64) -> RMSprop {
        RMSprop { rho, ..self }
    }

    /// How much of the running sum of updates stays from step to step; 0 by default.
    pub fn momentum(self, momentum: f64) -> RMSprop {
        RMSprop { momentum, ..self }
    }

    /// What keeps the division from zero; 1e-8 by default, as in PyTorch (Keras: 1e-7).
    pub fn epsilon(self, epsilon: f64) -> RMSprop {
        RMSprop { epsilon, ..self }
    }

    /// Division by a standard deviation instead of a mean of squares; off by default.
    pub fn centered(self, centered: bool) -> RMSprop {
        RMSprop { centered, ..self }
    }

    /// The weight of a penalty on the parameters' squares, added to the gradients (L2); 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> RMSprop {
        RMSprop { weight_decay, ..self }
    }
}

impl OptimizerConfig for RMSprop {
    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn algorithm(&self) -> Arc<dyn Algorithm> {
        let RMSprop { rho, momentum, epsilon, centered, .. } = *self;
        Arc::new(optimizer::RmsProp { rho, momentum, epsilon, centered })
    }

    fn decay(&self) -> Decay {
        Decay::L2(self.weight_decay)
    }
}
