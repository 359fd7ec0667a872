//! Gradients, steps and assignments, as people use them.
//!
//! A [`GradientTape`] makes gradients of what `tape` has recorded below; a [`Step`] lets what follows from them happen whole or
//! not at all. Both open a log of `remat` where values may be evicted, which is why they are above it, and both call ops.

mod assign;
mod custom;
mod each;
mod gradient;
mod jacobian;
mod step;
mod tape;

pub use assign::with_ghosts;
pub use custom::{custom_gradient, recompute};
pub use gradient::Unconnected;
pub use step::{OpenStep, Step};
pub use tape::GradientTape;
