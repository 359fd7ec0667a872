//! The gradient tape. Recording begins and ends with [`Scope`]s, which Python holds.

use plimsoll::{GradientTape, SavedValue, Unconnected};
use pyo3::prelude::*;

use crate::edge::{Scope, call};
use crate::tensor::{Tensor, Value, Variable};

/// A gradient tape.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Tape(pub GradientTape);

/// What a tape saves for backward.
#[pyclass(frozen, get_all, module = "plimsoll")]
struct Saved {
    /// The values as a table, for people.
    text: String,
    /// All bytes that the tape keeps alive or shares.
    bytes: usize,
    /// The bytes that tapes alone hold.
    own_bytes: usize,
    /// (op, form, bytes, whether the tape alone holds them, file, line), in the order in which they were saved.
    values: Vec<SavedRow>,
}

type SavedRow = (&'static str, &'static str, usize, bool, &'static str, u32);

#[pymethods]
impl Saved {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> &str {
        &self.text
    }
}

#[pymethods]
impl Tape {
    #[new]
    fn new(persistent: bool, watch_accessed_variables: bool) -> Tape {
        let tape = GradientTape::new().persistent(persistent);
        Tape(tape.watch_accessed_variables(watch_accessed_variables))
    }

    /// Records until the scope ends.
    fn start(&self) -> Scope {
        Scope::new(self.0.start())
    }

    /// Stops recording until the scope ends.
    fn pause(&self) -> Scope {
        Scope::new(self.0.pause())
    }

    /// Watches a tensor or variable.
    fn watch(&self, py: Python<'_>, source: Value) -> PyResult<()> {
        call(py, || self.0.watch(&source))
    }

    /// Forgets everything.
    fn reset(&self, py: Python<'_>) {
        py.detach(|| self.0.reset());
    }

    /// The variables that the tape watches.
    fn watched_variables(&self) -> Vec<Variable> {
        self.0.watched_variables().into_iter().map(Variable).collect()
    }

    /// What the tape saves.
    fn saved(&self, py: Python<'_>) -> Saved {
        py.detach(|| {
            let saved = self.0.saved();
            let row = |value: &SavedValue| -> SavedRow {
                let site = value.site;
                (value.op, value.form.name(), value.bytes, value.own, site.file(), site.line())
            };
            let values = saved.values().iter().map(row).collect();
            Saved { text: saved.to_string(), bytes: saved.bytes(), own_bytes: saved.own_bytes(), values }
        })
    }

    /// The gradients of the sum of the targets with respect to each source; none where there is no connection.
    fn gradient(
        &self,
        py: Python<'_>,
        targets: Vec<Value>,
        sources: Vec<Value>,
        output_gradients: Option<Vec<Value>>,
        zeros: bool,
    ) -> PyResult<Vec<Option<Tensor>>> {
        let unconnected = if zeros { Unconnected::Zeros } else { Unconnected::None };
        let gradients = call(py, move || {
            let seeds: Option<Vec<_>> = output_gradients.as_ref().map(|values| tensors(values));
            self.0.gradients(&tensors(&targets), seeds.as_deref(), &tensors(&sources), unconnected)
        })?;
        Ok(gradients.into_iter().map(|gradient| gradient.map(Tensor)).collect())
    }

    /// The derivatives of every element of the target by every element of each source; none where there is no connection.
    fn jacobians(&self, py: Python<'_>, target: Value, sources: Vec<Value>) -> PyResult<Vec<Option<Tensor>>> {
        let jacobians = call(py, || self.0.jacobians(&target, &tensors(&sources)))?;
        Ok(jacobians.into_iter().map(|jacobian| jacobian.map(Tensor)).collect())
    }

    /// The same for each example of a batch by itself.
    fn batch_jacobian(&self, py: Python<'_>, target: Value, source: Value) -> PyResult<Option<Tensor>> {
        Ok(call(py, || self.0.batch_jacobian_or_none(&target, &source))?.map(Tensor))
    }
}

fn tensors(values: &[Value]) -> Vec<&plimsoll::Tensor> {
    values.iter().map(|value| &**value).collect()
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tape>()?;
    module.add_class::<Saved>()
}
