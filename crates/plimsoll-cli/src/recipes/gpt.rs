//! Language models in the manner of GPT: tokens and positions, pre-norm blocks, a head.
//!
//! `gpt-nano` learns the shipped text byte by byte; the two sizes of GPT-2 have no data of their own and train on
//! random tokens.

use plimsoll::nn::initializer::Fans;
use plimsoll::nn::layers::{
    Dense, Dropout, Embedding, LayerNormalization, MultiHeadAttention, Residual, Sequential,
};
use plimsoll::nn::{BuiltLayer, Initializer, Layer, Prediction, variable};
use plimsoll::{Activation, Error, Result, Shape};

/// The size of a model.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    /// Blocks.
    pub layers: usize,
    /// Numbers per position.
    pub width: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Different tokens.
    pub vocabulary: usize,
    /// The part of the values that is dropped while training.
    pub dropout: f64,
    /// Whether the head uses the tokens' table, as GPT-2's does, or has a kernel of its own.
    pub tied: bool,
    /// The standard deviation that tokens and positions start with.
    pub embedding_std: f64,
    /// The standard deviation that kernels start with.
    pub kernel_std: f64,
}

impl Gpt {
    /// The size of the benchmark's w5. Tokens and positions start large, so that attention distinguishes them from the
    /// first steps on: 500 steps then get well below what the previous letter alone would predict.
    pub const NANO: Gpt = Gpt {
        layers: 4,
        width: 256,
        heads: 4,
        vocabulary: 1024,
        dropout: 0.1,
        tied: false,
        embedding_std: 1.0,
        kernel_std: 0.04,
    };

    /// GPT-2 with 124 million parameters; the vocabulary is rounded up to a multiple of 128.
    pub const SMALL: Gpt = Gpt {
        layers: 12,
        width: 768,
        heads: 12,
        vocabulary: 50_304,
        dropout: 0.0,
        tied: true,
        embedding_std: 0.02,
        kernel_std: 0.02,
    };

    /// GPT-2 with 355 million parameters.
    pub const MEDIUM: Gpt = Gpt { layers: 24, width: 1024, heads: 16, ..Gpt::SMALL };

    fn kernels(&self) -> Initializer {
        Initializer::Normal { std: self.kernel_std }
    }

    fn embeddings(&self) -> Initializer {
        Initializer::Normal { std: self.embedding_std }
    }

    fn block(&self) -> Sequential {
        let attn = Sequential::new()
            .add(LayerNormalization::new())
            .add(MultiHeadAttention::new(self.heads).causal().kernel_initializer(self.kernels()));
        let mlp = Sequential::new()
            .add(LayerNormalization::new())
            .add(
                Dense::new(4 * self.width)
                    .activation(Activation::GeluTanh)
                    .kernel_initializer(self.kernels())
                    .named("up"),
            )
            .add(Dense::new(self.width).kernel_initializer(self.kernels()).named("down"));
        let dropped = |layers: Sequential| match self.dropout {
            0.0 => layers,
            rate => layers.add(Dropout::new(rate)),
        };
        Sequential::new()
            .add(Residual::new(dropped(attn)).named("attn"))
            .add(Residual::new(dropped(mlp)).named("mlp"))
    }

    /// Everything between the embedding and the head.
    fn trunk(&self) -> Sequential {
        let mut trunk = Sequential::new().add(Positions(self.embeddings()));
        if self.dropout > 0.0 {
            trunk = trunk.add(Dropout::new(self.dropout));
        }
        for number in 0..self.layers {
            trunk = trunk.add(self.block().named(&format!("block_{number}")));
        }
        trunk.add(LayerNormalization::new())
    }
}

/// `[batch, time]` tokens to `[batch, time, vocabulary]` logits.
impl Layer for Gpt {
    fn name(&self) -> &str {
        "gpt"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let embedding = Embedding::new(self.vocabulary, self.width)
            .embeddings_initializer(self.embeddings())
            .named("tokens");
        let embedding = embedding.build(input)?;
        let trunk = self.trunk().named("trunk").build(embedding.output_shape())?;
        let &[time] = input.dims() else {
            return Err(Error::shape("gpt", format!("an example is {input}; it must be [time]")));
        };
        let output = [time, self.vocabulary];
        if !self.tied {
            let head = Dense::new(self.vocabulary).no_bias().kernel_initializer(self.kernels()).named("head");
            let head = head.build(trunk.output_shape())?;
            return BuiltLayer::ending_linear(output, move |ids, mode| {
                let x = trunk.forward(&embedding.forward(ids, mode)?, mode)?;
                head.prediction(&x, mode)
            });
        }
        let table = embedding.own_variables()[0].clone();
        BuiltLayer::ending_linear(output, move |ids, mode| {
            let rows = trunk.forward(&embedding.forward(ids, mode)?, mode)?;
            Ok(Prediction::Linear { rows, weights: table.transpose(0, 1)? })
        })
    }
}

/// Adds a learned row to each position: `[batch, time, width]` to the same shape, for as many positions as it was built
/// for, or fewer.
#[derive(Clone, Copy, Debug)]
struct Positions(Initializer);

impl Layer for Positions {
    fn name(&self) -> &str {
        "positions"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let rows = variable("embeddings", input, self.0, Fans::of_elements(input))?;
        BuiltLayer::new(input, move |x, _| {
            let (time, known) = (x.shape()[1], rows.shape()[0]);
            if time < known { x.add(&rows.narrow(0, 0, time)?) } else { x.add(&rows) }
        })
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::{Device, Tensor};

    use super::*;

    fn parameters(gpt: Gpt, time: usize) -> Result<usize> {
        let _on = Device::ghost_cpu().enter();
        Ok(gpt.build([time])?.n_parameters())
    }

    #[test]
    fn the_sizes_are_those_of_gpt_2() -> Result<()> {
        // Tokens and positions, twelve numbers squared and thirteen plain per block, the last norm.
        let count = |layers: usize, width: usize| {
            50_304 * width + 1024 * width + layers * (12 * width * width + 13 * width) + 2 * width
        };
        assert_eq!(parameters(Gpt::SMALL, 1024)?, count(12, 768));
        assert_eq!(count(12, 768), 124_475_904);
        assert_eq!(parameters(Gpt::MEDIUM, 1024)?, count(24, 1024));
        assert_eq!(
            parameters(Gpt::NANO, 128)?,
            2 * 1024 * 256 + 128 * 256 + 4 * (12 * 65_536 + 13 * 256) + 512
        );
        Ok(())
    }

    #[test]
    fn a_tied_head_reads_the_tokens_table() -> Result<()> {
        let small = Gpt { layers: 1, width: 8, heads: 2, vocabulary: 11, ..Gpt::SMALL };
        let model = small.build([5])?;
        let ids = Tensor::from_vec((0..10i64).collect())?.reshape([2, 5])?;
        let logits = model.infer(&ids)?;
        assert_eq!(logits.shape().dims(), [2, 5, 11]);
        let table = &model.variables()[0];
        assert_eq!(table.name(), "tokens.embeddings");
        table.assign(&Tensor::zeros([11, 8])?)?;
        assert!(model.infer(&ids)?.to_f64_vec()?.iter().all(|&logit| logit == 0.0));
        Ok(())
    }
}
