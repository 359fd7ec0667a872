//! A model that was built before, under a new head: first the head alone is trained, then all of it.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{BatchNormalization, Dense, Sequential};
use plimsoll_nn::losses::{Loss, MeanSquaredError};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig, ParameterGroup};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, Result, Tensor};

pub fn data() -> Result<Dataset> {
    let x = Tensor::randn([512, 24])?;
    let y = x.sum(1)?.sin()?.reshape([512, 1])?;
    Dataset::from_tensor_slices((x, y))?.batch(256)
}

pub fn model() -> Result<Model> {
    let encoder = Sequential::new()
        .add(Dense::new(96).activation(Activation::Relu))
        .add(BatchNormalization::new())
        .add(Dense::new(96).activation(Activation::Gelu))
        .add(Dense::new(64).activation(Activation::Relu))
        .build([24])?;
    Sequential::new().add(encoder.named("encoder").frozen()).add(Dense::new(1).named("head")).build([24])
}

pub fn unfreeze(model: &Model) -> Result<()> {
    model.layer("encoder")?.set_trainable(true);
    Ok(())
}

pub fn loss() -> impl Loss + 'static {
    MeanSquaredError
}

pub fn optimizer() -> Optimizer {
    Adam::new(1e-2).build().group(ParameterGroup::new("encoder").learning_rate(1e-3))
}
