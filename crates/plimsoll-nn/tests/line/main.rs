//! The line holds: under every limit that works a run commits no more than that, and computes the same bits.

mod faults;
mod guard;
mod models;
mod pitfalls;
mod play;
mod run;
mod sweep;
