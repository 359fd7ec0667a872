//! Two inputs through one tower: whether they are of a kind.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{Dense, Functional, Lambda, Node, Sequential, Subtract};
use plimsoll_nn::losses::{BinaryCrossentropy, Loss};
use plimsoll_nn::optimizers::{Optimizer, OptimizerConfig, SGD};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, DType, Result, Tensor};

pub fn data() -> Result<Dataset> {
    let (left, right) = (Tensor::randn([512, 40])?, Tensor::randn([512, 40])?);
    let same = Tensor::randint([512, 1], 0, 2, DType::I64)?;
    Dataset::from_tensor_slices(((left, right), same))?.batch(256)
}

pub fn model() -> Result<Model> {
    let tower = Sequential::new()
        .add(Dense::new(64).activation(Activation::Gelu))
        .add(Dense::new(64).activation(Activation::Gelu))
        .add(Dense::new(64).activation(Activation::Gelu))
        .add(Dense::new(16));
    let tower = tower.build([40])?.named("tower");
    Functional::new(move |(left, right): (Node, Node)| {
        let difference = Subtract::new().apply((&tower.apply(&left)?, &tower.apply(&right)?))?;
        Dense::new(1).apply(&Lambda::new(|x| x.abs()).named("abs").pure().apply(&difference)?)
    })
    .build(([40], [40]))
}

pub fn loss() -> impl Loss + 'static {
    BinaryCrossentropy::new().from_logits(true)
}

pub fn optimizer() -> Optimizer {
    SGD::new(0.1).momentum(0.9).build()
}
