//! Host execution: threads, tiles and loops. It knows loops, not ops, and allocates nothing.

pub mod threads;
