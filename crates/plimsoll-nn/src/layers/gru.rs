//! `GRU`: a cell that decides what to reset and what to keep.

use plimsoll_tensor::{GruWeights, Result, Shape};

use super::recurrent::Settings;
use crate::initializer::Initializer;
use crate::layer::{BuiltLayer, Layer};

/// A GRU over a sequence: `[batch, time, features]` to the last hidden state, `[batch, units]`, or with
/// [`GRU::return_sequences`] to all of them, `[batch, time, units]`, which the next of several stacked layers takes. The
/// state is zero before the first step; the reset gate comes after the product with the hidden state.
///
/// Variables: `kernel` `[features, 3 units]`, Glorot uniform; `recurrent_kernel` `[units, 3 units]`, orthogonal; `bias` and
/// `recurrent_bias`, both `[3 units]`, zeros. The gates are in the order r, z, n. Saved for backward: the gates and one
/// sum, `4 time units` numbers for each example, and the input.
#[derive(Clone, Copy, Debug)]
pub struct GRU(Settings);

impl GRU {
    /// A layer with so many hidden units.
    pub fn new(units: usize) -> GRU {
        GRU(Settings::new(units))
    }

    /// This layer giving the hidden states of all steps.
    pub fn return_sequences(self) -> GRU {
        GRU(Settings { sequences: true, ..self.0 })
    }

    /// This layer without biases.
    #[doc(alias = "use_bias")]
    pub fn no_bias(self) -> GRU {
        GRU(Settings { bias: None, ..self.0 })
    }

    /// This layer with a kernel that starts otherwise.
    pub fn kernel_initializer(self, kernel: Initializer) -> GRU {
        GRU(Settings { kernel, ..self.0 })
    }

    /// This layer with a recurrent kernel that starts otherwise.
    pub fn recurrent_initializer(self, recurrent: Initializer) -> GRU {
        GRU(Settings { recurrent, ..self.0 })
    }

    /// This layer with biases that start otherwise.
    pub fn bias_initializer(self, bias: Initializer) -> GRU {
        GRU(Settings { bias: Some(bias), ..self.0 })
    }
}

impl Layer for GRU {
    fn name(&self) -> &str {
        "gru"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let parts = self.0.make("gru", 3, input, &["bias", "recurrent_bias"])?;
        let sequences = self.0.sequences;
        BuiltLayer::new(parts.output, move |x, _| {
            let biases = match &*parts.biases {
                [bias, recurrent_bias] => Some([&**bias, &**recurrent_bias]),
                _ => None,
            };
            let weights = GruWeights { kernel: &parts.kernel, recurrent: &parts.recurrent, biases };
            match sequences {
                true => x.gru(&weights, None).map(|(sequence, _)| sequence),
                false => x.gru_state(&weights, None),
            }
        })
    }
}
