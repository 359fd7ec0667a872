//! The line, and who holds the bytes below it.

use plimsoll::{Bytes, Device};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::edge::Scope;
use crate::errors;
use crate::report::Report;

/// The report of the current device.
#[pyfunction]
fn report(py: Python<'_>) -> Report {
    py.detach(|| {
        let device = Device::current();
        let (stats, snapshot) = (device.stats(), device.snapshot());
        let holders = snapshot.holders(usize::MAX);
        Report::new(device.report().to_string(), stats.in_use, stats.committed, stats.limit, &holders)
    })
}

/// The figures of the current device's pool: bytes in use, committed and their peaks, rounding, and rows by owner.
#[pyfunction]
fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = Device::current().stats();
    let figures = PyDict::new(py);
    for (name, value) in [
        ("in_use", stats.in_use),
        ("rounding", stats.rounding),
        ("committed", stats.committed),
        ("peak_in_use", stats.peak_in_use),
        ("peak_committed", stats.peak_committed),
    ] {
        figures.set_item(name, value)?;
    }
    figures.set_item("limit", stats.limit)?;
    for (name, rows) in [("rows", stats.rows()), ("peak_rows", stats.peak_rows)] {
        let by_owner = PyDict::new(py);
        for (owner, bytes) in rows.iter() {
            by_owner.set_item(owner, bytes)?;
        }
        figures.set_item(name, by_owner)?;
    }
    Ok(figures)
}

/// Begins new peaks.
#[pyfunction]
fn reset_peaks() {
    Device::current().pool().reset_peaks();
}

/// Sets or lifts the limit of the current device.
#[pyfunction]
fn set_limit(py: Python<'_>, limit: Option<u64>) -> PyResult<()> {
    let set = py.detach(|| Device::current().set_limit(limit.map(Bytes::new)));
    set.map_err(|error| errors::exception(py, &error))
}

/// The number of bytes that a text such as `64MiB` names.
#[pyfunction]
fn parse_bytes(text: &str) -> PyResult<u64> {
    let parsed = text.parse::<Bytes>();
    parsed.map(Bytes::get).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Lets what is made from here on belong to the input data, until the scope ends.
#[pyfunction]
fn as_data() -> Scope {
    Scope::new(plimsoll::enter_owner(plimsoll::Owner::Data))
}

/// Gives free pages back to the system; returns how many bytes that was.
#[pyfunction]
fn trim(py: Python<'_>) -> u64 {
    py.detach(|| Device::current().trim().get())
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Report>()?;
    module.add_function(wrap_pyfunction!(report, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(reset_peaks, module)?)?;
    module.add_function(wrap_pyfunction!(set_limit, module)?)?;
    module.add_function(wrap_pyfunction!(parse_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(as_data, module)?)?;
    module.add_function(wrap_pyfunction!(trim, module)?)
}
