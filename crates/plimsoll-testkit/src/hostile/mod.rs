//! A sweep of calls that nobody means well, made from the registry: a result or an error, never a signal or a panic.
//!
//! Every op's samples are called with other extents, dtypes and layouts (`draw.rs`), and every public function of a tensor
//! with other axes, strides, paddings and numbers (`methods.rs`). A call is made on a ghost first, which tells what it would
//! cost; one that is cheap enough is made on a device whose every block ends at a page out of reach, with a limit of
//! 64 MiB, forward and often backward. All of it happens in child processes, so that a signal ends a child and not the
//! sweep: the child says which call comes next, and the parent goes on after the one that ended it.

mod child;
mod draw;
mod methods;
mod parent;

pub use child::{CHILD, Child};
pub use methods::methods;
pub use parent::{Sweep, Tally};
