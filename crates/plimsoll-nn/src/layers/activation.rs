//! `ActivationLayer`: a function of each element, as a layer of its own.

use plimsoll_tensor::{Activation, Result, Shape};

use crate::layer::{BuiltLayer, Layer};

/// An activation after a layer that has none built in, such as a norm; the shape stays.
#[derive(Clone, Copy, Debug)]
pub struct ActivationLayer(pub Activation);

impl Layer for ActivationLayer {
    fn name(&self) -> &str {
        "activation"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let activation = self.0;
        BuiltLayer::new(input, move |x, _| activation.apply(x.clone()))
    }
}
