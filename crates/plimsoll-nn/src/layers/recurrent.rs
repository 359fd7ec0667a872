//! What the recurrent layers share: their settings, their weights, and the shapes around them.

use plimsoll_tensor::{Error, Result, Shape, Variable};

use super::product;
use crate::initializer::{Fans, Initializer};
use crate::layer::variable;

/// How a recurrent layer is described.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub units: usize,
    pub sequences: bool,
    pub kernel: Initializer,
    pub recurrent: Initializer,
    pub bias: Option<Initializer>,
}

/// The variables of a recurrent layer, and the shape of one example that comes out.
pub(super) struct Parts {
    pub kernel: Variable,
    pub recurrent: Variable,
    /// One bias, or two where the sums of inputs and hidden states have one each; none if there is no bias.
    pub biases: Vec<Variable>,
    pub output: Shape,
}

impl Settings {
    /// Keras's: Glorot uniform for inputs, orthogonal for hidden states, zeros for the bias; the last state alone.
    pub fn new(units: usize) -> Settings {
        Settings {
            units,
            sequences: false,
            kernel: Initializer::GlorotUniform,
            recurrent: Initializer::Orthogonal,
            bias: Some(Initializer::Zeros),
        }
    }

    /// Makes the variables for examples of the shape `input` and so many gates; the biases under these names.
    pub fn make(&self, layer: &'static str, n_gates: usize, input: &Shape, biases: &[&str]) -> Result<Parts> {
        let &[time, features] = input.dims() else {
            return Err(Error::shape(
                layer,
                format!("an example is {input}; it must be a sequence, [time, features]"),
            ));
        };
        let gates = product([n_gates, self.units]);
        let fans = |inputs: usize| Fans { inputs, outputs: gates };
        let kernel = variable("kernel", [features, gates], self.kernel, fans(features))?;
        let recurrent = variable("recurrent_kernel", [self.units, gates], self.recurrent, fans(self.units))?;
        let bias = |name: &&str| self.bias.map(|bias| variable(name, gates, bias, fans(features)));
        let biases = biases.iter().filter_map(bias).collect::<Result<_>>()?;
        let output = match self.sequences {
            true => Shape::new(&[time, self.units])?,
            false => Shape::new(&[self.units])?,
        };
        Ok(Parts { kernel, recurrent, biases, output })
    }
}
