//! Models of sequences: a GPT with dropout, an LSTM.

use plimsoll_nn::layers::{
    Dense, Dropout, Embedding, LSTM as Lstm, LayerNormalization, MultiHeadAttention, Residual, Sequential,
};
use plimsoll_nn::{Layer, Model, Policy};
use plimsoll_tensor::{Activation, Result};

use super::Task;

const TIME: usize = 32;
const WIDTH: usize = 32;

/// Blocks of attention and two dense layers, with dropout.
pub const GPT: Task = Task {
    model: gpt,
    inputs: (&[TIME], true),
    labels: &[TIME],
    n_classes: 48,
    batch: 32,
    policy: Policy::Float32,
    n_parts: 1,
};

fn gpt() -> Result<Model> {
    let mut model = Sequential::new().add(Embedding::new(48, WIDTH)).add(Dropout::new(0.1));
    for _ in 0..3 {
        let attn = Sequential::new()
            .add(LayerNormalization::new())
            .add(MultiHeadAttention::new(2).causal())
            .add(Dropout::new(0.1));
        let mlp = Sequential::new()
            .add(LayerNormalization::new())
            .add(Dense::new(4 * WIDTH).activation(Activation::GeluTanh))
            .add(Dense::new(WIDTH))
            .add(Dropout::new(0.1));
        model = model.add(Residual::new(attn)).add(Residual::new(mlp));
    }
    model.add(LayerNormalization::new()).add(Dense::new(48)).build([TIME])
}

/// LSTMs, one upon the other.
pub const LSTM: Task = Task {
    model: lstm,
    inputs: (&[24], true),
    labels: &[24],
    n_classes: 40,
    batch: 32,
    policy: Policy::Float32,
    n_parts: 1,
};

fn lstm() -> Result<Model> {
    let embedded = Sequential::new().add(Embedding::new(40, 24));
    let deep = (0..8).fold(embedded, |model, _| model.add(Lstm::new(24).return_sequences()));
    deep.add(Dense::new(40)).build([24])
}
