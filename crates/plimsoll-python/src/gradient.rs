//! Gradients that Python states, and functions that backward recomputes.
//!
//! A tape may outlive the call by far, so what is recorded on it does not own a Python function: it knows a number, and the Python
//! tape, which owns the function under that number, lends all of its functions while it computes gradients. Where a tape
//! of the framework's own records, such as that of a train loop, no Python tape can; such a tape ends with its step, and
//! what it recorded owns the function.

use std::cell::RefCell;

use plimsoll::{Error, Result, Shape, Tensor as Array};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::edge::call;
use crate::errors;
use crate::exits;
use crate::tensor::{Tensor, Value};

thread_local!(
    /// The functions by number that are lent at the moment, innermost last.
    static LENT: RefCell<Vec<Py<PyDict>>> = const { RefCell::new(Vec::new()) }
);

/// Where the function of something recorded is.
#[derive(FromPyObject)]
enum Callback {
    /// With the tape that lends it.
    Numbered(u64),
    /// Here.
    Owned(Py<PyAny>),
}

impl Callback {
    /// Calls it with tensors; what it raises comes out as it is.
    fn call(&self, py: Python<'_>, tensors: &[&Array]) -> PyResult<Py<PyAny>> {
        let tensors: Vec<Tensor> = tensors.iter().map(|&tensor| Tensor(tensor.clone())).collect();
        let function = match self {
            Callback::Owned(function) => function.clone_ref(py),
            Callback::Numbered(number) => lent(py, *number)?,
        };
        function.call1(py, (tensors,))
    }
}

fn lent(py: Python<'_>, number: u64) -> PyResult<Py<PyAny>> {
    let lenders: Vec<Py<PyDict>> =
        LENT.with(|lent| lent.borrow().iter().map(|lender| lender.clone_ref(py)).collect());
    let found = lenders.iter().rev().find_map(|lender| lender.bind(py).get_item(number).transpose());
    let missing = || PyRuntimeError::new_err("the function of a custom gradient went with its tape");
    Ok(found.ok_or_else(missing)??.unbind())
}

/// Runs a function while a tape lends its functions.
#[pyfunction]
fn lending(py: Python<'_>, functions: Py<PyDict>, f: Py<PyAny>) -> PyResult<Py<PyAny>> {
    LENT.with(|lent| lent.borrow_mut().push(functions));
    let done = f.call0(py);
    let ended = LENT.with(|lent| lent.borrow_mut().pop());
    drop(ended);
    done
}

/// Runs a function while no tape records.
#[pyfunction]
fn without_tapes(py: Python<'_>, f: Py<PyAny>) -> PyResult<Py<PyAny>> {
    plimsoll::without_tapes(|| f.call0(py))
}

/// The result, recorded as made from the inputs, with the gradients that the callback states: one for each, or none.
#[pyfunction]
fn custom_gradient(
    py: Python<'_>,
    inputs: Vec<Value>,
    result: Value,
    callback: Callback,
) -> PyResult<Tensor> {
    let shapes: Vec<(Shape, plimsoll::DType)> =
        inputs.iter().map(|input| (*input.shape(), input.dtype())).collect();
    let backward = move |gradient: &Array| -> Result<Vec<Array>> {
        let given: Vec<Option<Value>> =
            exits::attached(|py| callback.call(py, &[gradient])?.extract(py)).map_err(errors::raised)?;
        if given.len() != shapes.len() {
            let detail = format!("{} gradients were given for {} inputs", given.len(), shapes.len());
            return Err(Error::argument("custom_gradient", detail));
        }
        let whole = |(value, &(shape, dtype)): (Option<Value>, &(Shape, plimsoll::DType))| match value {
            Some(value) => Ok(Array::clone(&value)),
            None => Array::full_of(shape, 0.0, dtype),
        };
        given.into_iter().zip(&shapes).map(whole).collect()
    };
    call(py, || {
        let inputs: Vec<&Array> = inputs.iter().map(|input| &**input).collect();
        plimsoll::custom_gradient(&inputs, |_| Ok((Array::clone(&result), backward)))
    })
    .map(Tensor)
}

/// What the callback makes of the inputs, with nothing of its inside saved: backward calls it again.
#[pyfunction]
fn recompute(py: Python<'_>, inputs: Vec<Value>, callback: Callback) -> PyResult<Tensor> {
    let function = move |inputs: &[Array]| -> Result<Array> {
        let inputs: Vec<&Array> = inputs.iter().collect();
        let made: Value =
            exits::attached(|py| callback.call(py, &inputs)?.extract(py)).map_err(errors::raised)?;
        Ok(Array::clone(&made))
    };
    call(py, || {
        let inputs: Vec<&Array> = inputs.iter().map(|input| &**input).collect();
        plimsoll::recompute(&inputs, function)
    })
    .map(Tensor)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(lending, module)?)?;
    module.add_function(wrap_pyfunction!(without_tapes, module)?)?;
    module.add_function(wrap_pyfunction!(custom_gradient, module)?)?;
    module.add_function(wrap_pyfunction!(recompute, module)?)
}
