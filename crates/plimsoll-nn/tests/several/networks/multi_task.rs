//! One picture, two answers: what it shows, and where.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{Conv2D, Dense, Flatten, Functional, Node};
use plimsoll_nn::losses::{Huber, Loss, Losses, Regularized, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll_nn::regularizers::L2;
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, DType, Nested, Result, Tensor};

pub fn data() -> Result<Dataset> {
    let (image, corners) = (Tensor::randn([128, 12, 12, 3])?, Tensor::randn([128, 4])?);
    let (class, weights) = (Tensor::randint([128], 0, 5, DType::I64)?, Tensor::randn([128])?.abs()?);
    let labels = Nested::named([("class", class), ("box", corners)]);
    Dataset::from_tensor_slices((image, labels, weights))?.batch(64)
}

pub fn model() -> Result<Model> {
    Functional::new(|image: Node| {
        let conv = || Conv2D::new(8, 3).same().activation(Activation::Gelu);
        let x = conv().apply(&conv().apply(&conv().apply(&image)?)?)?;
        let x = conv().stride(2).apply(&x)?;
        let x = Dense::new(48).activation(Activation::Relu).apply(&Flatten::new().apply(&x)?)?;
        let class = Dense::new(5).named("class").apply(&x)?;
        let corners = Dense::new(4).named("box").apply(&x)?;
        Ok(Nested::named([("class", class), ("box", corners)]))
    })
    .build([12, 12, 3])
}

pub fn loss() -> impl Loss + 'static {
    let class = SparseCategoricalCrossentropy::new().from_logits(true);
    let losses = Losses::new().output("class", 1.0, class).output("box", 0.5, Huber::new(1.0));
    Regularized::new(losses).penalty("kernel", L2::new(1e-4))
}

pub fn optimizer() -> Optimizer {
    Adam::new(1e-3).build()
}
