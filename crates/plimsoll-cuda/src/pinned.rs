//! Pinned memory of the host: what a GPU copies to and from by itself, beside its work.
//!
//! Pinning is slow and makes the device wait, so that it is not for every copy: a [`Pinned`] is a pool like those of the
//! devices, with a limit, labels and statistics of its own. Its pages are taken in pieces of 32 MiB when they are first
//! needed, pinned, and kept until the pool is dropped, `trim` or a lower limit asks for them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::{
    Block, Bytes, GhostPages, HostPages, KeptPages, Label, OutOfMemory, Pool, Region, Snapshot, Source,
    SourceError, Stats,
};

use crate::error::{Error, Result};
use crate::gpu::Gpu;

/// What is pinned at a time.
pub(crate) const PIECE_BYTES: usize = 32 << 20;

/// A pool of pinned memory. Clones are handles to the same pool.
#[derive(Clone, Debug)]
pub struct Pinned {
    pool: Pool,
    /// Between the steps of a run the pool is empty; its pages stay for the next.
    _kept: Arc<KeptPages>,
}

impl Pinned {
    /// Memory that is pinned for a GPU, no more than `limit`. Nothing is taken in advance.
    ///
    /// # Errors
    /// The system has no addresses to spare.
    pub fn new(gpu: &Arc<Gpu>, limit: Option<Bytes>) -> Result<Pinned> {
        Ok(Pinned::over(Pool::new(PinnedPages::new(gpu)?), limit))
    }

    /// Pinned memory that is only counted, for the ghost of a GPU.
    pub fn ghost(limit: Option<Bytes>) -> Pinned {
        Pinned::over(Pool::new(GhostPages::with_granule(1 << 40, PIECE_BYTES as u64)), limit)
    }

    fn over(pool: Pool, limit: Option<Bytes>) -> Pinned {
        pool.set_limit(limit).expect("a pool that holds nothing keeps to any limit");
        let kept = Arc::new(pool.keep_pages());
        Pinned { pool, _kept: kept }
    }

    /// A block of pinned memory.
    ///
    /// # Errors
    /// The limit, or a system that does not let so much be pinned; the report lists the holders.
    pub fn acquire(&self, bytes: usize, label: Label) -> Result<PinnedBlock, OutOfMemory> {
        self.pool.acquire(bytes, label).map(PinnedBlock)
    }

    /// Changes or lifts the limit.
    ///
    /// # Errors
    /// More is in use already; the old limit stays.
    pub fn set_limit(&self, limit: Option<Bytes>) -> Result<(), OutOfMemory> {
        self.pool.set_limit(limit)
    }

    /// The numbers of the pool: they are the host's, and no part of a device's.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// Every live block.
    pub fn snapshot(&self) -> Snapshot {
        self.pool.snapshot()
    }

    /// Gives free pieces back to the system, which waits for the device; returns how many bytes that was.
    pub fn trim(&self) -> u64 {
        self.pool.trim()
    }
}

/// A block of pinned memory, freed on drop. A copy that is still about it goes on.
#[derive(Debug)]
pub struct PinnedBlock(Block);

impl PinnedBlock {
    /// The bytes asked for.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The address of the first byte; null on a ghost. What lies there belongs to copies until they are done.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

/// Pages of the host that a GPU knows.
struct PinnedPages {
    pages: HostPages,
    gpu: Arc<Gpu>,
    /// The pieces that are pinned, by region and offset.
    pinned: Mutex<BTreeSet<(Region, u64)>>,
}

impl PinnedPages {
    fn new(gpu: &Arc<Gpu>) -> Result<PinnedPages> {
        let pages = HostPages::new().map_err(|error| Error::new(error.to_string()))?;
        Ok(PinnedPages { pages, gpu: gpu.clone(), pinned: Mutex::default() })
    }

    /// The bytes before a region's first whole piece: the host's pages are aligned to less.
    fn skipped(&self, region: Region) -> u64 {
        let base = self.pages.base(region).addr();
        (base.next_multiple_of(PIECE_BYTES) - base) as u64
    }

    /// A range of a region as the host's pages have it.
    fn on_host(&self, region: Region, range: &Range<u64>) -> Range<u64> {
        let skipped = self.skipped(region);
        range.start + skipped..range.end + skipped
    }

    fn pin(&self, region: Region, range: &Range<u64>) -> Result<()> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        for offset in range.clone().step_by(PIECE_BYTES) {
            let piece = self.base(region).wrapping_add(offset as usize);
            // SAFETY: the piece has just been committed and stays so until it is unpinned.
            unsafe { self.gpu.backend.pin(piece, PIECE_BYTES) }?;
            pinned.insert((region, offset));
        }
        Ok(())
    }

    /// Unpins the pieces that are pinned and wanted, after whatever copies them is done.
    fn unpin(&self, is_wanted: impl Fn(Region, u64) -> bool) -> Result<()> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: Vec<_> =
            pinned.iter().copied().filter(|&(region, offset)| is_wanted(region, offset)).collect();
        if !wanted.is_empty() {
            self.gpu.settle_copies()?;
        }
        for (region, offset) in wanted {
            // SAFETY: the piece is pinned, and the device is done with it.
            unsafe { self.gpu.backend.unpin(self.base(region).wrapping_add(offset as usize)) }?;
            pinned.remove(&(region, offset));
        }
        Ok(())
    }

    fn unpin_range(&self, region: Region, range: &Range<u64>) -> Result<()> {
        self.unpin(|of, offset| of == region && range.contains(&offset))
    }
}

// SAFETY: the host's pages keep the promises; regions begin at their first multiple of the granule, and what follows is
// smaller by one granule at most.
unsafe impl Source for PinnedPages {
    fn granule(&self) -> u64 {
        PIECE_BYTES as u64
    }

    fn region_bytes(&self, region: Region) -> u64 {
        let bytes = self.pages.region_bytes(region).saturating_sub(PIECE_BYTES as u64);
        bytes - bytes % PIECE_BYTES as u64
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.pages.base(region).wrapping_add(self.skipped(region) as usize)
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.pages.commit(region, self.on_host(region, &range))?;
        self.pin(region, &range).map_err(|error| {
            let undone = self.decommit(region, range.clone());
            let undone = undone.err().map_or(String::new(), |e| format!("; undoing it failed, too: {e}"));
            let size = Bytes::new(range.end - range.start);
            SourceError::new(format!("{size} of the host could not be pinned: {error}{undone}"))
        })
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.unpin_range(region, &range).map_err(|error| SourceError::new(error.to_string()))?;
        self.pages.decommit(region, self.on_host(region, &range))
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // Should it fail, the device is broken, and the driver lets go of the pages when the process ends.
        let _ = self.unpin(|_, _| true);
    }
}
