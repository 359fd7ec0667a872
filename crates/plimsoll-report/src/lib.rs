//! Profiles of memory: what happened to every byte of a run, recorded while it runs, read back and explained.
//!
//! A [`Profiler`] is told of everything that a pool does, in order: blocks taken, relabelled and freed, with owner, op, layer
//! and line; marks of steps and phases with their times; what the pool has committed. It writes that to a file, compactly
//! and piece by piece, so that it neither grows nor loses more than the step that a killed process was in. A step that does
//! what an earlier one did is a few bytes. Of a long run the first steps, the last ones and those of the peak are kept, and of the
//! others summaries.
//!
//! A [`Profile`] reads such a file, checks it, and goes through its moments again ([`Profile::replay`]); an [`Explanation`]
//! says what is worth knowing of it: the peak, who held the bytes then, how steps went, what grows. `docs/profile.md`
//! describes the format.
//!
//! What this crate refuses to do: it knows neither tensors nor devices, it never changes what a pool answers, and a disk that
//! is full ends the recording, not the run.

#![forbid(unsafe_code)]

mod action;
mod agreement;
mod chapters;
mod code;
mod compare;
mod definitions;
mod explain;
mod export;
mod growth;
mod live;
mod page;
mod profile;
mod profiler;
mod ranks;
mod reader;
mod recorder;
mod replay;
mod stretch;
mod text;
mod unused;
mod works;
mod writer;

pub use action::{Action, Advice};
pub use agreement::{Agreement, Difference};
pub use compare::Comparison;
pub use explain::{Explanation, Shortage, StepSummary};
pub use export::{Export, TensorBoardWriter};
pub use growth::{Growth, GrowthWatch};
pub use live::LiveView;
pub use page::Page;
pub use plimsoll_memory::Price;
pub use profile::{Profile, Site};
pub use profiler::Profiler;
pub use ranks::Ranks;
pub use replay::{Block, Change, Moment};
pub use stretch::Stretch;
pub use works::{Holding, Works};
