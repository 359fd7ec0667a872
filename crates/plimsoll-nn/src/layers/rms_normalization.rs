//! `RMSNormalization`: each example's last dimension to a mean square of 1.

use plimsoll_tensor::{Result, Shape, Tensor, Variable};

use super::last_extent;
use crate::deferred::Norm;
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// `x / √(mean of squares + epsilon) * gamma` over the last dimension; the shape stays.
///
/// Variables: `gamma` `[width]`, ones. Saved for backward: the input and one number per row.
#[doc(alias = "RMSNorm")]
#[derive(Clone, Copy, Debug)]
pub struct RMSNormalization {
    epsilon: f64,
}

impl RMSNormalization {
    /// A norm with an epsilon of 1e-6, as in most language models that use it.
    pub fn new() -> RMSNormalization {
        RMSNormalization { epsilon: 1e-6 }
    }

    /// This norm with another epsilon.
    pub fn epsilon(self, epsilon: f64) -> RMSNormalization {
        RMSNormalization { epsilon }
    }
}

impl Default for RMSNormalization {
    fn default() -> RMSNormalization {
        RMSNormalization::new()
    }
}

impl Layer for RMSNormalization {
    fn name(&self) -> &str {
        "rms_norm"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let width = last_extent("rms_norm", input)?;
        let gamma = variable("gamma", width, Initializer::Ones, Fans { inputs: width, outputs: width })?;
        BuiltLayer::norm(input, Built { gamma, epsilon: self.epsilon })
    }
}

/// The norm with its variable.
struct Built {
    gamma: Variable,
    epsilon: f64,
}

impl Norm for Built {
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        x.rms_norm(&self.gamma, self.epsilon)
    }

    fn of_sum(&self, x: &Tensor, branch: Tensor, rate: f64) -> Result<(Tensor, Tensor)> {
        branch.into_add_rms_norm(x, rate, &self.gamma, self.epsilon)
    }
}
