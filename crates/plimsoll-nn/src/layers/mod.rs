//! The layers, one per file.

mod activation;
mod attention;
mod dense;
mod dropout;
mod embedding;
mod flatten;
mod lambda;
mod layer_norm;
mod reshape;
mod residual;
mod sequential;

pub use activation::ActivationLayer;
pub use attention::MultiHeadAttention;
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use lambda::Lambda;
pub use layer_norm::LayerNorm;
pub use reshape::Reshape;
pub use residual::Residual;
pub use sequential::Sequential;

use plimsoll_tensor::{Error, Result, Shape};

/// The extent of the last dimension of an example, which many layers work on.
fn last_extent(layer: &'static str, input: &Shape) -> Result<usize> {
    input.dims().last().copied().ok_or_else(|| {
        Error::shape(
            layer,
            "an example is a single number; the layer needs at least one dimension, such as [n]",
        )
    })
}
