//! Models: built layers, alone or put together.

use plimsoll::nn::layers::{Functional, Node, Sequential};
use plimsoll::nn::{self, Layer, Mode};
use plimsoll::{Error, Nested, Result, Shape};
use pyo3::prelude::*;

use super::nested::{Numbers, Shapes, Tensors, shapes_to_python, to_python};
use super::python_layer::PythonLayer;
use super::raised;
use crate::tensor::{Variable, dtype_of};

/// A file and a line of Python.
pub type Place = Option<(String, u32)>;

/// A built layer of any size.
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Model(pub nn::Model);

/// A layer that is called in a graph: its number, the values that it reads, and the line.
#[derive(Clone)]
struct Call {
    layer: usize,
    inputs: Nested<usize>,
    place: Place,
}

/// Does something as at a line of Python.
pub fn at<R>(place: &Place, f: impl FnOnce() -> R) -> R {
    match place {
        Some((file, line)) => plimsoll::at_line(file, *line, f),
        None => f(),
    }
}

fn sequence(layers: &[nn::Model], places: &[Place], inputs: &Nested<Shape>) -> Result<nn::Model> {
    let add = |sequential: Sequential, (layer, place): (&nn::Model, &Place)| {
        at(place, || sequential.add(layer.clone()))
    };
    layers.iter().zip(places).fold(Sequential::new(), add).build(inputs)
}

fn graph(
    layers: &[nn::Model],
    calls: &[Call],
    inputs: &Nested<Shape>,
    outputs: &Nested<usize>,
) -> Result<nn::Model> {
    let (layers, calls, outputs) = (layers.to_vec(), calls.to_vec(), outputs.clone());
    let describe = move |inputs: Nested<Node>| {
        let mut values: Vec<Node> = inputs.into_leaves();
        let read = |values: &[Node], numbers: &Nested<usize>| {
            let value = |&number: &usize| values.get(number).cloned();
            numbers.try_map(&mut |number| value(number).ok_or_else(|| missing(*number)))
        };
        for call in &calls {
            let layer = layers.get(call.layer).ok_or_else(|| missing(call.layer))?;
            let inputs = read(&values, &call.inputs)?;
            let given = at(&call.place, || layer.apply_nested(inputs))?;
            values.extend(given.into_leaves());
        }
        read(&values, &outputs)
    };
    Functional::new(describe).build(inputs)
}

fn missing(number: usize) -> Error {
    Error::argument("functional", format!("the graph has no number {number}"))
}

#[pymethods]
impl Model {
    /// Layers one after the other, each with the line that described it.
    #[staticmethod]
    fn sequential(
        py: Python<'_>,
        layers: Vec<PyRef<'_, Model>>,
        places: Vec<Place>,
        inputs: Shapes,
    ) -> PyResult<Model> {
        let layers: Vec<nn::Model> = layers.iter().map(|layer| layer.0.clone()).collect();
        raised::call(py, || sequence(&layers, &places, &inputs.0)).map(Model)
    }

    /// A graph of layers: values are numbered, the inputs first and then what each call gives.
    #[staticmethod]
    fn functional(
        py: Python<'_>,
        layers: Vec<PyRef<'_, Model>>,
        calls: Vec<(usize, Numbers, Place)>,
        inputs: Shapes,
        outputs: Numbers,
    ) -> PyResult<Model> {
        let layers: Vec<nn::Model> = layers.iter().map(|layer| layer.0.clone()).collect();
        let calls: Vec<Call> =
            calls.into_iter().map(|(layer, inputs, place)| Call { layer, inputs: inputs.0, place }).collect();
        raised::call(py, || graph(&layers, &calls, &inputs.0, &outputs.0)).map(Model)
    }

    /// A layer whose function is Python's. `target` gives the object that has the function, as long as it lives: the object
    /// holds this model, so this must not hold the object.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "it is what Python says of a layer")]
    fn python(
        py: Python<'_>,
        name: String,
        target: Py<PyAny>,
        inputs: Shapes,
        outputs: Shapes,
        variables: Vec<(String, PyRef<'_, Variable>)>,
        parts: Vec<PyRef<'_, Model>>,
        is_pure: bool,
        place: Place,
    ) -> PyResult<Model> {
        let variables = variables.iter().map(|(name, variable)| (name.clone(), variable.0.clone())).collect();
        let parts = parts.iter().map(|part| part.0.clone()).collect();
        let layer = PythonLayer { name, target, outputs: outputs.0, variables, parts, is_pure };
        raised::call(py, || at(&place, || layer.build(inputs.0))).map(Model)
    }

    /// The output for a batch of inputs.
    fn forward<'py>(&self, py: Python<'py>, inputs: Tensors, training: bool) -> PyResult<Bound<'py, PyAny>> {
        let mode = if training { Mode::Train } else { Mode::Infer };
        let outputs = raised::call(py, || self.0.forward_nested(inputs.0, mode))?;
        to_python(py, outputs)
    }

    /// The outputs for any number of inputs, some at a time.
    fn predict<'py>(&self, py: Python<'py>, inputs: Tensors, batch: usize) -> PyResult<Bound<'py, PyAny>> {
        let outputs = raised::call(py, || self.0.predict_nested(inputs.0, batch))?;
        to_python(py, outputs)
    }

    /// All variables with their names.
    fn named_variables(&self) -> Vec<(String, Variable)> {
        self.0.named_variables().into_iter().map(|(name, variable)| (name, Variable(variable))).collect()
    }

    /// The names that some variables have in it; none for those that are not its own.
    fn names_of(&self, variables: Vec<PyRef<'_, Variable>>) -> Vec<Option<String>> {
        let named = self.0.named_variables();
        let name = |variable: &PyRef<'_, Variable>| {
            named.iter().find(|(_, known)| *known == variable.0).map(|(name, _)| name.clone())
        };
        variables.iter().map(name).collect()
    }

    /// The parts that it was put together from.
    fn parts(&self) -> Vec<Model> {
        self.0.parts().iter().cloned().map(Model).collect()
    }

    /// Freezes all its layers, or has them trained again.
    fn set_trainable(&self, py: Python<'_>, trainable: bool) {
        py.detach(|| self.0.set_trainable(trainable));
    }

    /// The shapes of one example that goes in.
    fn input_shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shapes_to_python(py, self.0.input_shapes())
    }

    /// The dtypes of what goes in, in order.
    fn input_dtypes(&self) -> Vec<&'static str> {
        self.0.input_dtypes().into_iter().map(plimsoll::DType::name).collect()
    }

    /// The shapes of one example that comes out.
    fn output_shapes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shapes_to_python(py, self.0.output_shapes())
    }

    /// The bytes that each of its parts keeps for backward at a batch of so many, by name, and those of all.
    fn saved_bytes(&self, py: Python<'_>, batch: usize) -> PyResult<(Vec<(String, usize)>, usize)> {
        let summary = raised::call(py, || self.0.summary(batch))?;
        let rows = summary.rows.iter().filter(|row| row.depth == 0);
        Ok((rows.map(|row| (row.name.clone(), row.saved_bytes)).collect(), summary.saved_bytes))
    }

    /// Writes the weights into a safetensors file.
    fn save_weights(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        raised::call(py, || self.0.save_weights(&path))
    }

    /// Reads the weights from a safetensors file.
    fn load_weights(&self, py: Python<'_>, path: std::path::PathBuf) -> PyResult<()> {
        raised::call(py, || self.0.load_weights(&path))
    }
}

/// A variable as the master of a copy that is computed with in another precision.
#[pyfunction]
fn mixed(py: Python<'_>, variable: &Variable, compute: &str) -> PyResult<Variable> {
    let compute = dtype_of(compute)?;
    raised::call(py, || variable.0.clone().mixed(compute)).map(Variable)
}

/// The variable that has the full precision of one that is computed with: its master, or itself.
#[pyfunction]
fn master(variable: &Variable) -> Variable {
    Variable(variable.0.master().unwrap_or(&variable.0).clone())
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mixed, module)?)?;
    module.add_function(wrap_pyfunction!(master, module)?)?;
    module.add_class::<Model>()
}
