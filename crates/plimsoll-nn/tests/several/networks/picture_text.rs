//! A picture and words about it, to one of three classes.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{Concatenate, Conv2D, Dense, Embedding, Flatten, Functional, LSTM, Node};
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, Optimizer, OptimizerConfig};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, DType, Result, Tensor};

pub fn data() -> Result<Dataset> {
    let (image, text) = (Tensor::randn([128, 16, 16, 1])?, Tensor::randint([128, 12], 0, 50, DType::I64)?);
    let labels = Tensor::randint([128], 0, 3, DType::I64)?;
    Dataset::from_tensor_slices(([("image", image), ("text", text)], labels))?.shuffle(128, 1).batch(64)
}

pub fn model() -> Result<Model> {
    Functional::new(|(image, text): (Node, Node)| {
        let conv = || Conv2D::new(8, 3).same().activation(Activation::Gelu);
        let image = conv().apply(&conv().apply(&conv().apply(&image)?)?)?;
        let image = conv().stride(4).apply(&conv().stride(2).apply(&image)?)?;
        let image = Dense::new(32).apply(&Flatten::new().apply(&image)?)?;
        let text = Flatten::new().apply(&LSTM::new(16).apply(&Embedding::new(50, 8).apply(&text)?)?)?;
        Dense::new(3).apply(&Concatenate::new(-1).apply((&image, &text))?)
    })
    .build([("image", vec![16, 16, 1]), ("text", vec![12])])
}

pub fn loss() -> impl Loss + 'static {
    SparseCategoricalCrossentropy::new().from_logits(true)
}

pub fn optimizer() -> Optimizer {
    Adam::new(1e-2).build()
}
