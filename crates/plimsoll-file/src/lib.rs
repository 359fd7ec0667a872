//! Files on a disk that others use, too: opened without waiting, written in one act.
//!
//! Whoever can write to a folder can put a FIFO, a device or a symbolic link where a file is expected, and several runs may
//! save into one folder. So this crate owns two things, and everything that reads or writes a file of a user's goes
//! through them (`cargo xtask tidy` holds that):
//!
//! - [`open()`] and [`read_small`] open regular files and refuse everything else at once, without ever blocking;
//! - [`write_whole`] lets a reader find the old contents or the new and never a part of either, and lets several writers
//!   of one file work side by side; [`check_writable`] tells beforehand whether it could, and [`create`] is for files that
//!   are written piece by piece, which [`replace`] gives other contents in one act.
//!
//! It knows neither what is in a file nor what a tensor is.

#![forbid(unsafe_code)]

mod open;
mod write;

pub use open::{open, open_own, own_folder, read_small};
pub use write::{check_writable, create, remove_leftovers_in, replace, write_whole};
