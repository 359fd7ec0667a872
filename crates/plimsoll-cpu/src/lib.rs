//! Host execution: threads, tiles and loops.
//!
//! This crate knows how to walk memory fast, not what the walk is for: a family of ops hands it a function over one
//! tile or a fold over one slice, and the crate brings strides, broadcasting, narrow dtypes, vector instructions and
//! threads. It holds no tensors and allocates nothing: what a kernel needs beyond its operands lies on the stack.
//! Cutting depends on shapes and strides alone, so every result has the same bits for any number of threads.

pub mod bits;
pub mod copy;
pub mod element;
pub mod lanes;
pub mod map;
pub mod math;
pub mod operand;
pub mod random;
pub mod reduce;
pub mod simd;
pub mod threads;
mod tile;
mod tiling;
mod trig;
pub mod truncated;
