//! Profiles of memory: what a piece of a program took and gave back, in a file, explained and as a page.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use plimsoll::Device;
use plimsoll::report::{Explanation, Page, Profile};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// A recording that goes on until it is finished or dropped.
#[pyclass(frozen, module = "plimsoll._core")]
struct Profiler(Mutex<Option<plimsoll::report::Profiler>>);

fn failed(path: &Path, error: &std::io::Error) -> PyErr {
    PyOSError::new_err(format!("{}: {error}", path.display()))
}

#[pymethods]
impl Profiler {
    /// Begins to record the current device's pool.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Profiler> {
        let device = Device::current();
        let started =
            py.detach(|| plimsoll::report::Profiler::start(device.pool(), &path, &Default::default()));
        Ok(Profiler(Mutex::new(Some(started.map_err(|error| failed(&path, &error))?))))
    }

    /// Ends the recording.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let profiler = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let finished = py.detach(|| profiler.map_or(Ok(()), plimsoll::report::Profiler::finish));
        finished.map_err(|error| PyOSError::new_err(error.to_string()))
    }
}

/// What is worth knowing of a profile, in words.
#[pyfunction]
fn explain_profile(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let explained = py.detach(|| Explanation::of(&Profile::read(&path)?));
    explained.map(|explanation| explanation.to_string()).map_err(|error| failed(&path, &error))
}

/// Writes a profile as one HTML file.
#[pyfunction]
fn write_page(py: Python<'_>, path: PathBuf, page: PathBuf) -> PyResult<()> {
    let written = py.detach(|| Page::of(&Profile::read(&path)?)?.write(&page));
    written.map_err(|error| failed(&page, &error))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Profiler>()?;
    module.add_function(wrap_pyfunction!(explain_profile, module)?)?;
    module.add_function(wrap_pyfunction!(write_page, module)?)
}
