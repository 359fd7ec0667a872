//! The layers, one per file.

mod activation;
mod batch_normalization;
mod bidirectional;
mod conv;
mod conv_transpose;
mod dense;
mod depthwise_conv;
mod dropout;
mod embedding;
mod flatten;
pub(crate) mod functional;
mod group_normalization;
mod gru;
mod lambda;
mod layer_normalization;
mod lstm;
mod merge;
mod multi_head_attention;
mod options;
mod padding;
mod pooling;
mod recurrent;
mod reshape;
mod residual;
mod rms_normalization;
mod sequential;
mod simple_rnn;

pub use activation::ActivationLayer;
pub use batch_normalization::BatchNormalization;
pub use bidirectional::{Bidirectional, Merge};
pub use conv::{Conv, Conv1D, Conv2D};
pub use conv_transpose::{Conv1DTranspose, Conv2DTranspose, ConvTranspose};
pub use dense::Dense;
pub use depthwise_conv::DepthwiseConv2D;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use functional::{Functional, Node};
pub use group_normalization::GroupNormalization;
pub use gru::GRU;
pub use lambda::Lambda;
pub use layer_normalization::LayerNormalization;
pub use lstm::LSTM;
pub use merge::{Add, Concatenate, Multiply, Subtract};
pub use multi_head_attention::MultiHeadAttention;
pub use pooling::{
    AveragePooling2D, GlobalAveragePooling, GlobalAveragePooling1D, GlobalAveragePooling2D, MaxPooling2D,
};
pub use reshape::Reshape;
pub use residual::Residual;
pub use rms_normalization::RMSNormalization;
pub use sequential::Sequential;
pub use simple_rnn::SimpleRNN;

use plimsoll_tensor::{Error, IntoShape, Result, Shape};

/// The extent of the last dimension of an example, which many layers work on.
fn last_extent(layer: &'static str, input: &Shape) -> Result<usize> {
    input.dims().last().copied().ok_or_else(|| {
        Error::shape(
            layer,
            "an example is a single number; the layer needs at least one dimension, such as [n]",
        )
    })
}

/// A product of sizes that somebody gave, or the largest number, which is the extent of no shape.
fn product<const N: usize>(sizes: [usize; N]) -> usize {
    sizes.into_iter().fold(1, usize::saturating_mul)
}

/// The shape of a batch of one example: ops tell the shapes of batches.
fn batch_of_one(example: &Shape) -> Result<Shape> {
    [&[1], example.dims()].concat().into_shape()
}

/// The shape of one example of a batch.
fn example_of(batch: &Shape) -> Result<Shape> {
    batch.dims()[1..].into_shape()
}
