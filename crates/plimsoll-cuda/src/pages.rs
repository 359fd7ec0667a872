//! Pages of a GPU, as a source for a pool.

use std::ops::Range;

use plimsoll_memory::{Region, Source, SourceError};

use crate::driver;

/// The addresses of each of a pool's regions on a GPU, real or ghost: more than any GPU has memory.
pub const REGION_BYTES: u64 = 512 << 30;

/// Where a GPU's pool has its pages from.
pub enum Pages {
    /// The driver's virtual memory.
    Driver(driver::DriverPages),
    /// The host's memory, for the emulated GPU.
    #[cfg(feature = "emulated")]
    Emulated(crate::emulated::EmulatedPages),
}

impl Pages {
    fn source(&self) -> &dyn Source {
        match self {
            Pages::Driver(pages) => pages,
            #[cfg(feature = "emulated")]
            Pages::Emulated(pages) => pages,
        }
    }
}

// SAFETY: both sources keep the trait's promises.
unsafe impl Source for Pages {
    fn granule(&self) -> u64 {
        self.source().granule()
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.source().region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.source().base(region)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.source().commit(region, range)
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.source().decommit(region, range)
    }
}
