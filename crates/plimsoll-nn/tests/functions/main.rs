//! Training steps of one's own as functions: what cannot be a model, an optimizer and a loss is kept under a limit all the
//! same, with eager's bits.

#![expect(clippy::print_stderr, reason = "figures that nobody asserts are printed")]

mod contract;
mod networks;
mod sweep;
