//! `LayerNormalization`: each example's last dimension to mean 0 and variance 1.

use plimsoll_tensor::{Result, Shape, Tensor, Variable};

use super::last_extent;
use crate::deferred::Norm;
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// `(x - mean) / √(variance + epsilon) * gamma + beta` over the last dimension; the shape stays.
///
/// Variables: `gamma`, ones, and `beta`, zeros, both `[width]`. Saved for backward: the input and two numbers per row.
#[doc(alias = "LayerNorm")]
#[derive(Clone, Copy, Debug)]
pub struct LayerNormalization {
    epsilon: f64,
}

impl LayerNormalization {
    /// A norm with PyTorch's epsilon, 1e-5.
    pub fn new() -> LayerNormalization {
        LayerNormalization { epsilon: 1e-5 }
    }

    /// This norm with another epsilon.
    pub fn epsilon(self, epsilon: f64) -> LayerNormalization {
        LayerNormalization { epsilon }
    }
}

impl Default for LayerNormalization {
    fn default() -> LayerNormalization {
        LayerNormalization::new()
    }
}

impl Layer for LayerNormalization {
    fn name(&self) -> &str {
        "layer_norm"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let width = last_extent("layer_norm", input)?;
        let fans = Fans { inputs: width, outputs: width };
        let gamma = variable("gamma", width, Initializer::Ones, fans)?;
        let beta = variable("beta", width, Initializer::Zeros, fans)?;
        BuiltLayer::norm(input, Built { gamma, beta, epsilon: self.epsilon })
    }
}

/// The norm with its variables.
struct Built {
    gamma: Variable,
    beta: Variable,
    epsilon: f64,
}

impl Norm for Built {
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        x.layer_norm(&self.gamma, &self.beta, self.epsilon)
    }

    fn of_sum(&self, x: &Tensor, branch: Tensor, rate: f64) -> Result<(Tensor, Tensor)> {
        branch.into_add_layer_norm(x, rate, &self.gamma, &self.beta, self.epsilon)
    }
}
