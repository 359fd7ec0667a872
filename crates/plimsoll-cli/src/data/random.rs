//! What one side of an example looks like, and random numbers that look so.

use plimsoll::data::Dataset;
use plimsoll::{DType, Owner, Result, Tensor, with_owner};

use super::Data;

/// What inputs or labels look like, without the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    shape: Vec<usize>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Floats,
    Bytes { below: usize },
    Ids { below: usize },
}

impl Feature {
    /// Floats of that shape.
    pub fn floats(shape: impl Into<Vec<usize>>) -> Feature {
        Feature { shape: shape.into(), kind: Kind::Floats }
    }

    /// Unsigned bytes of that shape, each below a number.
    pub fn bytes(shape: impl Into<Vec<usize>>, below: usize) -> Feature {
        Feature { shape: shape.into(), kind: Kind::Bytes { below } }
    }

    /// Whole numbers of that shape, such as tokens or classes, each below a number.
    pub fn ids(shape: impl Into<Vec<usize>>, below: usize) -> Feature {
        Feature { shape: shape.into(), kind: Kind::Ids { below } }
    }

    /// The shape of one example.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether these are numbers of classes, of which predictions name one as the most likely.
    pub fn are_classes(&self) -> bool {
        self.kind != Kind::Floats
    }

    /// `n` random ones, in a tensor.
    pub fn random(&self, n: usize) -> Result<Tensor> {
        let shape: Vec<usize> = std::iter::once(n).chain(self.shape.iter().copied()).collect();
        with_owner(Owner::Data, || match self.kind {
            Kind::Floats => Tensor::randn(shape),
            Kind::Bytes { below } => Tensor::randint(shape, 0, below as i64, DType::U8),
            Kind::Ids { below } => Tensor::randint(shape, 0, below as i64, DType::I64),
        })
    }
}

impl Data {
    /// `n` random pairs.
    pub fn random(inputs: &Feature, labels: &Feature, n: usize) -> Result<Data> {
        Ok(Data::new(Dataset::from_tensor_slices((inputs.random(n)?, labels.random(n)?))?, "random"))
    }
}
