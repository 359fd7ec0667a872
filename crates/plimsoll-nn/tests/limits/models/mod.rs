//! Small models of every kind of shape: chains, skips, dense connections, recurrence, a tree.
//!
//! Their activations are a few megabytes and their parameters much less, so that a limit has something to choose from.

mod pictures;
mod sequences;
mod tree;

use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::{Batch, Trainer};
use plimsoll_nn::{Model, Policy, with_policy};
use plimsoll_tensor::{DType, Owner, Result, Shape, Tensor, set_seed};

pub use pictures::{CNN, DENSENET, RESNET, UNET};
pub use sequences::{GPT, LSTM};
pub use tree::TREE;

/// A model, the data for it, and how it is trained.
#[derive(Clone, Copy)]
pub struct Task {
    /// Builds the model for one example.
    pub model: fn() -> Result<Model>,
    /// The shape of an example, and whether it is made of whole numbers below `n_classes`.
    pub inputs: (&'static [usize], bool),
    /// The shape of an example's labels.
    pub labels: &'static [usize],
    /// The different labels.
    pub n_classes: usize,
    /// The examples of a full batch; the last batch of an epoch has half as many.
    pub batch: usize,
    pub policy: Policy,
    pub n_parts: usize,
}

impl Task {
    /// The run, always the same. The generator is at a fixed place afterwards.
    pub fn trainer(&self) -> Result<Trainer> {
        set_seed(3);
        let model = with_policy(self.policy, self.model)?;
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        Ok(Trainer::new(model, Adam::new(3e-3).build(), loss).accumulate(self.n_parts))
    }

    /// Two full batches and a shorter one, always the same.
    pub fn batches(&self) -> Result<Vec<Batch>> {
        set_seed(4);
        [self.batch, self.batch, self.batch / 2].into_iter().map(|n| self.pair(n)).collect()
    }

    fn pair(&self, n_examples: usize) -> Result<Batch> {
        let shape = |example: &[usize]| {
            let dims: Vec<usize> = std::iter::once(n_examples).chain(example.iter().copied()).collect();
            Shape::new(&dims)
        };
        let ids = |example: &[usize]| {
            let ids = Tensor::uniform(shape(example)?, 0.0, self.n_classes as f64, DType::F32)?;
            Ok::<_, plimsoll_tensor::Error>(ids.cast(DType::I64)?.owned_by(Owner::Data))
        };
        let inputs = match self.inputs {
            (example, true) => ids(example)?,
            (example, false) => Tensor::randn(shape(example)?)?.owned_by(Owner::Data),
        };
        Ok(Batch::new(inputs, ids(self.labels)?))
    }
}
