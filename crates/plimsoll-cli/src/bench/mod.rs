//! Measuring: the benchmark's workloads, how they are timed, and what memory they take.
//!
//! Names, shapes and protocol are those of the programs that measure other frameworks, so that one can be run beside
//! the other. Tests never depend on what is measured here.

pub mod protocol;
pub mod workloads;

pub use protocol::{Pace, Timing, measure, measure_on_gpu, median};
pub use workloads::{Workload, all};
