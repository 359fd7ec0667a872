//! Blocks between fences, for tests that look for memory errors.
//!
//! A pool keeps its blocks side by side and uses their memory again at once, so whoever reads beyond the end of one, or
//! after its end, finds somebody else's numbers. A fenced pool counts as any other does, but each of its blocks lies in a
//! mapping of its own, between two pages that nobody may touch, and ends where the second of them begins. What was
//! released stays out of reach until many others have been released, too. So a wrong address ends the program by a signal,
//! in the op that made it.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::{GRANULE, HostPages, Label, Owner, Pool, Region, Source, SourceError};

/// Bytes of a page, or a multiple of them on every system that the host's pages support.
const PAGE: usize = 64 << 10;

/// Released mappings that are still kept from being used again.
const N_QUARANTINED: usize = 256;

/// What unwritten memory holds: no truth value, not a number in every float dtype, and an index that is out of range.
const POISON: u8 = 0xFF;

/// The bytes at each end of a block that are poisoned.
const POISONED: usize = 64 << 10;

impl Pool {
    /// A pool of the host's memory, in granules of 64 KiB, with a fence at the end of every block.
    ///
    /// # Errors
    ///
    /// When the operating system does not grant the addresses.
    pub fn fenced() -> Result<Pool, SourceError> {
        Ok(Pool::new(CountedPages(HostPages::new()?)).with_fences())
    }
}

/// Pages that are counted by a fenced pool and used by none: they come at the first touch, and nobody touches them.
#[derive(Debug)]
struct CountedPages(HostPages);

// SAFETY: the regions are mappings of the host's pages, readable and writable without being populated; 64 KiB divides their
// granule.
unsafe impl Source for CountedPages {
    fn granule(&self) -> u64 {
        GRANULE / 32
    }

    fn region_bytes(&self, region: Region) -> u64 {
        self.0.region_bytes(region)
    }

    fn base(&self, region: Region) -> *mut u8 {
        self.0.base(region)
    }

    fn commit(&self, _: Region, _: Range<u64>) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _: Region, _: Range<u64>) -> Result<(), SourceError> {
        Ok(())
    }
}

/// A mapping with room for one block between two pages out of reach.
#[derive(Debug)]
pub(crate) struct Fenced {
    whole: NonNull<u8>,
    whole_bytes: usize,
    first: NonNull<u8>,
}

// SAFETY: a mapping is addresses and sizes; it is unmapped by its one owner.
unsafe impl Send for Fenced {}
// SAFETY: as above.
unsafe impl Sync for Fenced {}

/// Mappings that were released last, the oldest first.
static QUARANTINE: Mutex<VecDeque<Fenced>> = Mutex::new(VecDeque::new());

impl Fenced {
    /// Room for `bytes`, the last of which is the last before the fence. Scratch memory is aligned to 64 bytes as kernels
    /// ask for it, and data, in which elements of several types lie, to 8; other blocks as the elements are that can fill them.
    pub(crate) fn new(bytes: usize, label: Label) -> Result<Fenced, SourceError> {
        let align = match label.owner {
            Owner::Workspace => 64,
            Owner::Data => 8,
            _ => 1 << bytes.trailing_zeros().min(3),
        };
        let refused = || {
            let error = std::io::Error::last_os_error();
            SourceError::new(format!("the operating system did not give {bytes} B between fences: {error}"))
        };
        let inside = bytes.checked_next_multiple_of(align).and_then(|n| n.checked_next_multiple_of(PAGE));
        let whole_bytes = inside.and_then(|inside| inside.checked_add(2 * PAGE)).ok_or_else(refused)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), whole_bytes, libc::PROT_NONE, flags, -1, 0) };
        let whole =
            NonNull::new(address.cast::<u8>()).filter(|_| address != libc::MAP_FAILED).ok_or_else(refused)?;
        let used = bytes.next_multiple_of(align);
        // SAFETY: the first byte lies within the mapping: its end, less a page, less what is used.
        let first = unsafe { whole.add(whole_bytes - PAGE - used) };
        let fenced = Fenced { whole, whole_bytes, first };
        let reach = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the pages between the fences lie within the new mapping, which nobody else knows.
        let status =
            unsafe { libc::mprotect(whole.add(PAGE).as_ptr().cast(), whole_bytes - 2 * PAGE, reach) };
        if status != 0 {
            return Err(refused());
        }
        // SAFETY: these bytes of the block are readable and writable since the line above.
        unsafe {
            first.as_ptr().write_bytes(POISON, bytes.min(POISONED));
            let tail = bytes.saturating_sub(POISONED);
            first.as_ptr().add(tail).write_bytes(POISON, bytes - tail);
        }
        Ok(fenced)
    }

    /// The address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Puts the mapping out of reach, and unmaps the one that has been so for longest.
    pub(crate) fn quarantine(self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: exactly what `new` mapped is replaced, by pages that nobody may touch; the block has no holder left.
        let _ = unsafe {
            libc::mmap(self.whole.as_ptr().cast(), self.whole_bytes, libc::PROT_NONE, flags, -1, 0)
        };
        let mut quarantine = QUARANTINE.lock().unwrap_or_else(PoisonError::into_inner);
        quarantine.push_back(self);
        if quarantine.len() > N_QUARANTINED {
            quarantine.pop_front();
        }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped. There is nothing to be done about a failure.
        let _ = unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Site;

    /// Whether a page is there to be read, asked of the system without touching it.
    fn is_readable(address: *const u8) -> bool {
        let mut byte = 0u8;
        let page = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: 1 };
        let to = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: the call copies one byte to `byte`, or fails where there is none to be read.
        unsafe { libc::process_vm_readv(std::process::id() as i32, &to, 1, &page, 1, 0) == 1 }
    }

    #[test]
    fn a_block_ends_at_a_fence_and_is_out_of_reach_when_it_is_released() {
        let pool = Pool::fenced().unwrap();
        for (bytes, owner) in
            [(0, Owner::Data), (1, Owner::Temporary), (12, Owner::Saved), (1 << 20, Owner::Workspace)]
        {
            let block = pool.acquire(bytes, Label::new(owner, Site::UNKNOWN)).unwrap();
            let (first, end) = (block.as_ptr(), block.as_ptr().wrapping_add(bytes));
            assert!(!is_readable(end) && end.addr().is_multiple_of(4096), "{bytes}");
            assert_eq!(is_readable(first), bytes > 0);
            // SAFETY: the block has so many bytes.
            let held = unsafe { std::slice::from_raw_parts(first, bytes) };
            assert!(held.iter().take(POISONED).all(|&byte| byte == POISON));
            assert_eq!(pool.stats().in_use, block.rounded() as u64);
            drop(block);
            assert!(!is_readable(first), "{bytes}");
        }
        pool.verify().unwrap();
    }

    #[test]
    fn elements_of_every_type_can_lie_in_a_block_of_data() {
        let pool = Pool::fenced().unwrap();
        for bytes in [1, 9, 12, 1001] {
            let block = pool.acquire(bytes, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
            assert!(block.as_ptr().addr().is_multiple_of(8), "{bytes}");
            assert!(!is_readable(block.as_ptr().wrapping_add(bytes.next_multiple_of(8))), "{bytes}");
        }
    }
}
