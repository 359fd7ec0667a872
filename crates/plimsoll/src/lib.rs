//! Plimsoll: training with a line painted on every device.
//!
//! The crate that people use: it re-exports the tensors, variables, ops and tapes of `plimsoll-tensor`, the datasets of
//! `plimsoll-data` as [`data`], and the layers, losses, optimizers and the train loop of `plimsoll-nn` as [`nn`].

pub use plimsoll_data as data;
pub use plimsoll_nn as nn;
pub use plimsoll_tensor::*;

/// What most programs need, for `use plimsoll::prelude::*`.
pub mod prelude {
    pub use plimsoll_data::{AUTOTUNE, Dataset};
    pub use plimsoll_nn::layers::*;
    pub use plimsoll_nn::losses::*;
    pub use plimsoll_nn::metrics::{self, Metric};
    pub use plimsoll_nn::optimizers::*;
    pub use plimsoll_nn::regularizers::{self, Regularizer};
    pub use plimsoll_nn::train::{Batch, Trainer, Until, callbacks};
    pub use plimsoll_nn::{
        Forward, Initializer, Layer, Mode, Model, Policy, VariableFilter, set_policy, with_policy,
    };
    pub use plimsoll_tensor::{
        Activation, AttentionConfig, Bytes, Conv1dConfig, Conv2dConfig, DType, Device, Error, Function,
        GradientTape, Nested, Op, OpRef, Owner, Pool2d, Result, Saving, Shape, Step, Tensor, Unconnected,
        Variable, custom_gradient, recompute, scope, set_seed,
    };
}

/// The programs of the README are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
