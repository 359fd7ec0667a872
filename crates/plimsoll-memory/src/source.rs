//! Where pages come from.
//!
//! A source reserves addresses for every region once, at construction, and from then on commits and decommits
//! whole granules of them. It knows nothing of blocks; the pool knows nothing of the operating system or a
//! driver.

use std::fmt;
use std::ops::Range;

use crate::Region;

/// The granule of the sources in this crate; that of the CUDA driver is the same.
pub const GRANULE: u64 = 2 << 20;

/// Addresses reserved once, whose pages can be committed and decommitted.
///
/// All ranges are offsets from the region's base and multiples of the granule. The pool commits only what is
/// not committed and decommits only what is.
///
/// # Safety
///
/// Unless [`is_ghost`](Source::is_ghost) is true, after `commit(region, range)` has returned `Ok`, and until
/// `decommit` of the same bytes, `base(region) + range` must be valid memory for reads and writes that belongs
/// to nobody else, for as long as the source lives. `base` must be a multiple of the granule and never change.
/// `granule` must be a power of two of at least 64 KiB, `region_bytes` a multiple of it; neither may change.
pub unsafe trait Source: Send + Sync {
    /// The unit of commit and decommit, in bytes.
    fn granule(&self) -> u64 {
        GRANULE
    }

    /// How many bytes of addresses the region has.
    fn region_bytes(&self, region: Region) -> u64;

    /// The first address of the region; null for ghosts.
    fn base(&self, region: Region) -> *mut u8;

    /// Puts pages behind the range.
    ///
    /// # Errors
    ///
    /// When there are no pages to be had; the range is then as before.
    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError>;

    /// Gives the pages behind the range back.
    ///
    /// # Errors
    ///
    /// When the pages could not be given back; the range then counts as committed still.
    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError>;

    /// Whether there is no memory behind the numbers.
    fn is_ghost(&self) -> bool {
        false
    }
}

/// Why a source could not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    message: String,
}

impl SourceError {
    /// An error with this text: one lower-case sentence for a person, with no final period.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SourceError {}
