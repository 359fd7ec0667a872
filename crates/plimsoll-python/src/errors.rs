//! Errors as exceptions: each kind is a class of `plimsoll.errors`, with TensorFlow's name where it has one.
//!
//! The classes are Python's own, because some of them are also `ValueError`, `MemoryError` or `RuntimeError`.

use plimsoll::memory::Holder;
use plimsoll::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::report::Report;

/// The exception for an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    from_python(py, error).unwrap_or_else(|| make(py, error).unwrap_or_else(|failed| failed))
}

/// What Python raised, as an error of the framework on its way through it.
pub fn raised(error: PyErr) -> Error {
    Error::within("Python", error)
}

/// The exception that an error is about, if it came from Python.
fn from_python(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let ErrorKind::Within { source, .. } = error.kind() else { return None };
    match source.downcast_ref::<PyErr>() {
        Some(raised) => Some(raised.clone_ref(py)),
        None => from_python(py, source.downcast_ref()?),
    }
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let errors = py.import("plimsoll.errors")?;
    let class = errors.getattr(class_name(error.kind()))?;
    let text = error.to_string();
    let made = match error.kind() {
        ErrorKind::OutOfMemory(full) => {
            let holders: &[Holder] = &full.holders;
            class
                .call1((text.clone(), Report::new(text, full.in_use, full.committed, full.limit, holders)))?
        }
        _ => class.call1((text,))?,
    };
    Ok(PyErr::from_value(made))
}

fn class_name(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Shape { .. }
        | ErrorKind::DType { .. }
        | ErrorKind::Device { .. }
        | ErrorKind::Argument { .. } => "InvalidArgumentError",
        ErrorKind::OutOfMemory(_) | ErrorKind::Limit { .. } => "ResourceExhaustedError",
        ErrorKind::NotDifferentiable { .. } => "NotDifferentiableError",
        ErrorKind::Tape { .. } => "TapeError",
        ErrorKind::Ghost { .. } | ErrorKind::ReadsValue { .. } => "FailedPreconditionError",
        ErrorKind::Interrupted { .. } => "CancelledError",
        ErrorKind::Io { .. } => "UnavailableError",
        ErrorKind::Format { .. } => "DataLossError",
        _ => "UnknownError",
    }
}
