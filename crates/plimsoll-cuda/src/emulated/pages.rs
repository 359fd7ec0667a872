//! The device's memory: the host's, counted.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_memory::{HostPages, Region, Source, SourceError};

use super::streams::Queues;

/// Pages of the host that are bounded and counted like a device's.
pub struct EmulatedPages {
    pages: HostPages,
    /// What all sources of the device hold, in bytes.
    on_device: Arc<AtomicU64>,
    /// What this one holds.
    here: AtomicU64,
    /// Copies that may be about these pages.
    queues: Arc<Queues>,
    memory_bytes: u64,
}

impl EmulatedPages {
    /// Pages of a device with so much memory, of which `on_device` counts what is taken.
    pub(super) fn new(
        on_device: Arc<AtomicU64>,
        queues: Arc<Queues>,
        memory_bytes: u64,
    ) -> Result<EmulatedPages, SourceError> {
        Ok(EmulatedPages {
            pages: HostPages::new()?,
            on_device,
            here: AtomicU64::new(0),
            queues,
            memory_bytes,
        })
    }

    fn take(&self, n_bytes: u64) -> Result<(), SourceError> {
        let fits = |taken: u64| taken.checked_add(n_bytes).filter(|&sum| sum <= self.memory_bytes);
        match self.on_device.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => {
                self.here.fetch_add(n_bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(taken) => Err(SourceError::new(format!(
                "the emulated GPU has {} bytes of memory left, {n_bytes} were asked for",
                self.memory_bytes - taken
            ))),
        }
    }

    fn give_back(&self, n_bytes: u64) {
        self.here.fetch_sub(n_bytes, Ordering::Relaxed);
        self.on_device.fetch_sub(n_bytes, Ordering::Relaxed);
    }
}

impl Drop for EmulatedPages {
    fn drop(&mut self) {
        self.queues.finish();
        self.give_back(self.here.load(Ordering::Relaxed));
    }
}

// SAFETY: the host's pages keep the promises; only what the pool asks for is counted.
unsafe impl Source for EmulatedPages {
    fn granule(&self) -> u64 {
        self.pages.granule()
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.pages.region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.pages.base(region)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        let n_bytes = range.end - range.start;
        self.take(n_bytes)?;
        if let Err(error) = self.pages.commit(region, range.clone()) {
            self.give_back(n_bytes);
            return Err(error);
        }
        // The driver does not promise zeros; whoever counts on them shall see it here.
        // SAFETY: the range has just been committed, and the pool has not handed it out yet.
        unsafe { self.base(region).add(range.start as usize).write_bytes(0xFF, n_bytes as usize) };
        Ok(())
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        let n_bytes = range.end - range.start;
        self.queues.finish();
        self.pages.decommit(region, range)?;
        self.give_back(n_bytes);
        Ok(())
    }
}
