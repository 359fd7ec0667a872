//! Tasks and the memory they share.

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
