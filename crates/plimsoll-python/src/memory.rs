//! The line, and who holds the bytes below it.

use plimsoll::{Bytes, Device};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::device::device_of;
use crate::edge::Scope;
use crate::errors;
use crate::report::Report;

/// The report of a device, by default the current one.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn report(py: Python<'_>, device: Option<&str>) -> PyResult<Report> {
    let device = device_of(py, device)?;
    Ok(py.detach(|| {
        let (stats, snapshot) = (device.stats(), device.snapshot());
        let holders = snapshot.holders(usize::MAX);
        Report::new(device.report().to_string(), stats.in_use, stats.committed, stats.limit, &holders)
    }))
}

/// The figures of a device's pool: bytes in use, committed and their peaks, rounding, rows by owner, and the bytes of others that
/// tensors look at, which no pool counts.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn stats<'py>(py: Python<'py>, device: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
    let device = device_of(py, device)?;
    let stats = device.stats();
    let figures = PyDict::new(py);
    for (name, value) in [
        ("in_use", stats.in_use),
        ("rounding", stats.rounding),
        ("committed", stats.committed),
        ("peak_in_use", stats.peak_in_use),
        ("peak_committed", stats.peak_committed),
        ("foreign", device.foreign_bytes().get()),
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
#[pyo3(signature = (device = None))]
fn reset_peaks(py: Python<'_>, device: Option<&str>) -> PyResult<()> {
    device_of(py, device)?.pool().reset_peaks();
    Ok(())
}

/// Sets or lifts the limit of a device.
#[pyfunction]
#[pyo3(signature = (limit, device = None))]
fn set_limit(py: Python<'_>, limit: Option<u64>, device: Option<&str>) -> PyResult<()> {
    let device = device_of(py, device)?;
    let set = py.detach(|| device.set_limit(limit.map(Bytes::new)));
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
