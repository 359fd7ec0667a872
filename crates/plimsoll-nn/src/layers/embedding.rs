//! `Embedding`: a row of a table for each whole number.

use plimsoll_tensor::{DType, Result, Shape};

use crate::initializer::{Fans, Initializer};
use crate::layer::{BuiltLayer, Layer, variable};

/// The rows of a table that int64 or int32 ids name: `[batch, ..]` to `[batch, .., width]`.
///
/// Variables: `embeddings` `[n_ids, width]`, evenly within ±0.05 unless told otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    n_ids: usize,
    width: usize,
    initializer: Initializer,
}

impl Embedding {
    /// A table for the ids from 0 to `n_ids - 1`.
    pub fn new(n_ids: usize, width: usize) -> Embedding {
        Embedding { n_ids, width, initializer: Initializer::Uniform { limit: 0.05 } }
    }

    /// This layer with a table that starts otherwise.
    pub fn embeddings_initializer(self, initializer: Initializer) -> Embedding {
        Embedding { initializer, ..self }
    }
}

impl Layer for Embedding {
    fn name(&self) -> &str {
        "embedding"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let fans = Fans { inputs: self.n_ids, outputs: self.width };
        let table = variable("embeddings", [self.n_ids, self.width], self.initializer, fans)?;
        let output: Vec<usize> = input.dims().iter().copied().chain([self.width]).collect();
        Ok(BuiltLayer::new(output, move |ids, _| table.embedding(ids))?.takes(DType::I64))
    }
}
