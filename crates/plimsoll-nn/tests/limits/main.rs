//! The line holds: under every limit that works a run commits no more than that, and computes the same bits.

#![expect(clippy::print_stderr, reason = "figures that nobody asserts are printed")]

mod changes;
mod eager;
mod evictor;
mod expected_peak;
mod faults;
mod models;
mod offload_store;
mod own_layers;
mod own_step;
mod pitfalls;
mod program;
mod run;
mod sweep;
mod threads;
