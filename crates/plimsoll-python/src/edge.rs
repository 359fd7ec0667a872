//! The edge: where Python's threads, lines and scopes become the framework's.
//!
//! Whatever runs ops goes through [`call`]. The line that labels its bytes is that of the innermost Python frame outside the
//! package, so that a function of the package counts for whoever called it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll::OpenScope;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::lines::user_line;
use crate::{current_graph, errors, exits, interrupt, warnings};

/// Runs `f` without the GIL, with its bytes labelled by the user's line, and with the thread's graph entered if it has one.
pub fn call<R: Send>(py: Python<'_>, f: impl FnOnce() -> plimsoll::Result<R> + Send) -> PyResult<R> {
    match current_graph::current() {
        None => outside_graphs(py, f),
        Some(graph) => outside_graphs(py, move || {
            let _building = graph.enter()?;
            f()
        }),
    }
}

/// As [`call`], whatever graph is there: for what reads values, and for sessions.
pub fn outside_graphs<R: Send>(
    py: Python<'_>,
    f: impl FnOnce() -> plimsoll::Result<R> + Send,
) -> PyResult<R> {
    check_not_forked()?;
    let done = match user_line(py)? {
        Some((file, line)) => exits::detached(py, || plimsoll::at_line(&file, line, f)),
        None => exits::detached(py, f),
    };
    warnings::hand_over(py)?;
    done.map_err(|error| interrupt::take().unwrap_or_else(|| errors::exception(py, &error)))
}

/// Whether something has run in this process, so that there may be threads,
static HAS_RUN: AtomicBool = AtomicBool::new(false);
/// and whether it is a copy of such a process, in which these threads are not.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Refuses to run where the threads that work was begun with are gone: it would wait for them for ever.
fn check_not_forked() -> PyResult<()> {
    if IS_FORKED.load(Ordering::Relaxed) {
        return Err(PyRuntimeError::new_err(
            "this process was forked from one that had used Plimsoll, whose threads and locks do not come along; start workers with \
             multiprocessing.get_context(\"spawn\"), or fork before the first tensor is made",
        ));
    }
    HAS_RUN.store(true, Ordering::Relaxed);
    Ok(())
}

/// Called in the child of a fork.
#[pyfunction]
fn after_fork_in_child() {
    IS_FORKED.store(HAS_RUN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// A scope that is open on some thread, by number. The scope itself stays on its thread, since Python hands objects from one
/// thread to another as it likes.
pub struct ScopeNumber(u64);

thread_local!(static OPEN: RefCell<HashMap<u64, OpenScope>> = RefCell::default());

impl ScopeNumber {
    /// Keeps a scope of this thread open until [`ScopeNumber::end`].
    pub fn keep(scope: OpenScope) -> ScopeNumber {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        OPEN.with(|open| open.borrow_mut().insert(number, scope));
        ScopeNumber(number)
    }

    /// Ends the scope; tells whether it was open on this thread.
    pub fn end(self) -> bool {
        let scope = OPEN.try_with(|open| open.borrow_mut().remove(&self.0));
        matches!(scope, Ok(Some(_)))
    }
}

/// A scope that Python holds open.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Scope(std::sync::Mutex<Option<ScopeNumber>>);

impl Scope {
    /// The scope, for Python to end.
    pub fn new(scope: OpenScope) -> Scope {
        Scope(std::sync::Mutex::new(Some(ScopeNumber::keep(scope))))
    }

    fn take(&self) -> Option<ScopeNumber> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Scope {
    /// Ends the scope; tells whether it was open on this thread.
    fn end(&self) -> bool {
        self.take().is_some_and(ScopeNumber::end)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(number) = self.take() {
            number.end();
        }
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Scope>()?;
    module.add_function(wrap_pyfunction!(after_fork_in_child, module)?)
}
