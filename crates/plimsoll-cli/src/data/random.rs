//! What one side of an example looks like, and random numbers that look so.

use plimsoll::data::{Dataset, Field};
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

    /// The bytes of one example, as a tensor of random ones has them.
    pub(crate) fn n_bytes(&self) -> usize {
        let size = match self.kind {
            Kind::Floats => DType::F32.size(),
            Kind::Bytes { .. } => DType::U8.size(),
            Kind::Ids { .. } => DType::I64.size(),
        };
        self.shape.iter().fold(size, |n_bytes, &dim| n_bytes.saturating_mul(dim))
    }

    /// Why a field of a dataset cannot be what this is, if it cannot.
    pub(crate) fn refuses(&self, field: &Field) -> Option<String> {
        let (wanted, are_floats) = (self.shape.as_slice(), self.kind == Kind::Floats);
        if field.n_varying() == 0 && field.shape().dims() != wanted {
            return Some(format!("of shape {}, and the recipe takes {wanted:?}", field.shape()));
        }
        let is_float = field.dtype().is_float();
        let takes = if are_floats { "floats" } else { "whole numbers" };
        (is_float != are_floats).then(|| format!("{}, and the recipe takes {takes}", field.dtype()))
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
