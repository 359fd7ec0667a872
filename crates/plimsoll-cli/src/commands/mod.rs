//! The commands, one per file.

pub mod devices;
