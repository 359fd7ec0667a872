//! `Flatten`: an example as one row.

use plimsoll_tensor::{Result, Shape};

use crate::layer::{BuiltLayer, Layer};

/// Each example as one row: `[batch, a, b, ..]` to `[batch, a b ..]`. A view where the memory allows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten {
    _private: (),
}

impl Flatten {
    /// A layer that makes rows.
    pub fn new() -> Flatten {
        Flatten::default()
    }
}

impl Layer for Flatten {
    fn name(&self) -> &str {
        "flatten"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let length = input.n_elems();
        BuiltLayer::new(length, move |x, _| {
            let batch = x.shape().first().copied().unwrap_or(1);
            x.reshape([batch, length])
        })
    }
}
