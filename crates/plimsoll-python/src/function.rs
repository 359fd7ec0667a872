//! `tf.function`: the programs of a function by signature.
//!
//! The function itself is Python's. It is lent for a call: it travels with the arguments, is called where they are recorded, and
//! is gone when the call returns; so nothing that stays here keeps a Python object alive. What distinguishes the arguments of
//! two calls besides their tensors is a text that Python writes, and how results are arranged is a number that it gives.

use std::sync::Arc;

use plimsoll::{Recording, Result, Structure, Tensor as Array};
use pyo3::prelude::*;

use crate::edge::call;
use crate::footprint::Footprint;
use crate::tensor::{Tensor, Value, Variable, dtype_of};
use crate::{current_graph, errors, exits};

/// The programs of a function that Python owns.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Function(pub plimsoll::Function<Lent, Returned, fn(Lent) -> Result<Returned>>);

/// The arguments of a call, with the function that is lent for it: from a list of tensors to a list of tensors and the number of
/// their arrangement.
pub struct Lent {
    body: Arc<Py<PyAny>>,
    /// What the arguments are besides their tensors.
    arrangement: Arc<str>,
    tensors: Vec<Array>,
}

/// What the function returned.
pub struct Returned {
    tensors: Vec<Array>,
    /// The number of their arrangement.
    arrangement: usize,
}

impl Structure for Lent {
    fn flatten(&self, into: &mut Vec<Array>) {
        self.tensors.flatten(into);
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Array>) -> Result<Lent> {
        let (body, arrangement) = (self.body.clone(), self.arrangement.clone());
        Ok(Lent { body, arrangement, tensors: self.tensors.rebuild(from)? })
    }

    fn arrangement(&self, into: &mut String) {
        into.push_str(&self.arrangement);
    }
}

impl Structure for Returned {
    fn flatten(&self, into: &mut Vec<Array>) {
        self.tensors.flatten(into);
    }

    fn rebuild(&self, from: &mut dyn Iterator<Item = Array>) -> Result<Returned> {
        Ok(Returned { tensors: self.tensors.rebuild(from)?, arrangement: self.arrangement })
    }

    fn arrangement(&self, _into: &mut String) {}
}

/// Calls the function that was lent.
fn run(lent: Lent) -> Result<Returned> {
    let Lent { body, tensors, .. } = lent;
    exits::attached(|py| {
        let tensors: Vec<Tensor> = tensors.into_iter().map(Tensor).collect();
        let returned = body.call1(py, (tensors,)).and_then(|returned| returned.extract(py));
        let (tensors, arrangement): (Vec<Value>, usize) = returned.map_err(errors::raised)?;
        let tensors = tensors.iter().map(|tensor| Array::clone(tensor)).collect();
        Ok(Returned { tensors, arrangement })
    })
}

impl Function {
    /// Calls `f` with the arguments while the body is lent.
    fn lending<R: Send>(
        &self,
        py: Python<'_>,
        body: Py<PyAny>,
        arrangement: &str,
        arguments: Vec<Value>,
        f: impl FnOnce(&plimsoll::Function<Lent, Returned, fn(Lent) -> Result<Returned>>, Lent) -> Result<R>
        + Send,
    ) -> PyResult<R> {
        // This handle is the last: Python's object is let go while the GIL is held.
        let body = Arc::new(body);
        let tensors = arguments.iter().map(|argument| Array::clone(argument)).collect();
        let lent = Lent { body: body.clone(), arrangement: arrangement.into(), tensors };
        drop(arguments);
        call(py, || f(&self.0, lent))
    }
}

#[pymethods]
impl Function {
    #[new]
    fn new() -> Function {
        let function: plimsoll::Function<Lent, Returned, fn(Lent) -> Result<Returned>> =
            plimsoll::Function::new(run);
        Function(function.recording(Recording::Once))
    }

    /// Runs the program for these arguments, which is recorded first if it is not there; returns the tensors and the number of
    /// their arrangement.
    fn call(
        &self,
        py: Python<'_>,
        body: Py<PyAny>,
        arrangement: &str,
        arguments: Vec<Value>,
    ) -> PyResult<(Vec<Tensor>, usize)> {
        let returned = self.lending(py, body, arrangement, arguments, plimsoll::Function::call)?;
        Ok((returned.tensors.into_iter().map(Tensor).collect(), returned.arrangement))
    }

    /// Records the program for these arguments, without running it.
    fn prepare(
        &self,
        py: Python<'_>,
        body: Py<PyAny>,
        arrangement: &str,
        arguments: Vec<Value>,
    ) -> PyResult<()> {
        self.lending(py, body, arrangement, arguments, plimsoll::Function::prepare)
    }

    /// What a call with these arguments will need, with the least limit under which it runs.
    fn plan(
        &self,
        py: Python<'_>,
        body: Py<PyAny>,
        arrangement: &str,
        arguments: Vec<Value>,
    ) -> PyResult<Footprint> {
        self.lending(py, body, arrangement, arguments, |function, lent| {
            let again = lent.rebuild(&mut lent.tensors.iter().cloned())?;
            let footprint = function.plan(lent)?;
            let least = function.least_limit(again).ok();
            Ok(Footprint::new(&footprint, least))
        })
    }

    /// The programs that are kept, the latest first: signature, bytes on the heap and on devices, calls.
    fn programs(&self) -> Vec<(String, u64, u64, u64)> {
        let programs = self.0.cache().programs;
        let row = |program: plimsoll::CachedProgram| {
            (program.signature, program.heap_bytes, program.device_bytes, program.n_calls)
        };
        programs.into_iter().map(row).collect()
    }

    /// Drops the programs.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear_cache());
    }

    /// The variables that the function has made.
    fn variables(&self) -> Vec<Variable> {
        self.0.variables().into_iter().map(Variable).collect()
    }
}

/// A tensor that is only described: what an argument will look like.
#[pyfunction]
fn described(py: Python<'_>, shape: Vec<usize>, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || Array::spec(shape, dtype)).map(Tensor)
}

/// Whether a function is being recorded, or a graph described, on this thread.
#[pyfunction]
fn is_tracing() -> bool {
    plimsoll::is_tracing() || current_graph::current().is_some()
}

/// Whether a tape records on this thread.
#[pyfunction]
fn is_recording() -> bool {
    plimsoll::is_recording()
}

/// Drops all programs of all functions and sessions.
#[pyfunction]
fn clear_session(py: Python<'_>) {
    py.detach(plimsoll::clear_session);
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Function>()?;
    module.add_function(wrap_pyfunction!(described, module)?)?;
    module.add_function(wrap_pyfunction!(is_tracing, module)?)?;
    module.add_function(wrap_pyfunction!(is_recording, module)?)?;
    module.add_function(wrap_pyfunction!(clear_session, module)?)
}
