//! What a loop of the user's own leaves behind from step to step.

use std::sync::{Mutex, PoisonError};

use plimsoll::report::Growth;
use pyo3::prelude::*;

use crate::device::device_of;

/// Watches a device for blocks that one step after the other leaves behind. The loop marks each step.
#[pyclass(frozen, module = "plimsoll")]
struct GrowthWatch {
    device: plimsoll::Device,
    watch: Mutex<plimsoll::report::GrowthWatch>,
}

/// (owner, bytes, blocks, file, line, layer, op, bytes added at each step), the most bytes a step first.
type Row = (&'static str, u64, u64, String, u64, String, String, u64);

impl GrowthWatch {
    fn growth(&self) -> Vec<Growth> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).growth()
    }
}

#[pymethods]
impl GrowthWatch {
    #[new]
    #[pyo3(signature = (device = None))]
    fn new(py: Python<'_>, device: Option<&str>) -> PyResult<GrowthWatch> {
        Ok(GrowthWatch { device: device_of(py, device)?, watch: Mutex::default() })
    }

    /// The same moment of the next step, such as its end.
    fn mark(&self, py: Python<'_>) {
        py.detach(|| {
            self.watch.lock().unwrap_or_else(PoisonError::into_inner).mark(self.device.pool());
        });
    }

    /// What had grown over ten steps: (owner, bytes, blocks, file, line, layer, op, bytes added at each step).
    #[getter]
    fn rows(&self) -> Vec<Row> {
        let row = |Growth { owner, site, bytes, per_step, blocks, .. }: Growth| -> Row {
            (owner.name(), bytes, blocks, site.file, site.line, site.scope, site.op, per_step)
        };
        self.growth().into_iter().map(row).collect()
    }

    fn __str__(&self) -> String {
        let growth: Vec<String> = self.growth().iter().map(ToString::to_string).collect();
        match growth.is_empty() {
            true => "nothing grows from step to step".to_owned(),
            false => format!("grows from step to step:\n  {}", growth.join("\n  ")),
        }
    }

    fn __repr__(&self) -> String {
        self.__str__()
    }
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GrowthWatch>()
}
