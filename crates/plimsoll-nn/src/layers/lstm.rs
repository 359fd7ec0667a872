//! `LSTM`: a cell that decides what to remember, what to forget and what to show.

use plimsoll_tensor::{RecurrentWeights, Result, Shape};

use super::options::recurrent_options;
use super::recurrent::Settings;
use crate::initializer::Initializer;
use crate::layer::{BuiltLayer, Layer};

/// An LSTM over a sequence: `[batch, time, features]` to the last hidden state, `[batch, units]`, or with
/// [`LSTM::return_sequences`] to all of them, `[batch, time, units]`, which the next of several stacked layers takes. The
/// state is zero before the first step.
///
/// Variables: `kernel` `[features, 4 units]`, Glorot uniform; `recurrent_kernel` `[units, 4 units]`, orthogonal; `bias`
/// `[4 units]`, zeros, and ones for the forget gate. The gates are in the order i, f, g, o. Saved for backward: the
/// gates, `4 time units` numbers for each example, and the input.
#[derive(Clone, Copy, Debug)]
pub struct LSTM {
    settings: Settings,
}

impl LSTM {
    /// A layer with so many hidden units.
    pub fn new(units: usize) -> LSTM {
        LSTM { settings: Settings { bias: Some(Initializer::UnitForget), ..Settings::new(units) } }
    }

    recurrent_options!();
}

impl Layer for LSTM {
    fn name(&self) -> &str {
        "lstm"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let parts = self.settings.make("lstm", 4, input, &["bias"])?;
        let sequences = self.settings.sequences;
        BuiltLayer::new(parts.output, move |x, _| {
            let bias = parts.biases.first().map(|bias| &**bias);
            let weights = RecurrentWeights { kernel: &parts.kernel, recurrent: &parts.recurrent, bias };
            match sequences {
                true => x.lstm(&weights, None).map(|(sequence, _)| sequence),
                false => x.lstm_state(&weights, None).map(|state| state.hidden),
            }
        })
    }
}
