//! `train`, `plan` and `bench` for a model of one's own: `cargo run -- train wave`.

use plimsoll::nn::losses::MeanSquaredError;
use plimsoll::prelude::*;
use plimsoll_cli::{Data, Feature, Recipe};

fn main() -> std::process::ExitCode {
    let model = Sequential::new().add(Dense::new(16).activation(Activation::Tanh)).add(Dense::new(1));
    let number = || Feature::floats([1]);
    let wave = Recipe::new("wave", model, number(), number(), MeanSquaredError)
        .about("a sine, from 512 of its points")
        .shipped(|| {
            let x = Tensor::uniform([512, 1], -3.0, 3.0, DType::F32)?;
            Ok(Data::new(Dataset::from_tensor_slices((x.clone(), x.sin()?))?, "shipped"))
        })
        .epochs(20);
    plimsoll_cli::main([wave])
}
