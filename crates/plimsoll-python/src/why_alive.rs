//! `tf.why_alive`: who keeps each byte alive, as a Python object, and what dropping something would free.
//!
//! The framework names tapes, variables, programs and pipelines, and counts the tensors that Python has. Whose these are is found in
//! `python/plimsoll/why_alive.py`, and handed over as names of handles.

use plimsoll::{AliveRow, HeldBy, HolderId, Tensor as Array};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::device::device_of;
use crate::function::Function;
use crate::tape::Tape;
use crate::tensor::{Tensor, Variable};

/// Why the memory of a device is alive, at the moment at which it was made. It keeps none of it alive.
#[pyclass(frozen, module = "plimsoll")]
struct WhyAlive(plimsoll::WhyAlive);

/// A tensor or a variable, looked at: a handle of its own would be counted.
enum Looked {
    Tensor(Py<Tensor>),
    Variable(Py<Variable>),
}

impl Looked {
    fn array(&self) -> &Array {
        match self {
            Looked::Tensor(tensor) => &tensor.get().0,
            Looked::Variable(variable) => &variable.get().0,
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Looked {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Looked> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Ok(Looked::Tensor(tensor.to_owned().unbind()));
        }
        match object.cast::<Variable>() {
            Ok(variable) => Ok(Looked::Variable(variable.to_owned().unbind())),
            Err(_) => {
                let name = object.get_type().name()?;
                let advice = "what can be dropped is a tensor, a variable, a tape or a tf.function";
                Err(PyTypeError::new_err(format!("{advice}, not {name}")))
            }
        }
    }
}

/// (owner, bytes, blocks, file, line, layer, op, holders, milliseconds to recompute, why it cannot be recomputed).
type Row = (
    &'static str,
    u64,
    u64,
    &'static str,
    u32,
    &'static str,
    &'static str,
    String,
    Option<f64>,
    Option<String>,
);

#[pymethods]
impl WhyAlive {
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    /// The bytes in use, which the rows add up to.
    #[getter]
    fn in_use(&self) -> u64 {
        self.0.in_use()
    }

    /// (owner, bytes, blocks, file, line, layer, op, holders, milliseconds to recompute or None, why it cannot be), the most
    /// bytes first.
    #[getter]
    fn rows(&self) -> Vec<Row> {
        let row = |row: AliveRow| -> Row {
            let AliveRow { owner, site, holders, bytes, blocks, nanoseconds, why_not } = row;
            let milliseconds = nanoseconds.map(|nanoseconds| nanoseconds as f64 / 1e6);
            (
                owner.name(),
                bytes,
                blocks,
                site.file(),
                site.line(),
                site.scope(),
                site.op(),
                holders,
                milliseconds,
                why_not,
            )
        };
        self.0.rows().into_iter().map(row).collect()
    }

    /// Everybody who keeps memory alive, by name, with the bytes that they do, alone or with others.
    #[getter]
    fn holders(&self) -> Vec<(String, u64)> {
        let row = |(by, bytes): (HeldBy, u64)| (by.name, bytes);
        self.0.holders().into_iter().map(row).collect()
    }

    /// The bytes that would be freed if all of these were dropped.
    fn _freed_by(&self, dropped: Vec<Bound<'_, PyAny>>) -> PyResult<u64> {
        let mut holders: Vec<HolderId> = Vec::new();
        for object in &dropped {
            if let Ok(tape) = object.cast::<Tape>() {
                holders.extend(self.0.tape(&tape.get().0));
            } else if let Ok(function) = object.cast::<Function>() {
                holders.extend(self.0.programs(&function.get().0));
            } else {
                let looked: Looked = object.extract()?;
                holders.extend(self.0.of(looked.array()).and_then(plimsoll::AliveBlock::handles));
                if let Looked::Variable(variable) = &looked {
                    holders.extend(self.0.variable(&variable.get().0));
                }
            }
        }
        Ok(self.0.freed_by(holders).bytes)
    }
}

/// Why the memory of a device is alive, with who has its tensors in Python.
#[pyfunction]
fn why_alive(
    py: Python<'_>,
    device: Option<&str>,
    names_of_handles: Vec<(Looked, String)>,
) -> PyResult<WhyAlive> {
    let device = device_of(py, device)?;
    let mut why = py.detach(|| device.why_alive());
    for (looked, name) in names_of_handles {
        why.name_handle(looked.array(), name);
    }
    Ok(WhyAlive(why))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WhyAlive>()?;
    module.add_function(wrap_pyfunction!(why_alive, module)?)
}
