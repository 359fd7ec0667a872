//! The end of the interpreter while other threads compute.
//!
//! Before Python 3.14 a thread that wants the GIL once the interpreter ends is ended by `pthread_exit`, which unwinds its stack: through
//! frames of Rust, and in a wheel these are linked with an unwinder of their own, which that one does not understand. So from the moment
//! at which Python says that it ends, a thread that comes back from the framework waits until the process is gone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;

/// The thread that ends the interpreter, which goes on.
static ENDING: OnceLock<ThreadId> = OnceLock::new();
/// How many threads are about to take the GIL, and have not seen that the interpreter ends.
static N_TAKING: AtomicUsize = AtomicUsize::new(0);

/// Called before the GIL is taken: counts the thread, or keeps it here for ever.
fn before_taking() {
    N_TAKING.fetch_add(1, Ordering::SeqCst);
    if ENDING.get().is_some_and(|&ending| ending != thread::current().id()) {
        N_TAKING.fetch_sub(1, Ordering::SeqCst);
        loop {
            thread::park();
        }
    }
}

/// Called when it has been taken.
fn taken() {
    N_TAKING.fetch_sub(1, Ordering::SeqCst);
}

/// Runs `f` without the GIL.
pub fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let done = py.detach(|| {
        let done = f();
        before_taking();
        done
    });
    taken();
    done
}

/// Runs `f` with the GIL, in the midst of what the framework does.
pub fn attached<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    before_taking();
    Python::attach(|py| {
        taken();
        f(py)
    })
}

/// As [`attached`]; nothing where there is no interpreter any more.
pub fn try_attached<R>(f: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    before_taking();
    let done = Python::try_attach(|py| {
        taken();
        f(py)
    });
    if done.is_none() {
        taken();
    }
    done
}

/// Called when the interpreter ends, while other threads may still take the GIL: those that are about to have it first.
#[pyfunction]
fn interpreter_ends(py: Python<'_>) {
    // A second call is of the same thread.
    _ = ENDING.set(thread::current().id());
    while N_TAKING.load(Ordering::SeqCst) > 0 {
        py.detach(thread::yield_now);
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(interpreter_ends, module)?)
}
