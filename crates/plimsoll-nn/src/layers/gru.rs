//! `GRU`: a cell that decides what to reset and what to keep.

use plimsoll_tensor::{GruWeights, Result, Shape};

use super::options::recurrent_options;
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
pub struct GRU {
    settings: Settings,
}

impl GRU {
    /// A layer with so many hidden units.
    pub fn new(units: usize) -> GRU {
        GRU { settings: Settings::new(units) }
    }

    recurrent_options!();
}

impl Layer for GRU {
    fn name(&self) -> &str {
        "gru"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let parts = self.settings.make("gru", 3, input, &["bias", "recurrent_bias"])?;
        let sequences = self.settings.sequences;
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
