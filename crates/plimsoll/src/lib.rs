//! Plimsoll: training with a line painted on every device.
//!
//! The crate that people use: it re-exports the tensors, variables, ops and tapes of `plimsoll-tensor`.

pub use plimsoll_tensor::*;

/// What most programs need, for `use plimsoll::prelude::*`.
pub mod prelude {
    pub use plimsoll_tensor::{
        Activation, AttentionConfig, Bytes, Conv1dConfig, Conv2dConfig, DType, Device, Error, GradientTape, Op, OpRef,
        Owner, Pool2d, Result, Saving, Shape, Step, Tensor, Unconnected, Variable, custom_gradient,
        recompute, scope, set_seed,
    };
}
