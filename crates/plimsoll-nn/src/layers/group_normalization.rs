//! `GroupNormalization`: each example's groups of channels to mean 0 and variance 1.

use plimsoll_tensor::{Error, Result, Shape};

use super::last_extent;
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// `(x - mean) / √(variance + epsilon) * gamma + beta` over all places and the channels of a group, example by example:
/// `[batch, .., channels]` to the same shape.
///
/// Variables: `gamma`, ones, and `beta`, zeros, both `[channels]`. Saved for backward: the input and two numbers for each
/// group of each example.
#[doc(alias = "GroupNorm")]
#[derive(Clone, Copy, Debug)]
pub struct GroupNormalization {
    groups: usize,
    epsilon: f64,
}

impl GroupNormalization {
    /// A norm of so many equal groups of channels, with PyTorch's epsilon, 1e-5.
    pub fn new(groups: usize) -> GroupNormalization {
        GroupNormalization { groups, epsilon: 1e-5 }
    }

    /// This norm with another epsilon.
    pub fn epsilon(self, epsilon: f64) -> GroupNormalization {
        GroupNormalization { epsilon, ..self }
    }
}

impl Layer for GroupNormalization {
    fn name(&self) -> &str {
        "group_norm"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let channels = last_extent("group_norm", input)?;
        let GroupNormalization { groups, epsilon } = *self;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let text = format!("{channels} channels do not make {groups} equal groups");
            return Err(Error::argument("group_norm", text));
        }
        let fans = Fans { inputs: channels, outputs: channels };
        let gamma = variable("gamma", channels, Initializer::Ones, fans)?;
        let beta = variable("beta", channels, Initializer::Zeros, fans)?;
        BuiltLayer::new(input, move |x, _| x.group_norm(&gamma, &beta, groups, epsilon))
    }
}
