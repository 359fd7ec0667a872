//! Ops by name: one function for each family, which finds the method in a table of names.
//!
//! A method of `Tensor` that fits a family is one word in that table; `python/plimsoll/names.py` says which of TensorFlow's names
//! it answers to. Methods with arguments of their own are functions of their own, in [`shapes`] and [`create`].

mod create;
mod network;
mod shapes;

use plimsoll::{Result, Tensor as Array};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;

use crate::edge::call;
use crate::tensor::{Tensor, Value};

/// The right side of an op of two: a tensor, or a number that takes the other's dtype.
enum Operand {
    Tensor(Value),
    Number(f64),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Operand {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Operand> {
        match object.extract::<Value>() {
            Ok(value) => Ok(Operand::Tensor(value)),
            Err(_) => object.extract().map(Operand::Number),
        }
    }
}

fn unknown(family: &str, name: &str) -> PyErr {
    PyAttributeError::new_err(format!("there is no op {name} of the family {family}"))
}

/// Declares a family: a Python function that takes a name, and the list of names for Python to look at.
macro_rules! family {
    (
        $(#[doc = $doc:literal])* $family:ident($($argument:ident: $type:ty),*) as $signature:ty;
        $($name:ident),* => $method:ident!
    ) => {
        $(#[doc = $doc])*
        #[pyfunction]
        fn $family(py: Python<'_>, name: &str, x: Value, $($argument: $type),*) -> PyResult<Tensor> {
            let method: $signature = match name {
                $(stringify!($name) => $method!($name),)*
                _ => return Err(unknown(stringify!($family), name)),
            };
            call(py, || method(&x, $($argument),*)).map(Tensor)
        }
    };
}

macro_rules! plain {
    ($name:ident) => {
        |x| x.$name()
    };
}

macro_rules! with_rhs {
    ($name:ident) => {
        |x, rhs| match rhs {
            Operand::Tensor(rhs) => x.$name(&*rhs),
            Operand::Number(rhs) => x.$name(rhs),
        }
    };
}

macro_rules! with_tensor {
    ($name:ident) => {
        |x, rhs| x.$name(&rhs)
    };
}

macro_rules! with_number {
    ($name:ident) => {
        |x, number| x.$name(number)
    };
}

macro_rules! with_axis {
    ($name:ident) => {
        |x, axis| x.$name(axis)
    };
}

macro_rules! with_axes {
    (max) => { with_axes!(max, max_keepdims) };
    (min) => { with_axes!(min, min_keepdims) };
    (sum) => { with_axes!(sum, sum_keepdims) };
    (mean) => { with_axes!(mean, mean_keepdims) };
    (prod) => { with_axes!(prod, prod_keepdims) };
    (any) => { with_axes!(any, any_keepdims) };
    (all) => { with_axes!(all, all_keepdims) };
    // TensorFlow's are those of a whole population.
    (var) => { with_axes!(var_corrected, var_corrected_keepdims, 0.0) };
    (std) => { with_axes!(std_corrected, std_corrected_keepdims, 0.0) };
    (norm) => { with_axes!(norm, norm_keepdims) };
    (logsumexp) => { with_axes!(logsumexp, logsumexp_keepdims) };
    (argmax) => { with_axes!(argmax, argmax_keepdims) };
    (argmin) => { with_axes!(argmin, argmin_keepdims) };
    ($name:ident, $keepdims:ident $(, $correction:literal)?) => {
        |x, axes, keep| match (axes, keep) {
            (None, false) => x.$name(.. $(, $correction)?),
            (None, true) => x.$keepdims(.. $(, $correction)?),
            (Some(axes), false) => x.$name(axes $(, $correction)?),
            (Some(axes), true) => x.$keepdims(axes $(, $correction)?),
        }
    };
}

family! {
    /// Functions of one tensor.
    unary() as fn(&Array) -> Result<Array>;
    abs, acos, asin, atan, cos, cosh, erf, exp, exp_m1, gelu, gelu_tanh, hard_sigmoid, hard_swish, ln, ln_1p, log10, log2,
    log_sigmoid, mish, recip, relu, relu6, rsqrt, selu, sigmoid, silu, sin, sinh, softplus, sqrt, square, tan, tanh, neg,
    floor, ceil, round, sign, is_nan, is_finite, logical_not, zeros_like, ones_like, contiguous, global_avg_pool2d => plain!
}

family! {
    /// Functions of two tensors, or of a tensor and a number.
    binary(rhs: Operand) as fn(&Array, Operand) -> Result<Array>;
    add, sub, mul, div, floor_div, rem, pow, maximum, minimum, atan2, eq, ne, lt, le, gt, ge => with_rhs!
}

family! {
    /// Functions of two tensors.
    pair(rhs: Value) as fn(&Array, Value) -> Result<Array>;
    matmul, logical_and, logical_or, logical_xor, cross_entropy, sparse_cross_entropy, embedding => with_tensor!
}

family! {
    /// Functions of a tensor and a number that has no gradient.
    parametric(number: f64) as fn(&Array, f64) -> Result<Array>;
    elu, leaky_relu, dropout, full_like => with_number!
}

family! {
    /// Functions along one axis.
    along(axis: i64) as fn(&Array, i64) -> Result<Array>;
    softmax, log_softmax, cumsum, cumprod, unsqueeze, squeeze => with_axis!
}

family! {
    /// Functions that reduce some axes, or all.
    reduce(axes: Option<Vec<i64>>, keepdims: bool) as fn(&Array, Option<Vec<i64>>, bool) -> Result<Array>;
    max, min, sum, mean, prod, any, all, var, std, norm, logsumexp, argmax, argmin => with_axes!
}

/// The tensor without what tapes know of it.
#[pyfunction]
fn stop_gradient(py: Python<'_>, x: Value) -> PyResult<Tensor> {
    call(py, || Ok(x.stop_gradient())).map(Tensor)
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(unary, module)?)?;
    module.add_function(wrap_pyfunction!(binary, module)?)?;
    module.add_function(wrap_pyfunction!(pair, module)?)?;
    module.add_function(wrap_pyfunction!(parametric, module)?)?;
    module.add_function(wrap_pyfunction!(along, module)?)?;
    module.add_function(wrap_pyfunction!(reduce, module)?)?;
    module.add_function(wrap_pyfunction!(stop_gradient, module)?)?;
    network::add_to(module)?;
    shapes::add_to(module)?;
    create::add_to(module)
}
