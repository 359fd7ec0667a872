//! Several ranks of this process that train together: data parallelism, and ZeRO.

#![forbid(unsafe_code)]

mod clusters;
mod data_parallel;
mod faults;
mod gpus;
mod networks;
mod zero;
