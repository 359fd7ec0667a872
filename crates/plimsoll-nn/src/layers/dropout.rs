//! `Dropout`: forgets some inputs while training.

use plimsoll_tensor::{Error, Result, Shape};

use crate::deferred::Deferred;
use crate::layer::{BuiltLayer, Layer};
use crate::model::Mode;

/// While training, each element is zero with probability `rate`, else divided by `1 - rate`; else nothing changes.
///
/// Nothing is saved for backward: the draw is repeated from its number.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    rate: f64,
}

impl Dropout {
    /// A layer that forgets each element with that probability, from 0 to 1.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate }
    }
}

impl Layer for Dropout {
    fn name(&self) -> &str {
        "dropout"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let rate = self.rate;
        if !(0.0..=1.0).contains(&rate) {
            return Err(Error::argument(
                "dropout",
                format!("a rate of {rate}; it is a probability from 0 to 1"),
            ));
        }
        BuiltLayer::deferring(input, move |x, mode, _| match mode {
            Mode::Train => Ok(Deferred::dropped(x.values()?, rate)),
            Mode::Infer => x.values().map(Deferred::of),
        })
    }
}
