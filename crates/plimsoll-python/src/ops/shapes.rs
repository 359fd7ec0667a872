//! Ops that are told shapes, positions or a dtype.

use plimsoll::{Slice, Tensor as Array};
use pyo3::prelude::*;

use crate::edge::call;
use crate::tensor::{Tensor, Value, dtype_of};

/// What to take of one axis.
#[derive(FromPyObject)]
enum Piece {
    At(isize),
    Range(Option<isize>, Option<isize>, isize),
}

#[pyfunction]
fn cast(py: Python<'_>, x: Value, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || x.cast(dtype)).map(Tensor)
}

#[pyfunction]
fn reshape(py: Python<'_>, x: Value, shape: Vec<i64>) -> PyResult<Tensor> {
    call(py, || x.reshape(shape)).map(Tensor)
}

#[pyfunction]
fn permute(py: Python<'_>, x: Value, axes: Vec<i64>) -> PyResult<Tensor> {
    call(py, || x.permute(axes)).map(Tensor)
}

#[pyfunction]
fn broadcast_to(py: Python<'_>, x: Value, shape: Vec<usize>) -> PyResult<Tensor> {
    call(py, || x.broadcast_to(shape)).map(Tensor)
}

#[pyfunction]
fn slice(py: Python<'_>, x: Value, pieces: Vec<Piece>) -> PyResult<Tensor> {
    let slice = |piece: &Piece| match *piece {
        Piece::At(position) => Slice::At(position),
        Piece::Range(start, end, step) => Slice::Range { start, end, step },
    };
    let slices: Vec<Slice> = pieces.iter().map(slice).collect();
    call(py, || x.slice(&slices[..])).map(Tensor)
}

#[pyfunction]
fn flip(py: Python<'_>, x: Value, axes: Vec<i64>) -> PyResult<Tensor> {
    call(py, || x.flip(axes)).map(Tensor)
}

#[pyfunction]
fn concat(py: Python<'_>, tensors: Vec<Value>, axis: i64, new_axis: bool) -> PyResult<Tensor> {
    call(py, || {
        let tensors: Vec<&Array> = tensors.iter().map(|tensor| &**tensor).collect();
        if new_axis { Array::stack(&tensors, axis) } else { Array::concat(&tensors, axis) }
    })
    .map(Tensor)
}

#[pyfunction]
fn split(py: Python<'_>, x: Value, axis: i64, sizes: Vec<usize>) -> PyResult<Vec<Tensor>> {
    let parts = call(py, || x.split(axis, &sizes))?;
    Ok(parts.into_iter().map(Tensor).collect())
}

#[pyfunction]
fn pad(py: Python<'_>, x: Value, widths: Vec<(usize, usize)>, value: f64) -> PyResult<Tensor> {
    call(py, || x.pad(&widths, value)).map(Tensor)
}

#[pyfunction]
fn tile(py: Python<'_>, x: Value, repeats: Vec<usize>) -> PyResult<Tensor> {
    call(py, || x.tile(&repeats)).map(Tensor)
}

#[pyfunction]
fn select(py: Python<'_>, condition: Value, x: Value, y: Value) -> PyResult<Tensor> {
    call(py, || condition.where_(&x, &y)).map(Tensor)
}

#[pyfunction]
fn gather(py: Python<'_>, x: Value, indices: Value, axis: i64) -> PyResult<Tensor> {
    call(py, || x.index_select(axis, &indices)).map(Tensor)
}

#[pyfunction]
fn one_hot(py: Python<'_>, indices: Value, depth: usize, dtype: &str) -> PyResult<Tensor> {
    let dtype = dtype_of(dtype)?;
    call(py, || indices.one_hot(depth, dtype)).map(Tensor)
}

#[pyfunction]
fn clamp(py: Python<'_>, x: Value, low: f64, high: f64) -> PyResult<Tensor> {
    call(py, || x.clamp(low, high)).map(Tensor)
}

#[pyfunction]
fn einsum(py: Python<'_>, equation: &str, tensors: Vec<Value>) -> PyResult<Tensor> {
    call(py, || {
        let tensors: Vec<&Array> = tensors.iter().map(|tensor| &**tensor).collect();
        Array::einsum(equation, &tensors)
    })
    .map(Tensor)
}

/// The largest or smallest elements of the last axis in order, and where they were.
#[pyfunction]
fn top_k(py: Python<'_>, x: Value, k: usize) -> PyResult<(Tensor, Tensor)> {
    let (values, indices) = call(py, || x.top_k(k, -1))?;
    Ok((Tensor(values), Tensor(indices)))
}

/// The elements along an axis in order, and where they were.
#[pyfunction]
fn sort(py: Python<'_>, x: Value, axis: i64, descending: bool) -> PyResult<(Tensor, Tensor)> {
    let (values, indices) = call(py, || x.sort(axis, descending))?;
    Ok((Tensor(values), Tensor(indices)))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cast, module)?)?;
    module.add_function(wrap_pyfunction!(reshape, module)?)?;
    module.add_function(wrap_pyfunction!(permute, module)?)?;
    module.add_function(wrap_pyfunction!(broadcast_to, module)?)?;
    module.add_function(wrap_pyfunction!(slice, module)?)?;
    module.add_function(wrap_pyfunction!(flip, module)?)?;
    module.add_function(wrap_pyfunction!(concat, module)?)?;
    module.add_function(wrap_pyfunction!(split, module)?)?;
    module.add_function(wrap_pyfunction!(pad, module)?)?;
    module.add_function(wrap_pyfunction!(tile, module)?)?;
    module.add_function(wrap_pyfunction!(select, module)?)?;
    module.add_function(wrap_pyfunction!(gather, module)?)?;
    module.add_function(wrap_pyfunction!(one_hot, module)?)?;
    module.add_function(wrap_pyfunction!(clamp, module)?)?;
    module.add_function(wrap_pyfunction!(einsum, module)?)?;
    module.add_function(wrap_pyfunction!(top_k, module)?)?;
    module.add_function(wrap_pyfunction!(sort, module)?)
}
