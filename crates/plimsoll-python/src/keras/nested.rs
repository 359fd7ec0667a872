//! Structures: tensors and shapes in tuples, lists and dictionaries, as `Nested`.

use plimsoll::{Nested, Shape};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::tensor::{Tensor, Value};

/// Tensors in a structure of Python's.
pub struct Tensors(pub Nested<plimsoll::Tensor>);

/// Shapes in a structure of Python's. A sequence of whole numbers is a shape; any other one is a tuple.
pub struct Shapes(pub Nested<Shape>);

impl<'a, 'py> FromPyObject<'a, 'py> for Tensors {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Tensors> {
        let leaf = |object: &Bound<'_, PyAny>| Ok(plimsoll::Tensor::clone(&*object.extract::<Value>()?));
        nested(&object, &|object| object.extract::<Value>().is_ok(), &leaf).map(Tensors)
    }
}

/// Numbers in a structure of Python's.
pub struct Numbers(pub Nested<usize>);

impl<'a, 'py> FromPyObject<'a, 'py> for Numbers {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Numbers> {
        nested(&object, &|object| object.extract::<usize>().is_ok(), &|object| object.extract()).map(Numbers)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Shapes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Shapes> {
        let leaf = |object: &Bound<'_, PyAny>| {
            let dims: Vec<usize> = object.extract()?;
            Shape::new(&dims).map_err(|error| PyTypeError::new_err(error.to_string()))
        };
        nested(&object, &|object| object.extract::<Vec<usize>>().is_ok(), &leaf).map(Shapes)
    }
}

fn nested<T>(
    object: &Bound<'_, PyAny>,
    is_leaf: &dyn Fn(&Bound<'_, PyAny>) -> bool,
    leaf: &dyn Fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Nested<T>> {
    if is_leaf(object) {
        return leaf(object).map(Nested::One);
    }
    if let Ok(fields) = object.cast::<PyDict>() {
        let field = |(name, part): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            Ok((name.extract()?, nested(&part, is_leaf, leaf)?))
        };
        return fields.iter().map(field).collect::<PyResult<_>>().map(Nested::Named);
    }
    let part = |part: PyResult<Bound<'_, PyAny>>| nested(&part?, is_leaf, leaf);
    if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
        return object.try_iter()?.map(part).collect::<PyResult<_>>().map(Nested::Tuple);
    }
    leaf(object).map(Nested::One)
}

/// The structure as Python has it: tensors, tuples and dictionaries.
pub fn to_python<'py>(py: Python<'py>, nested: Nested<plimsoll::Tensor>) -> PyResult<Bound<'py, PyAny>> {
    match nested {
        Nested::One(tensor) => Ok(Bound::new(py, Tensor(tensor))?.into_any()),
        Nested::Tuple(parts) => {
            let parts: Vec<_> = parts.into_iter().map(|part| to_python(py, part)).collect::<PyResult<_>>()?;
            Ok(PyTuple::new(py, parts)?.into_any())
        }
        Nested::Named(fields) => {
            let named = PyDict::new(py);
            for (name, part) in fields {
                named.set_item(name, to_python(py, part)?)?;
            }
            Ok(named.into_any())
        }
    }
}

/// Shapes as Python has them: a list of extents, tuples and dictionaries of such.
pub fn shapes_to_python<'py>(py: Python<'py>, nested: &Nested<Shape>) -> PyResult<Bound<'py, PyAny>> {
    match nested {
        Nested::One(shape) => Ok(PyList::new(py, shape.dims())?.into_any()),
        Nested::Tuple(parts) => {
            let parts: Vec<_> =
                parts.iter().map(|part| shapes_to_python(py, part)).collect::<PyResult<_>>()?;
            Ok(PyTuple::new(py, parts)?.into_any())
        }
        Nested::Named(fields) => {
            let named = PyDict::new(py);
            for (name, part) in fields {
                named.set_item(name, shapes_to_python(py, part)?)?;
            }
            Ok(named.into_any())
        }
    }
}
