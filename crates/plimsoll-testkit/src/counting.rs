//! An allocator that counts, for programs that show that nothing of tensor size lives on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator with counters. A test program makes it its own with `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
    largest: AtomicUsize,
    n_allocations: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator that has counted nothing yet.
    #[expect(clippy::new_without_default, reason = "it is made once, in a static")]
    pub const fn new() -> CountingAllocator {
        CountingAllocator {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            largest: AtomicUsize::new(0),
            n_allocations: AtomicUsize::new(0),
        }
    }

    /// The bytes that are allocated now.
    pub fn live_bytes(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// The most that was allocated at a time since the last [`forget_peak`](CountingAllocator::forget_peak).
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// Begins to look for the peak anew.
    pub fn forget_peak(&self) {
        self.peak.store(self.live_bytes(), Ordering::SeqCst);
    }

    /// The largest single allocation since the last [`forget_largest`](CountingAllocator::forget_largest), in bytes.
    pub fn largest_allocation(&self) -> usize {
        self.largest.load(Ordering::SeqCst)
    }

    /// The number of allocations so far, growing ones included.
    pub fn n_allocations(&self) -> usize {
        self.n_allocations.load(Ordering::SeqCst)
    }

    /// Begins to look for the largest allocation anew.
    pub fn forget_largest(&self) {
        self.largest.store(0, Ordering::SeqCst);
    }

    fn count(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(live, Ordering::SeqCst);
        self.largest.fetch_max(bytes, Ordering::SeqCst);
        self.n_allocations.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator, whose promise this is; counting allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as in `alloc`; the block came from there.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.live.fetch_sub(layout.size(), Ordering::SeqCst);
        self.count(new_size);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        let allocator = CountingAllocator::new();
        let layout = Layout::from_size_align(1000, 8).expect("a small block");
        // SAFETY: the layout is not empty.
        let ptr = unsafe { allocator.alloc(layout) };
        // SAFETY: the block came from this allocator with this layout.
        let ptr = unsafe { allocator.realloc(ptr, layout, 3000) };
        assert_eq!((allocator.live_bytes(), allocator.largest_allocation()), (3000, 3000));
        let layout = Layout::from_size_align(3000, 8).expect("a small block");
        // SAFETY: the block came from this allocator and now has this layout.
        unsafe { allocator.dealloc(ptr, layout) };
        assert_eq!((allocator.live_bytes(), allocator.n_allocations()), (0, 2));
        assert_eq!(allocator.peak_bytes(), 3000);
        allocator.forget_peak();
        assert_eq!(allocator.peak_bytes(), 0);
        allocator.forget_largest();
        assert_eq!(allocator.largest_allocation(), 0);
    }
}
