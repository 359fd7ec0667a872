//! Exceptions on their way through the framework: raised by Python that a run calls, told to it as an error, and raised again
//! when the run has ended.

use std::cell::RefCell;

use plimsoll::Error;
use pyo3::prelude::*;

use crate::edge;

thread_local!(static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) });

/// The error that ends a run because Python raised something.
pub fn error(py: Python<'_>, raised: PyErr) -> Error {
    let text = raised.value(py).to_string();
    RAISED.set(Some(raised));
    Error::argument("python", text)
}

/// As [`edge::call`]; what Python raised inside comes out as it was raised.
pub fn call<R: Send>(py: Python<'_>, f: impl FnOnce() -> plimsoll::Result<R> + Send) -> PyResult<R> {
    RAISED.set(None);
    let done = edge::call(py, f);
    // Also where the run went on without it: an exception holds frames, and their tensors.
    let raised = RAISED.take();
    done.map_err(|told| raised.unwrap_or(told))
}
