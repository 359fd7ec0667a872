//! A sweep of calls that nobody means well, made from the registry: a result or an error, never a signal or a panic.
//!
//! Every op's samples are called with other extents, dtypes and layouts (`draw.rs`), and every public function of a tensor
//! with other axes, strides, paddings and numbers (`methods.rs`); so are variables and the ops that update them
//! (`updates.rs`). With the feature `whole` layers, losses, metrics and optimizers (`networks.rs`) and datasets
//! (`datasets.rs`) are called, too, for which this crate needs all others. A call is made on a ghost first, which tells what it would
//! cost; one that is cheap enough is made on a device whose every block ends at a page out of reach, with a limit of
//! 64 MiB, forward and often backward. All of it happens in child processes, so that a signal ends a child and not the
//! sweep: the child says which call comes next, and the parent goes on after the one that ended it.

mod child;
#[cfg(feature = "whole")]
mod datasets;
mod draw;
mod methods;
#[cfg(feature = "whole")]
mod networks;
mod parent;
mod updates;

#[cfg(feature = "whole")]
pub use child::of_networks;
pub use child::{CHILD, Child, Target, of_tensors};
pub use methods::methods;
pub use parent::{Sweep, Tally};
