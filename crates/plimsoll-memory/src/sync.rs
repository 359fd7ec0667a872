//! The synchronisation that a pool uses, in one place so that loom can take it over.

#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks a mutex whose data is consistent whenever it is unlocked, so that a panic elsewhere does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the running threads of a process apart.
#[cfg(loom)]
pub(crate) type ThreadMark = loom::thread::ThreadId;

/// The mark of the thread that asks.
#[cfg(loom)]
pub(crate) fn current_thread() -> ThreadMark {
    loom::thread::current().id()
}

/// Tells the threads of a process apart; a mark is never given twice.
#[cfg(not(loom))]
pub(crate) type ThreadMark = u64;

/// The mark of the thread that asks: a thread-local number, because asking the standard library for the
/// thread's identity costs a reference count on every call.
#[cfg(not(loom))]
pub(crate) fn current_thread() -> ThreadMark {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static MARK: Cell<u64> = const { Cell::new(0) };
    }
    MARK.with(|mark| {
        if mark.get() == 0 {
            mark.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mark.get()
    })
}
