//! Tensors from nothing but numbers.

use plimsoll::Tensor as Array;
use pyo3::prelude::*;

use crate::edge::call;
use crate::tensor::{Tensor, dtype_of};

/// One number everywhere.
#[pyfunction]
fn full(py: Python<'_>, shape: Vec<usize>, value: f64, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || Array::full_of(shape, value, dtype)).map(Tensor)
}

/// From `start` to before `end`.
#[pyfunction]
fn arange(py: Python<'_>, start: f64, end: f64, step: f64, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || Array::arange_of(start, end, step, dtype)).map(Tensor)
}

/// The identity matrix.
#[pyfunction]
fn eye(py: Python<'_>, n: usize) -> PyResult<Tensor> {
    call(py, || Array::eye(n)).map(Tensor)
}

/// Evenly spaced numbers, the ends included.
#[pyfunction]
fn linspace(py: Python<'_>, start: f64, end: f64, n: usize) -> PyResult<Tensor> {
    call(py, || Array::linspace(start, end, n)).map(Tensor)
}

/// Normally distributed numbers; with `truncated`, those within two deviations.
#[pyfunction]
fn normal(
    py: Python<'_>,
    shape: Vec<usize>,
    mean: f64,
    stddev: f64,
    dtype: &str,
    truncated: bool,
) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || match truncated {
        true => Array::truncated_normal(shape, mean, stddev, dtype),
        false => Array::normal(shape, mean, stddev, dtype),
    })
    .map(Tensor)
}

/// Evenly distributed numbers.
#[pyfunction]
fn uniform(py: Python<'_>, shape: Vec<usize>, low: f64, high: f64, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || Array::uniform(shape, low, high, dtype)).map(Tensor)
}

/// Evenly distributed whole numbers.
#[pyfunction]
fn randint(py: Python<'_>, shape: Vec<usize>, low: i64, high: i64, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || Array::randint(shape, low, high, dtype)).map(Tensor)
}

/// Begins the random numbers of this thread anew.
#[pyfunction]
fn set_seed(seed: u64) {
    plimsoll::set_seed(seed);
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(full, module)?)?;
    module.add_function(wrap_pyfunction!(arange, module)?)?;
    module.add_function(wrap_pyfunction!(eye, module)?)?;
    module.add_function(wrap_pyfunction!(linspace, module)?)?;
    module.add_function(wrap_pyfunction!(normal, module)?)?;
    module.add_function(wrap_pyfunction!(uniform, module)?)?;
    module.add_function(wrap_pyfunction!(randint, module)?)?;
    module.add_function(wrap_pyfunction!(set_seed, module)?)
}
