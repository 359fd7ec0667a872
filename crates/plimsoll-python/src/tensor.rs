//! Tensors and variables as Python objects, and their bytes.
//!
//! Operators, printing and everything else that TensorFlow's users know is attached in `python/plimsoll/tensor.py`, for both
//! classes from one table. Values go in and out through the buffer protocol with one copy, or through
//! DLPack with none.

use std::ops::Deref;

use plimsoll::{DType, Error};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::current_graph;
use crate::edge::{call, outside_graphs};
use crate::exits;

/// A tensor.
#[pyclass(frozen, weakref, module = "plimsoll")]
pub struct Tensor(pub plimsoll::Tensor);

/// A value that can be assigned.
#[pyclass(frozen, weakref, module = "plimsoll")]
pub struct Variable(pub plimsoll::Variable);

/// A tensor, or a variable. A variable stays one: ops read it where they run, and tapes know it.
pub enum Value {
    Tensor(plimsoll::Tensor),
    Variable(plimsoll::Variable),
}

impl Deref for Value {
    type Target = plimsoll::Tensor;

    fn deref(&self) -> &plimsoll::Tensor {
        match self {
            Value::Tensor(tensor) => tensor,
            Value::Variable(variable) => variable,
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Value> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Ok(Value::Tensor(tensor.get().0.clone()));
        }
        if let Ok(variable) = object.cast::<Variable>() {
            return Ok(Value::Variable(variable.get().0.clone()));
        }
        let name = object.get_type().name()?;
        Err(PyTypeError::new_err(format!("a tensor or variable was expected, not {name}")))
    }
}

/// The dtype of that name.
pub fn dtype_of(name: &str) -> PyResult<DType> {
    let known = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| PyTypeError::new_err(format!("there is no dtype {name}")))
}

fn buffer_error(error: &PyErr) -> Error {
    Error::argument("buffer", error.to_string())
}

#[pymethods]
impl Tensor {
    /// It refers to no Python object. That it takes part in garbage collection lets `tf.why_alive` find those that have it.
    fn __traverse__(&self, _visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }

    /// A tensor with the bytes of a buffer, row-major; in a graph a constant of it, unless it is not for the graph.
    #[staticmethod]
    #[pyo3(signature = (shape, dtype, buffer, for_graph = true))]
    fn from_buffer(
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &str,
        buffer: PyBuffer<u8>,
        for_graph: bool,
    ) -> PyResult<Tensor> {
        let dtype = dtype_of(dtype)?;
        let copy = |bytes: &mut [u8]| {
            exits::attached(|py| buffer.copy_to_slice(py, bytes)).map_err(|error| buffer_error(&error))
        };
        let Some(graph) = current_graph::current().filter(|_| for_graph) else {
            return outside_graphs(py, || plimsoll::Tensor::from_bytes(shape, dtype, copy)).map(Tensor);
        };
        call(py, || graph.constant(&plimsoll::Tensor::from_bytes(shape, dtype, copy)?)).map(Tensor)
    }

    /// Its extents.
    #[getter]
    fn _shape(&self) -> Vec<usize> {
        self.0.shape().dims().to_vec()
    }

    /// The name of its dtype.
    #[getter]
    fn _dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    /// The name of its device.
    #[getter]
    fn _device(&self) -> String {
        self.0.device().name().to_owned()
    }

    /// Whether it has a shape and no values: inside a function that is being recorded, or in a graph.
    #[getter]
    fn _is_symbolic(&self) -> bool {
        self.0.is_ghost()
    }

    /// Copies the values into a buffer, row-major.
    fn read_into(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<()> {
        read_into(py, &self.0, &buffer)
    }
}

#[pymethods]
impl Variable {
    /// As a tensor's.
    fn __traverse__(&self, _visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }

    /// A variable with that value, which is converted as `tf.convert_to_tensor` does.
    #[new]
    #[pyo3(signature = (initial_value, trainable = None, *, name = None, dtype = None))]
    fn new(
        py: Python<'_>,
        initial_value: Bound<'_, PyAny>,
        trainable: Option<bool>,
        name: Option<&str>,
        dtype: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Variable> {
        let given = if initial_value.is_callable() { initial_value.call0()? } else { initial_value };
        let convert = py.import("plimsoll.tensor")?.getattr("convert_to_tensor")?;
        let value: Value = convert.call1((given, dtype))?.extract()?;
        let (trainable, name) = (trainable.unwrap_or(true), name.unwrap_or("Variable"));
        let make =
            || Ok(plimsoll::Variable::new(plimsoll::Tensor::clone(&value)).trainable(trainable).named(name));
        call(py, make).map(Variable)
    }

    /// Its extents.
    #[getter]
    fn _shape(&self) -> Vec<usize> {
        self.0.shape().dims().to_vec()
    }

    /// The name of its dtype.
    #[getter]
    fn _dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    /// The name of its device.
    #[getter]
    fn _device(&self) -> String {
        self.0.device().name().to_owned()
    }

    /// Whether tapes watch it by themselves.
    #[getter]
    fn trainable(&self) -> bool {
        self.0.is_trainable()
    }

    /// The name that it was given.
    #[getter]
    fn _name(&self) -> String {
        self.0.name()
    }

    /// Whether it has a shape and no values: inside a function that is being recorded, or in a graph.
    #[getter]
    fn _is_symbolic(&self) -> bool {
        self.0.is_ghost()
    }

    /// Copies the values into a buffer, row-major.
    fn read_into(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<()> {
        read_into(py, &self.0, &buffer)
    }

    /// Its value of the moment.
    fn _value(&self, py: Python<'_>) -> PyResult<Tensor> {
        call(py, || Ok(self.0.value())).map(Tensor)
    }

    /// Assigns, adds or subtracts, as `how` says. In a graph that is an operation, which is returned.
    fn _assign(&self, py: Python<'_>, how: &str, value: Value) -> PyResult<Option<Tensor>> {
        let assign = match how {
            "assign" => plimsoll::Variable::assign,
            "assign_add" => plimsoll::Variable::assign_add,
            "assign_sub" => plimsoll::Variable::assign_sub,
            _ => return Err(PyValueError::new_err(format!("there is no assignment {how}"))),
        };
        match current_graph::current() {
            None => call(py, || assign(&self.0, &value)).map(|()| None),
            Some(graph) => outside_graphs(py, || graph.operation(|| assign(&self.0, &value)))
                .map(|operation| Some(Tensor(operation))),
        }
    }
}

fn read_into(py: Python<'_>, tensor: &plimsoll::Tensor, buffer: &PyBuffer<u8>) -> PyResult<()> {
    let copy = |bytes: &[u8]| exits::attached(|py| buffer.copy_from_slice(py, bytes));
    outside_graphs(py, || tensor.with_bytes(copy)?.map_err(|error| buffer_error(&error)))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tensor>()?;
    module.add_class::<Variable>()
}
