//! `ActivationLayer`: a function of each element, as a layer of its own.

use plimsoll_tensor::{Activation, Result, Shape};

use crate::layer::{BuiltLayer, Layer};

/// An activation after a layer that has none built in, such as a norm; the shape stays. Keras's `Activation`, which is the name
/// of the functions here.
#[doc(alias("Activation", "ReLU", "GELU", "SiLU", "Sigmoid", "Tanh"))]
#[derive(Clone, Copy, Debug)]
pub struct ActivationLayer {
    activation: Activation,
}

impl ActivationLayer {
    /// A layer of that function.
    pub fn new(activation: Activation) -> ActivationLayer {
        ActivationLayer { activation }
    }
}

impl Layer for ActivationLayer {
    fn name(&self) -> &str {
        "activation"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let activation = self.activation;
        BuiltLayer::new(input, move |x, _| activation.apply(x.clone()))
    }
}
