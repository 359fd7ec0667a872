//! Plans for training steps: from a trace (sizes, uses, costs) to decisions, with no tensor in sight.
//!
//! A step runs once on ghosts, which gives its [`Trace`]: every op in order, every value that backward will read, and the
//! bytes in use at each moment. [`decide`] chooses which of these values are dropped after forward and computed again when
//! backward asks for them, or moved elsewhere and back where that is possible and cheaper, so that a target in bytes is
//! kept at *every* moment of the step at little extra time: a greedy walk, for graphs of every form. Where a step is a
//! [`Chain`] of blocks, dynamic programming over them prescribes what the walk lets go. A [`Family`] is made of such decisions
//! at a fixed grid of targets, each played through a pool; a limit takes the fastest member that fits, so more memory never
//! means a slower run, and the least limit is known exactly. [`Candidates`] give the same answer for one limit and play only
//! those that it needs.
//!
//! [`plan_offsets`] says where the blocks of a step lie, so that the pool commits hardly more than is in use.
//!
//! Everything here is a function of its arguments: no clock, no randomness, no thread.

mod blocks;
mod candidates;
mod chain;
mod clock;
mod decisions;
mod excerpt;
mod family;
pub mod offsets;
mod outbound;
mod pareto;
mod passage;
mod placement;
mod prefetch;
mod simulation;
mod trace;

pub use candidates::{CandidateCache, Candidates, Measured};
pub use chain::{Chain, Prescription};
pub use decisions::{Choice, Decisions};
pub use family::{Family, Member, Played};
pub use placement::{StepOffsets, plan_offsets};
pub use simulation::{Weights, decide, decide_with};
pub use trace::{Depot, Input, Position, Record, Trace, Value};
