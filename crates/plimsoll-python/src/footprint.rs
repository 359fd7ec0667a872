//! What a function will need, as a Python object.

use plimsoll::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The memory that a call will take, known before it runs.
#[pyclass(frozen, get_all, module = "plimsoll")]
pub struct Footprint {
    /// The most bytes in use at a time, with everything retained.
    peak: u64,
    /// The most bytes committed at a time.
    committed: u64,
    /// The least limit under which it can be called, with values recomputed or offloaded; none if nobody can tell.
    least_limit: Option<u64>,
    owners: Vec<(&'static str, u64)>,
}

impl Footprint {
    /// The footprint, with the least limit.
    pub fn new(footprint: &plimsoll::Footprint, least_limit: Option<u64>) -> Footprint {
        let (peak, committed) = (footprint.peak, footprint.committed);
        Footprint { peak, committed, least_limit, owners: footprint.owners.iter().collect() }
    }
}

#[pymethods]
impl Footprint {
    /// Who owns the bytes in use at the peak; the rows add up to it.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let rows = PyDict::new(py);
        self.owners.iter().try_for_each(|(owner, bytes)| rows.set_item(owner, bytes))?;
        Ok(rows)
    }

    fn __str__(&self) -> String {
        let line = |name: &str, bytes: u64| format!("{name:<12}{:>12}\n", Bytes::new(bytes).to_string());
        let mut text = line("peak", self.peak) + &line("committed", self.committed);
        if let Some(least) = self.least_limit {
            text += &line("least limit", least);
        }
        for &(owner, bytes) in self.owners.iter().filter(|(_, bytes)| *bytes > 0) {
            text += &line(&format!("  {owner}"), bytes);
        }
        text.trim_end().to_owned()
    }

    fn __repr__(&self) -> String {
        self.__str__()
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Footprint>()
}
