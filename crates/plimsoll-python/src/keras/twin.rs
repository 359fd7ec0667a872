//! The models of the tests, written and trained in Rust: what Python's must be equal to, bit for bit. Builds without debug
//! assertions, such as wheels, do not have it.

use plimsoll::data::Dataset;
use plimsoll::nn::layers::{
    Add, Conv2D, Dense, Dropout, Embedding, Functional, GlobalAveragePooling1D, GlobalAveragePooling2D, LSTM,
    LayerNormalization, MaxPooling2D, MultiHeadAttention, Node, Sequential,
};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::{Adam, OptimizerConfig};
use plimsoll::nn::train::{Trainer, Until};
use plimsoll::nn::{Initializer, Layer, Model};
use plimsoll::{Activation, Error, Result, set_seed};
use pyo3::prelude::*;

use super::raised;
use crate::tensor::{Value, Variable};

fn embedding(n_ids: usize, width: usize) -> Embedding {
    Embedding::new(n_ids, width).embeddings_initializer(Initializer::Uniform { limit: 0.05 })
}

fn transformer(tokens: &Node) -> Result<Node> {
    let mut x = embedding(30, 16).apply(tokens)?;
    let norm = || LayerNormalization::new().epsilon(1e-3);
    for _ in 0..2 {
        let normed = norm().apply(&x)?;
        x = Add::new().apply((&x, &MultiHeadAttention::new(2).apply(&normed)?))?;
        let normed = norm().apply(&x)?;
        let wide = Dense::new(32).activation(Activation::Gelu).apply(&normed)?;
        x = Add::new().apply((&x, &Dense::new(16).apply(&wide)?))?;
    }
    Dense::new(3).apply(&GlobalAveragePooling1D::new().apply(&norm().apply(&x)?)?)
}

fn build(name: &str) -> Result<Model> {
    let relu = Activation::Relu;
    match name {
        "dense" => Sequential::new()
            .add(Dense::new(64).activation(relu))
            .add(Dropout::new(0.2))
            .add(Dense::new(32).activation(Activation::Tanh))
            .add(Dense::new(3))
            .build([20]),
        "conv" => Sequential::new()
            .add(Conv2D::new(8, 3).same().activation(relu))
            .add(MaxPooling2D::new(2))
            .add(Conv2D::new(16, 3).activation(relu))
            .add(GlobalAveragePooling2D::new())
            .add(Dense::new(3))
            .build([12, 12, 2]),
        "lstm" => Sequential::new()
            .add(embedding(30, 12))
            .add(LSTM::new(16).return_sequences())
            .add(LSTM::new(16))
            .add(Dense::new(3))
            .build([9]),
        "transformer" => Functional::new(|tokens: Node| transformer(&tokens)).build([8]),
        _ => Err(Error::argument("rust_twin", format!("there is no model {name:?}"))),
    }
}

/// The weights of a model that was built and trained in Rust: one epoch after the other, in order, by Adam as Keras has it.
#[pyfunction]
fn rust_twin(
    py: Python<'_>,
    name: &str,
    inputs: Value,
    labels: Value,
    batch: usize,
    epochs: u64,
) -> PyResult<Vec<Variable>> {
    let variables = raised::call(py, || {
        set_seed(0);
        let model = build(name)?;
        let data = Dataset::from_tensor_slices((&*inputs, &*labels))?.batch(batch)?;
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let adam = Adam::new(0.01).epsilon(1e-7).epsilon_hat(true).build();
        let mut trainer = Trainer::new(model, adam, loss);
        trainer.fit(&data, Until::Epochs(epochs))?;
        Ok(trainer.model().variables())
    })?;
    Ok(variables.into_iter().map(Variable).collect())
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rust_twin, module)?)
}
