//! Convolutions, pools and the cross entropy of truth values: what networks are made of besides the families.
//!
//! Weights come as the framework has them, `[out, ..kernel, in / groups]`; Python turns TensorFlow's layout into that.

use plimsoll::{ConvConfig, Pool2d, Result, Tensor as Array};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::edge::call;
use crate::tensor::{Tensor, Value};

/// How a convolution is laid over `N` axes.
fn config<const N: usize>(
    strides: &[usize],
    padding: &[[usize; 2]],
    dilations: &[usize],
) -> PyResult<ConvConfig<N>> {
    let wrong = || PyValueError::new_err(format!("strides, paddings and dilations are for {N} axes"));
    let of = |extents: &[usize]| <[usize; N]>::try_from(extents).map_err(|_| wrong());
    let padding = <[[usize; 2]; N]>::try_from(padding).map_err(|_| wrong())?;
    Ok(ConvConfig::new().stride(of(strides)?).dilation(of(dilations)?).uneven_padding(padding))
}

/// A convolution over as many axes as there are strides, one or two.
#[pyfunction]
fn convolution(
    py: Python<'_>,
    x: Value,
    weights: Value,
    strides: Vec<usize>,
    padding: Vec<[usize; 2]>,
    dilations: Vec<usize>,
    groups: usize,
) -> PyResult<Tensor> {
    if strides.len() == 1 {
        let config = config(&strides, &padding, &dilations)?.groups(groups);
        return call(py, || x.conv1d(&weights, None, &config)).map(Tensor);
    }
    let config = config(&strides, &padding, &dilations)?.groups(groups);
    call(py, || x.conv2d(&weights, None, &config)).map(Tensor)
}

/// The transpose of a convolution: `padding` of the result is left out, and `output_padding` is added at its ends.
#[pyfunction]
fn transposed_convolution(
    py: Python<'_>,
    x: Value,
    weights: Value,
    strides: Vec<usize>,
    padding: Vec<[usize; 2]>,
    dilations: Vec<usize>,
    output_padding: Vec<usize>,
) -> PyResult<Tensor> {
    let wrong = |_| PyValueError::new_err("the output padding is for as many axes as the strides");
    if strides.len() == 1 {
        let output_padding = <[usize; 1]>::try_from(output_padding).map_err(wrong)?;
        let config = config(&strides, &padding, &dilations)?.output_padding(output_padding);
        return call(py, || x.conv_transpose1d(&weights, None, &config)).map(Tensor);
    }
    let output_padding = <[usize; 2]>::try_from(output_padding).map_err(wrong)?;
    let config = config(&strides, &padding, &dilations)?.output_padding(output_padding);
    call(py, || x.conv_transpose2d(&weights, None, &config)).map(Tensor)
}

/// The greatest element or the mean of each window.
#[pyfunction]
fn pool2d(py: Python<'_>, kind: &str, x: Value, window: [usize; 2], strides: [usize; 2]) -> PyResult<Tensor> {
    let pool: fn(&Array, Pool2d) -> Result<Array> = match kind {
        "max" => |x, pool| x.max_pool2d(pool),
        "avg" => |x, pool| x.avg_pool2d(pool),
        _ => return Err(PyValueError::new_err(format!("there is no pool {kind}"))),
    };
    call(py, || pool(&x, Pool2d::new(window).stride(strides))).map(Tensor)
}

/// The cross entropy of each logit and its label; the loss of positive ones is multiplied by a weight.
#[pyfunction]
fn binary_cross_entropy(
    py: Python<'_>,
    logits: Value,
    labels: Value,
    positive_weight: f64,
) -> PyResult<Tensor> {
    call(py, || logits.binary_cross_entropy(&labels, positive_weight)).map(Tensor)
}

/// The elements on a diagonal of the last two axes, or those on one side of it: "diagonal", "lower", "upper".
#[pyfunction]
fn diagonals(py: Python<'_>, part: &str, x: Value, k: i64) -> PyResult<Tensor> {
    let take: fn(&Array, i64) -> Result<Array> = match part {
        "diagonal" => |x, _| x.diagonal(-2, -1),
        "lower" => |x, k| x.tril(k),
        "upper" => |x, k| x.triu(k),
        _ => return Err(PyValueError::new_err(format!("a matrix has no part {part}"))),
    };
    call(py, || take(&x, k)).map(Tensor)
}

/// The elements shifted along an axis; those that leave it at one end come in at the other.
#[pyfunction]
fn roll(py: Python<'_>, x: Value, shift: i64, axis: i64) -> PyResult<Tensor> {
    call(py, || x.roll(shift, axis)).map(Tensor)
}

/// Prints the values on standard error, also where a function runs from its program.
#[pyfunction]
fn debug_print(py: Python<'_>, x: Value, label: &str) -> PyResult<()> {
    call(py, || x.debug_print(label))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(convolution, module)?)?;
    module.add_function(wrap_pyfunction!(transposed_convolution, module)?)?;
    module.add_function(wrap_pyfunction!(pool2d, module)?)?;
    module.add_function(wrap_pyfunction!(binary_cross_entropy, module)?)?;
    module.add_function(wrap_pyfunction!(diagonals, module)?)?;
    module.add_function(wrap_pyfunction!(roll, module)?)?;
    module.add_function(wrap_pyfunction!(debug_print, module)?)
}
