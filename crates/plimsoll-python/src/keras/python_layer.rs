//! Layers whose function is Python's: `call` of a subclass of `tf.keras.layers.Layer` or `tf.keras.Model`.
//!
//! The Python object owns its weights, its layers and this; it is reached through a weak reference, so no cycle of references
//! goes through Rust. A run records `call` once for batches of a shape, as TensorFlow does, unless it is to run eagerly.

use plimsoll::nn::{self, BuiltLayer, Layer, Mode, adopt_variable};
use plimsoll::{Error, Nested, Result, Shape, Tensor};
use pyo3::prelude::*;

use super::nested::{Tensors, to_python};
use super::raised;
use crate::exits;

/// A layer that an object of Python's computes.
pub struct PythonLayer {
    pub name: String,
    /// A weak reference: called, it gives the object, or `None` if that is gone.
    pub target: Py<PyAny>,
    pub outputs: Nested<Shape>,
    pub variables: Vec<(String, plimsoll::Variable)>,
    pub parts: Vec<nn::Model>,
    /// Whether `call` does the same for all batches of a shape.
    pub is_pure: bool,
}

impl Layer for PythonLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_pure(&self) -> bool {
        self.is_pure
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_nested(&Nested::One(*input))
    }

    fn make_nested(&self, _inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        self.variables.iter().for_each(|(name, variable)| adopt_variable(name, variable));
        for part in &self.parts {
            part.build(part.input_shapes())?;
        }
        let target = exits::attached(|py| self.target.clone_ref(py));
        BuiltLayer::nested(&self.outputs, move |inputs: Nested<Tensor>, mode| call(&target, inputs, mode))
    }
}

fn call(target: &Py<PyAny>, inputs: Nested<Tensor>, mode: Mode) -> Result<Nested<Tensor>> {
    exits::attached(|py| {
        let called = || {
            let object = target.bind(py).call0()?;
            if object.is_none() {
                return Ok(None);
            }
            let arguments = (to_python(py, inputs)?, mode == Mode::Train);
            object.call_method1("_call_in_run", arguments)?.extract::<Tensors>().map(Some)
        };
        match called() {
            Ok(Some(outputs)) => Ok(outputs.0),
            Ok(None) => Err(Error::argument("layer", "the Python layer that computes this is gone")),
            Err(error) => Err(raised::error(py, error)),
        }
    })
}
