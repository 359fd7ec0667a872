//! `SimpleRNN`: a dense layer that also sees its last output.

use plimsoll_tensor::{Activation, RecurrentWeights, Result, Shape};

use super::options::recurrent_options;
use super::recurrent::Settings;
use crate::initializer::Initializer;
use crate::layer::{BuiltLayer, Layer};

/// `h' = activation(x kernel + h recurrent_kernel + bias)` over a sequence: `[batch, time, features]` to the last hidden
/// state, `[batch, units]`, or with [`SimpleRNN::return_sequences`] to all of them, `[batch, time, units]`, which the next
/// of several stacked layers takes. The state is zero before the first step.
///
/// Variables: `kernel` `[features, units]`, Glorot uniform; `recurrent_kernel` `[units, units]`, orthogonal; `bias`
/// `[units]`, zeros. Saved for backward: the hidden states, `time units` numbers for each example, and the input.
#[doc(alias = "RNN")]
#[derive(Clone, Copy, Debug)]
pub struct SimpleRNN {
    settings: Settings,
    activation: Activation,
}

impl SimpleRNN {
    /// A layer with so many hidden units, which go through a hyperbolic tangent.
    pub fn new(units: usize) -> SimpleRNN {
        SimpleRNN { settings: Settings::new(units), activation: Activation::Tanh }
    }

    recurrent_options!();

    /// This layer with its sums going through another function: relu, sigmoid or none.
    pub fn activation(self, activation: Activation) -> SimpleRNN {
        SimpleRNN { activation, ..self }
    }
}

impl Layer for SimpleRNN {
    fn name(&self) -> &str {
        "simple_rnn"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let parts = self.settings.make("simple_rnn", 1, input, &["bias"])?;
        let (sequences, activation) = (self.settings.sequences, self.activation);
        BuiltLayer::new(parts.output, move |x, _| {
            let bias = parts.biases.first().map(|bias| &**bias);
            let weights = RecurrentWeights { kernel: &parts.kernel, recurrent: &parts.recurrent, bias };
            match sequences {
                true => x.simple_rnn(&weights, activation, None).map(|(sequence, _)| sequence),
                false => x.simple_rnn_state(&weights, activation, None),
            }
        })
    }
}
