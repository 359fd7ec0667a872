//! Plimsoll: training with a line painted on every device.
//!
//! The crate that people use: it re-exports the tensors, variables, ops and tapes of `plimsoll-tensor`.

pub use plimsoll_tensor::*;

/// What most programs need, for `use plimsoll::prelude::*`.
pub mod prelude {
    pub use plimsoll_tensor::{
        Bytes, DType, Device, Error, GradientTape, Op, Owner, Result, Shape, Step, Tensor, Unconnected,
        Variable, set_seed,
    };
}
