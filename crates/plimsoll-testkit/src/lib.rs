//! The test kit: what is checked of every op, made from the registry.
//!
//! Each check is a function of one op (see [`checks`]); [`suite::tests`] lists all of them, and a test program of
//! `plimsoll-tensor` runs the list. An op that is in the registry is tested in every way that the kit knows, and a new
//! way to test reaches every op. The kit also has what tests of other crates share: [`check_gradients`],
//! [`assert_close`], an allocator that counts, and the process's memory as the system sees it.
//!
//! It is for tests alone: no library depends on it.

mod case;
pub mod checks;
mod close;
mod counting;
mod device;
mod draw;
mod examples;
mod files;
mod golden;
mod gradients;
pub mod hostile;
mod needs;
mod outcome;
mod process;
mod saved_values;
pub mod suite;
mod views;

pub use case::Case;
pub use close::{Tolerance, assert_close, same_bits};
pub use counting::CountingAllocator;
pub use device::device_under_test;
pub use examples::write as write_examples;
pub use files::{Folder, sources};
pub use golden::samples as golden_samples;
pub use gradients::check_gradients;
pub use needs::{CheckOutcome, Need};
pub use outcome::{Failure, Outcome};
pub use process::ProcessMemory;
pub use saved_values::write as write_saved_values;
pub use views::Arrangement;
