//! Pages that are numbers only: what a plan runs on.

use std::ops::Range;

use crate::{GRANULE, Region, Source, SourceError};

/// A source without memory. It has addresses and never refuses to commit them.
#[derive(Clone, Debug)]
pub struct GhostPages {
    granule: u64,
    region_bytes: [u64; 3],
}

impl GhostPages {
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
