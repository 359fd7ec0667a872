//! From the trace of a step to a plan of it.
//!
//! No tensors and no devices: sizes, moments and costs are all that is seen here, and nothing depends on the clock
//! or on chance, so that every machine makes the same plan of the same trace.

pub mod offsets;
pub mod trace;
