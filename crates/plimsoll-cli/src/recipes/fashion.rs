//! A convolutional network with batch norm on Fashion-MNIST.

use plimsoll::Activation;
use plimsoll::nn::layers::{BatchNormalization, Conv2D, Dense, Dropout, Flatten, MaxPooling2D, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::{Adam, OptimizerConfig};
use plimsoll::optimizer::Schedule;

use super::{Channel, Greys};
use crate::data::{self, Feature};
use crate::recipe::Recipe;

/// Two convolutions with batch norm, then two dense layers; Adam whose rate falls to zero along half a cosine.
pub fn fashion() -> Recipe {
    let mut model = Sequential::new().add(Greys { largest: 255.0 }).add(Channel);
    for filters in [32, 64] {
        model = model
            .add(Conv2D::new(filters, 3).same().no_bias())
            .add(BatchNormalization::new().activation(Activation::Relu))
            .add(MaxPooling2D::new(2));
    }
    let model = model
        .add(Flatten::new())
        .add(Dense::new(128).activation(Activation::Relu))
        .add(Dropout::new(0.3))
        .add(Dense::new(10));
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new("fashion", model, Feature::bytes([28, 28], 256), Feature::bytes([], 10), loss)
        .about("a convolutional network with batch norm on Fashion-MNIST (Debian: dataset-fashion-mnist)")
        .files(data::fashion)
        .optimizer_with(|steps| {
            Ok(Adam::new(1e-3).build().schedule(Schedule::cosine_decay(1e-3, 0.0, steps)?))
        })
        .batch(64)
        .epochs(5)
}
