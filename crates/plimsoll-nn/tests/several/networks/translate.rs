//! An encoder and a decoder that looks at it: sequences to sequences, with padding that does not count.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{
    Add, Dense, Embedding, Functional, LayerNormalization, MultiHeadAttention, Node, Residual,
};
use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{AdamW, Optimizer, OptimizerConfig};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, DType, Result, Tensor};

pub fn data() -> Result<Dataset> {
    let words = |length: usize| Tensor::randint([96, length], 0, 30, DType::I64);
    let (source, target, next) = (words(9)?, words(7)?, words(7)?);
    let (is_word, counts) = (source.ne(0)?.cast(DType::U8)?, next.ne(0)?);
    Dataset::from_tensor_slices(((source, target, is_word), next, counts))?.batch(48)
}

pub fn model() -> Result<Model> {
    Functional::new(|(source, target, is_word): (Node, Node, Node)| {
        let source = Embedding::new(30, 32).named("source").apply(&source)?;
        let seen = MultiHeadAttention::new(4).named("look_around").apply((&source, &source, &is_word))?;
        let memory = LayerNormalization::new().apply(&Add::new().apply((&source, &seen))?)?;
        let target = Embedding::new(30, 32).named("target").apply(&target)?;
        let said = Residual::new(MultiHeadAttention::new(4).causal()).apply(&target)?;
        let said = LayerNormalization::new().apply(&said)?;
        let heard = MultiHeadAttention::new(4).named("look_up").apply((&said, &memory, &is_word))?;
        let both = LayerNormalization::new().apply(&Add::new().apply((&said, &heard))?)?;
        let thought = Dense::new(64).activation(Activation::Gelu).apply(&both)?;
        Dense::new(30).no_bias().apply(&thought)
    })
    .build(([9], [7], [9]))
}

pub fn loss() -> impl Loss + 'static {
    SparseCategoricalCrossentropy::new().from_logits(true)
}

pub fn optimizer() -> Optimizer {
    AdamW::new(1e-3).build().clip_norm(1.0)
}
