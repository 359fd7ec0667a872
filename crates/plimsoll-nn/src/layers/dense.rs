//! `Dense`: every output is a weighted sum of every input.

use plimsoll_tensor::{Activation, Error, Result, Shape, Tensor};

use super::last_extent;
use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};
use crate::prediction::Prediction;

/// `activation(x kernel + bias)` over the last dimension: `[batch, .., in]` to `[batch, .., units]`.
///
/// Variables: `kernel` `[in, units]`, Glorot uniform, and `bias` `[units]`, zeros, unless told otherwise.
#[doc(alias = "Linear")]
#[derive(Clone, Debug)]
pub struct Dense {
    units: usize,
    activation: Activation,
    bias: Option<Initializer>,
    kernel: Initializer,
}

impl Dense {
    /// A layer with so many outputs.
    pub fn new(units: usize) -> Dense {
        Dense {
            units,
            activation: Activation::None,
            bias: Some(Initializer::Zeros),
            kernel: Initializer::GlorotUniform,
        }
    }

    /// This layer with its sums going through a function.
    pub fn activation(self, activation: Activation) -> Dense {
        Dense { activation, ..self }
    }

    /// This layer without a bias.
    #[doc(alias = "use_bias")]
    pub fn no_bias(self) -> Dense {
        Dense { bias: None, ..self }
    }

    /// This layer with a kernel that starts otherwise.
    pub fn kernel_initializer(self, kernel: Initializer) -> Dense {
        Dense { kernel, ..self }
    }

    /// This layer with a bias that starts otherwise.
    pub fn bias_initializer(self, bias: Initializer) -> Dense {
        Dense { bias: Some(bias), ..self }
    }
}

impl Layer for Dense {
    fn name(&self) -> &str {
        "dense"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let inputs = last_extent("dense", input)?;
        let fans = Fans { inputs, outputs: self.units };
        let kernel = variable("kernel", [inputs, self.units], self.kernel, fans)?;
        let bias = self.bias.map(|bias| variable("bias", self.units, bias, fans)).transpose()?;
        let activation = self.activation;
        let output = input.with_dim(input.rank() - 1, self.units)?;
        let rank = 1 + input.rank();
        if bias.is_none() && activation == Activation::None {
            return BuiltLayer::ending_linear(output, move |x, _| {
                check_rank(x, rank)?;
                Ok(Prediction::Linear { rows: x.clone(), weights: (*kernel).clone() })
            });
        }
        BuiltLayer::new(output, move |x, _| {
            check_rank(x, rank)?;
            x.linear(&kernel, bias.as_deref(), activation)
        })
    }
}

/// Refuses a batch of another rank than the layer was built for, such as an example without its batch.
fn check_rank(x: &Tensor, rank: usize) -> Result<()> {
    match x.rank() == rank {
        true => Ok(()),
        false => Err(Error::shape(
            "dense",
            format!("the input is {}; the layer was built for batches with {rank} axes", x.shape()),
        )),
    }
}
