//! Plimsoll: training with a line painted on every device.
//!
//! The crate that people use: it re-exports the tensors, variables, ops and tapes of `plimsoll-tensor`, and the
//! datasets of `plimsoll-data` as [`data`].

pub use plimsoll_data as data;
pub use plimsoll_tensor::*;

/// What most programs need, for `use plimsoll::prelude::*`.
pub mod prelude {
    pub use plimsoll_data::Dataset;
    pub use plimsoll_tensor::{
        Activation, AttentionConfig, Bytes, Conv2dConfig, DType, Device, Error, GradientTape, Op, OpRef,
        Owner, Pool2d, Result, Saving, Shape, Step, Tensor, Unconnected, Variable, custom_gradient,
        recompute, scope, set_seed,
    };
}
