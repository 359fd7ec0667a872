//! How many of something there may be at once, where the host keeps a note of each.
//!
//! The pool refuses bytes that are too many. Rows, batches ahead, cells and threads are noted outside of any pool, though, and
//! elements may have no bytes at all, or lie on a ghost, which has room for everything: what nobody refused there would
//! fill the host's memory with notes. So each has a bound that is far beyond what is of use.

use plimsoll_tensor::{Error, Result};

/// The most rows of a batch: plans ask about more than any device can hold.
pub(crate) const ROWS: usize = 1 << 36;
/// The most rows of a batch that have no bytes, through all batches that it is made of: no memory bounds those, and each
/// takes its time.
pub(crate) const EMPTY_ROWS: usize = 1 << 24;
/// The most batches that are made ahead.
pub(crate) const AHEAD: usize = 1 << 12;
/// The most threads that make batches.
pub(crate) const WORKERS: usize = 1 << 10;
/// The most elements that wait in cells, in the buffer of a shuffle or for a batch.
pub(crate) const WAITING: usize = 1 << 24;
/// The most elements of a cache.
pub(crate) const CACHED: usize = 1 << 30;
/// The batches of an epoch are numbered below this, so that what is counted on from one of them has room.
pub(crate) const BATCHES: usize = 1 << 62;

/// Refuses more than there may be.
pub(crate) fn check(op: &'static str, what: &str, n: usize, most: usize) -> Result<()> {
    if n <= most { Ok(()) } else { Err(Error::argument(op, format!("{n} {what}; there are at most {most}"))) }
}
