//! Waiting that ends when somebody wants the program to stop.
//!
//! A loop waits for batches that other threads make, and what they read or call may never answer: a disk of another
//! machine, a function of the user's. A program that listens for signals says so here, and the wait ends with an error.

use std::sync::{Condvar, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long a wait takes at most to notice that it is to end.
const NOTICED_AFTER: Duration = Duration::from_millis(100);

static ASKED: OnceLock<fn() -> bool> = OnceLock::new();

/// Lets loops of this process stop to wait for batches when `asked` says so: the iterator then gives an error of the kind
/// [`Interrupted`](plimsoll_tensor::ErrorKind::Interrupted), and leaves threads that do not answer behind. The first
/// call counts.
pub fn stop_waiting_when(asked: fn() -> bool) {
    let _ = ASKED.set(asked);
}

/// Whether waits are to end: what [`stop_waiting_when`] was given says so now. Whoever works for long without waiting may ask, too.
pub fn is_asked_to_stop() -> bool {
    ASKED.get().is_some_and(|asked| asked())
}

/// Waits until something happens, or for a moment where somebody may ask to stop.
pub(super) fn wait<'a, T>(changed: &Condvar, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    match ASKED.get() {
        Some(_) => changed.wait_timeout(state, NOTICED_AFTER).unwrap_or_else(PoisonError::into_inner).0,
        None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
    }
}
