//! Pages that are numbers only: what a plan runs on.

use std::ops::Range;

use crate::{GRANULE, Region, Source, SourceError};

/// A source without memory. It has addresses and never refuses to commit them.
#[derive(Clone, Debug)]
pub struct GhostPages {
    granule: u64,
    region_bytes: [u64; 3],
}

/// The addresses of a region of unbounded pages: an exbibyte, a million times what any device has, and few enough that sums
/// of sizes stay far from overflow.
const UNBOUNDED_BYTES: u64 = 1 << 60;

impl GhostPages {
    /// Ghost pages with more addresses than any device has, so that a limit alone decides what fits.
    pub fn unbounded() -> Self {
        Self::new(UNBOUNDED_BYTES)
    }

    /// Unbounded ghost pages with the granule of another source.
    pub(crate) fn unbounded_like(source: &dyn Source) -> Self {
        Self::with_granule(UNBOUNDED_BYTES, source.granule())
    }

    /// Ghost pages whose three regions have `region_bytes` of addresses each, rounded up to whole granules.
    pub fn new(region_bytes: u64) -> Self {
        Self::with_granule(region_bytes, GRANULE)
    }

    /// Ghost pages of another granule, a power of two of at least 64 KiB.
    pub fn with_granule(region_bytes: u64, granule: u64) -> Self {
        let bytes = region_bytes.checked_next_multiple_of(granule).unwrap_or(u64::MAX - (granule - 1));
        Self { granule, region_bytes: [bytes; 3] }
    }

    /// Ghost pages with the addresses of another source.
    pub fn like(source: &dyn Source) -> Self {
        Self {
            granule: source.granule(),
            region_bytes: Region::ALL.map(|region| source.region_bytes(region)),
        }
    }
}

// SAFETY: a ghost promises no memory, and its sizes are fixed multiples of the granule.
unsafe impl Source for GhostPages {
    fn granule(&self) -> u64 {
        self.granule
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.region_bytes[region as usize]
    }

    fn base(&self, _: Region) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn commit(&self, _: Region, _: Range<u64>) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _: Region, _: Range<u64>) -> Result<(), SourceError> {
        Ok(())
    }

    fn is_ghost(&self) -> bool {
        true
    }
}
