//! Memory plans for training steps: from a trace (sizes, uses, costs) to decisions, with no tensor in sight.
//!
//! A step is dry-run once on a ghost, which gives its [`Trace`]: every op in order, every value that is saved for backward,
//! and the bytes in use at each moment. [`decide`] chooses which of the saved values are evicted after forward and recomputed
//! when backward reads them (activation checkpointing, rematerialisation), or offloaded to host memory and reloaded where
//! that is possible and cheaper, so that a target in bytes holds at *every* moment of the step at little extra time: a greedy
//! planner, for graphs of every form. Where a step is a [`Chain`] of blocks, dynamic programming over them prescribes what
//! the greedy planner evicts. A [`PlanSet`] holds such decisions for a fixed grid of targets, each dry-run through a pool; a
//! limit takes the fastest candidate that fits, so more memory never means a slower run, and the least limit is known
//! exactly. A [`LazyPlanSet`] gives the same answer for one limit and dry-runs only the candidates that it needs.
//!
//! [`plan_offsets`] assigns the offsets of a step's blocks, so that the pool commits hardly more than is in use.
//!
//! Everything here is a function of its arguments: no clock, no randomness, no thread.

#![forbid(unsafe_code)]

mod block_options;
mod block_slice;
mod blocks;
mod chain;
mod chain_memory;
mod clock;
mod decisions;
mod greedy;
mod lazy_plan_set;
mod offload_schedule;
pub mod offsets;
mod placement;
mod plan_set;
mod prefetch;
pub mod recompute_chain;
mod trace;

pub use chain::{Chain, Prescription};
pub use decisions::{Choice, Decisions};
pub use greedy::{Weights, decide, decide_with};
pub use lazy_plan_set::{LazyPlanSet, Measured, PlanSetCache};
pub use placement::{StepOffsets, plan_offsets};
pub use plan_set::{Candidate, Peaks, PlanSet, Planner};
pub use trace::{Input, OffloadStore, Position, Record, Trace, Value};

#[cfg(test)]
extern crate self as plimsoll_plan;

/// The networks of the tests in `tests`, for those of one module.
#[cfg(test)]
#[path = "../tests"]
mod tests {
    #[allow(dead_code, reason = "others use the rest")]
    pub mod support;
}
