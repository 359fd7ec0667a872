//! Pages of a GPU, as a source for a pool.

use std::ops::Range;
use std::sync::{Arc, Weak};

use plimsoll_memory::{Region, Source, SourceError};

use crate::pending::Pending;

/// Where a GPU's pool has its pages from.
pub struct Pages {
    source: Box<dyn Source>,
    /// What is launched and not issued yet may still be about pages that go back.
    pending: Weak<Pending>,
}

impl Pages {
    pub(crate) fn new(source: Box<dyn Source>, pending: &Arc<Pending>) -> Pages {
        Pages { source, pending: Arc::downgrade(pending) }
    }
}

// SAFETY: the back end's source keeps the trait's promises.
unsafe impl Source for Pages {
    fn granule(&self) -> u64 {
        self.source.granule()
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.source.region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.source.base(region)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.source.commit(region, range)
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        if let Some(pending) = self.pending.upgrade() {
            pending.flush().map_err(|error| SourceError::new(error.to_string()))?;
        }
        self.source.decommit(region, range)
    }
}
