//! Tasks and the memory they share.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_cpu::threads;

/// Runs tasks on this thread, or on all.
pub(crate) fn each(serial: bool, n_tasks: usize, task: impl Fn(usize) + Sync) {
    if serial { (0..n_tasks).for_each(task) } else { threads::parallel(n_tasks, task) }
}

/// An address that may be used from several threads at once.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub *mut T);

// SAFETY: each use says which piece it takes; pieces taken at the same time are disjoint.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address.
    pub fn get(&self) -> *mut T {
        self.0
    }
}

/// Numbered pieces of scratch memory, fewer than there are tasks; a task holds one while it runs.
///
/// Which piece a task gets does not matter to its result, so there need only be as many as threads that are to run
/// at once, and their number need not depend on that of the threads: who finds none free waits for one.
pub(crate) struct Slots {
    /// One bit per slot, set while it is free.
    free: AtomicU64,
}

/// The most slots.
pub(crate) const MAX_SLOTS: usize = 32;

/// A slot, given back when dropped.
pub(crate) struct Slot<'a> {
    slots: &'a Slots,
    /// Its number.
    pub idx: usize,
}

impl Slots {
    /// So many free slots, at most [`MAX_SLOTS`].
    pub fn new(n_slots: usize) -> Self {
        Self { free: AtomicU64::new((1 << n_slots) - 1) }
    }

    /// Waits for a free slot; the lowest is taken, because it is the likeliest to be in a cache.
    pub fn claim(&self) -> Slot<'_> {
        loop {
            let free = self.free.load(Ordering::Relaxed);
            if free == 0 {
                std::thread::yield_now();
                continue;
            }
            let idx = free.trailing_zeros() as usize;
            if self.free.fetch_and(!(1 << idx), Ordering::Acquire) & (1 << idx) != 0 {
                return Slot { slots: self, idx };
            }
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.free.fetch_or(1 << self.idx, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn no_two_tasks_hold_the_same_slot() {
        const N_SLOTS: usize = 3;
        let slots = Slots::new(N_SLOTS);
        let taken: [AtomicBool; N_SLOTS] = Default::default();
        threads::with_threads(7, || {
            threads::parallel(1000, |_| {
                let slot = slots.claim();
                assert!(!taken[slot.idx].swap(true, Ordering::Relaxed), "slot {} is taken", slot.idx);
                std::thread::yield_now();
                taken[slot.idx].store(false, Ordering::Relaxed);
            });
        });
        assert_eq!(slots.free.into_inner(), 0b111, "all slots are given back");
    }
}
