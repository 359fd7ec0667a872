//! Regularizers: penalties on large weights, with Keras's names. [`Regularized`](crate::losses::Regularized) adds them to a
//! loss.

use plimsoll_tensor::{Result, Tensor};

/// A penalty on a tensor: one number.
pub trait Regularizer: Send + Sync {
    /// The penalty.
    ///
    /// # Errors
    /// Memory that is full.
    fn call(&self, weights: &Tensor) -> Result<Tensor>;

    /// Whether what it does depends on nothing but shapes and its description, as for [layers](crate::Layer::is_pure).
    fn is_pure(&self) -> bool {
        false
    }
}

/// `factor · Σ |w|`.
#[derive(Clone, Copy, Debug)]
pub struct L1 {
    factor: f64,
}

impl L1 {
    /// A penalty of that factor; Keras's default is 0.01.
    pub fn new(factor: f64) -> L1 {
        L1 { factor }
    }
}

impl Regularizer for L1 {
    fn call(&self, weights: &Tensor) -> Result<Tensor> {
        weights.abs()?.sum(..)?.mul(self.factor)
    }

    fn is_pure(&self) -> bool {
        true
    }
}

/// `factor · Σ w²`.
#[derive(Clone, Copy, Debug)]
pub struct L2 {
    factor: f64,
}

impl L2 {
    /// A penalty of that factor; Keras's default is 0.01.
    pub fn new(factor: f64) -> L2 {
        L2 { factor }
    }
}

impl Regularizer for L2 {
    fn call(&self, weights: &Tensor) -> Result<Tensor> {
        weights.square()?.sum(..)?.mul(self.factor)
    }

    fn is_pure(&self) -> bool {
        true
    }
}
