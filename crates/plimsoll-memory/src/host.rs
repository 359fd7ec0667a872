//! Pages of the host: `mmap` once, `madvise` from then on.
//!
//! Each region is one private anonymous mapping without reserved swap, aligned to the granule so that the
//! kernel can back a granule by one huge page. Committing populates the pages at once where the kernel can
//! (Linux 5.14): lack of memory is then an error here and not a signal later. Elsewhere pages come at the
//! first touch.
//!
//! Addresses are limited where somebody says `ulimit -v`. Then a share of what there is must do, and as much is left for
//! stacks, code and the heap.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Bytes, GRANULE, Region, Source, SourceError};

/// The addresses that are left for stacks and the heap, at least: a training run's threads and records take a part of it.
const LEFT_FOR_THE_REST: u64 = 48 << 20;

/// Anonymous memory of the operating system.
#[derive(Debug)]
pub struct HostPages {
    regions: [Mapping; 3],
    /// Cleared for good when the kernel turns out not to know `MADV_POPULATE_WRITE`.
    populates: AtomicBool,
}

impl HostPages {
    /// Addresses fit for this machine: as much as its memory for parameters and for data, twice that for
    /// steps, where holes may have to be left behind. Where the system grants less, as much as leaves the rest of the
    /// process at least the same, and 48 MiB.
    ///
    /// # Errors
    ///
    /// When the operating system does not even grant addresses for a few granules and the rest of the process.
    pub fn new() -> Result<Self, SourceError> {
        let of_memory = |memory: u64| Self::with_region_bytes([memory, memory.saturating_mul(2), memory]);
        let memory = machine_memory();
        let refused = match of_memory(memory) {
            Ok(pages) => return Ok(pages),
            Err(refused) => refused,
        };
        share_one_heap();
        let shares = std::iter::successors(Some(memory / 2), |share| Some(share / 2));
        let mut shares = shares.take_while(|&share| share >= GRANULE);
        // A heap that finds no addresses ends the process, so as much again must be left.
        let leaves_enough = |share: u64| -> Result<(), SourceError> {
            let _pages = of_memory(share)?;
            Mapping::reserve((4 * share).max(LEFT_FOR_THE_REST)).map(drop)
        };
        match shares.find(|&share| leaves_enough(share).is_ok()) {
            Some(share) => of_memory(share),
            None => Err(refused),
        }
    }

    /// No addresses at all, for a process that is granted none: whatever is asked for is an error that says so.
    pub fn none() -> Self {
        let none =
            || Mapping { whole: NonNull::dangling(), whole_bytes: 0, base: NonNull::dangling(), bytes: 0 };
        Self { regions: [none(), none(), none()], populates: AtomicBool::new(true) }
    }

    /// Addresses of these sizes for the regions in the order of [`Region::ALL`], rounded up to whole granules.
    ///
    /// # Errors
    ///
    /// When the operating system does not grant the addresses.
    pub fn with_region_bytes(region_bytes: [u64; 3]) -> Result<Self, SourceError> {
        let [persistent, step, data] = region_bytes.map(Mapping::reserve);
        Ok(Self { regions: [persistent?, step?, data?], populates: AtomicBool::new(true) })
    }

    /// Applies `advice` to a range of a region, again if the kernel was interrupted.
    fn advise(&self, region: Region, range: &Range<u64>, advice: libc::c_int) -> io::Result<()> {
        let mapping = &self.regions[region as usize];
        assert!(range.start <= range.end && range.end <= mapping.bytes, "range outside the region");
        let n_bytes = (range.end - range.start) as usize;
        loop {
            // SAFETY: the range was checked to lie inside the mapping, which lives as long as `self`; its bytes
            // are handed out only by the pool, which commits and decommits only granules without live blocks.
            let status = unsafe {
                let start = mapping.base.as_ptr().add(range.start as usize);
                libc::madvise(start.cast(), n_bytes, advice)
            };
            if status == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return Err(error);
            }
        }
    }
}

/// Lets all threads allocate from one heap: glibc reserves 64 MiB of addresses for each thread that has one of its own, and a
/// process that has few would end when the next allocation finds none.
fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it sets a number of the allocator; any value is allowed, at any time.
        let _is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

// SAFETY: each region is a mapping of its own, readable and writable, granule-aligned, at a fixed address until
// `self` is dropped; committing and decommitting change only which pages are resident.
unsafe impl Source for HostPages {
    fn region_bytes(&self, region: Region) -> u64 {
        self.regions[region as usize].bytes
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.regions[region as usize].base.as_ptr()
    }

    fn commit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        if !self.populates.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.advise(region, &range, libc::MADV_POPULATE_WRITE) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
                self.populates.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // What was populated before the failure must not stay resident behind the pool's back.
                let undone = self.advise(region, &range, libc::MADV_DONTNEED);
                let size = Bytes::new(range.end - range.start);
                let undone = undone.err().map_or(String::new(), |e| format!("; undoing it failed, too: {e}"));
                Err(SourceError::new(format!(
                    "the operating system did not give {size} of memory: {error}{undone}"
                )))
            }
        }
    }

    fn decommit(&self, region: Region, range: Range<u64>) -> Result<(), SourceError> {
        self.advise(region, &range, libc::MADV_DONTNEED).map_err(|error| {
            let size = Bytes::new(range.end - range.start);
            SourceError::new(format!("the operating system did not take {size} back: {error}"))
        })
    }
}

/// One reserved mapping, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    /// What `mmap` returned and its length, for `munmap`.
    whole: NonNull<u8>,
    whole_bytes: usize,
    /// The part that starts at a multiple of the granule.
    base: NonNull<u8>,
    bytes: u64,
}

impl Mapping {
    fn reserve(n_bytes: u64) -> Result<Self, SourceError> {
        let refused = |why: String| {
            SourceError::new(format!("cannot reserve {} of addresses: {why}", Bytes::new(n_bytes)))
        };
        let bytes = n_bytes.max(1).checked_next_multiple_of(GRANULE);
        let sizes = bytes.and_then(|b| Some((b, usize::try_from(b.checked_add(GRANULE)?).ok()?)));
        let (bytes, whole_bytes) =
            sizes.ok_or_else(|| refused("more than this machine can address".to_owned()))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), whole_bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(refused(format!("{error} (a limit on address space, or strict overcommit?)")));
        }
        let whole = NonNull::new(address.cast::<u8>()).ok_or_else(|| refused("address zero".to_owned()))?;
        let padding = whole.as_ptr().align_offset(GRANULE as usize);
        // SAFETY: the mapping is one granule longer than `bytes`, and the padding is less than a granule.
        let base = unsafe { whole.add(padding) };
        // SAFETY: `base .. base + bytes` lies inside the new mapping. The advice is a hint: where the kernel has
        // no huge pages it fails and nothing is lost, so its result does not matter.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes as usize, libc::MADV_HUGEPAGE) };
        Ok(Self { whole, whole_bytes, base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole_bytes == 0 {
            return;
        }
        // SAFETY: exactly what `mmap` returned; blocks hold the pool and so the source, so none is left.
        unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
    }
}

// SAFETY: a mapping is addresses and sizes that do not change; `madvise` may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The machine's memory in bytes, or 16 GiB where the system does not say.
fn machine_memory() -> u64 {
    // SAFETY: `sysconf` only reads the given name.
    let (n_pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(n_pages), u64::try_from(page)) {
        (Ok(n_pages), Ok(page)) if n_pages > 0 && page > 0 => n_pages.saturating_mul(page),
        _ => 16 << 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_apart_and_writable_where_committed() {
        let pages = HostPages::with_region_bytes([1, GRANULE + 1, 3 * GRANULE]).unwrap();
        let sizes = Region::ALL.map(|region| pages.region_bytes(region));
        assert_eq!(sizes, [GRANULE, 2 * GRANULE, 3 * GRANULE]);
        for region in Region::ALL {
            let base = pages.base(region);
            assert!(base.addr().is_multiple_of(GRANULE as usize));
            pages.commit(region, 0..GRANULE).unwrap();
            // SAFETY: the first granule of the region is committed and nobody else uses it.
            unsafe {
                base.write_bytes(7, GRANULE as usize);
                assert_eq!(base.add(GRANULE as usize - 1).read(), 7);
            }
            pages.decommit(region, 0..GRANULE).unwrap();
            pages.commit(region, 0..GRANULE).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { base.read() }, 0, "the pages were given back");
        }
    }
}
