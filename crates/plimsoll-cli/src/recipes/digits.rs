//! Perceptrons: the shipped digits, and the posts' 784-1024-10.

use plimsoll::Activation;
use plimsoll::nn::layers::{Dense, Dropout, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::{Adam, OptimizerConfig};
use plimsoll::optimizer::Schedule;

use super::Greys;
use crate::data::{self, Feature};
use crate::recipe::Recipe;

/// A perceptron on the shipped 8×8 digits; Adam whose rate falls to zero along half a cosine.
pub fn digits() -> Recipe {
    let model = Sequential::new()
        .add(Greys { largest: 16.0 })
        .add(Dense::new(256).activation(Activation::Relu))
        .add(Dropout::new(0.2))
        .add(Dense::new(128).activation(Activation::Relu))
        .add(Dropout::new(0.2))
        .add(Dense::new(10));
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new("digits", model, Feature::bytes([64], 17), Feature::bytes([], 10), loss)
        .about("a perceptron on the shipped 8×8 digits")
        .shipped(data::digits)
        .optimizer_with(|steps| {
            Ok(Adam::new(1e-3).build().schedule(Schedule::cosine_decay(1e-3, 0.0, steps)?))
        })
        .batch(32)
        .epochs(40)
}

/// The 784-1024-10 perceptron of the posts.
pub fn dense() -> Recipe {
    let model = Sequential::new().add(Dense::new(1024).activation(Activation::Relu)).add(Dense::new(10));
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new("dense", model, Feature::floats([784]), Feature::ids([], 10), loss)
        .about("784-1024-10, the perceptron of the posts, on random numbers")
        .optimizer(Adam::new(1e-3))
        .batch(128)
        .steps(200)
}
