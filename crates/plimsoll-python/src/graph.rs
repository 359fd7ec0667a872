//! Graphs and sessions, as in TensorFlow 1.

use plimsoll::{Result, Tensor as Array};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::current_graph;
use crate::edge::outside_graphs;
use crate::footprint::Footprint;
use crate::tensor::{Tensor, Value, Variable, dtype_of};

/// A graph.
#[pyclass(frozen, module = "plimsoll._core")]
struct Graph(plimsoll::Graph);

/// Runs a graph.
#[pyclass(frozen, module = "plimsoll._core")]
struct Session(plimsoll::Session);

#[pymethods]
impl Graph {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Graph> {
        outside_graphs(py, plimsoll::Graph::new).map(Graph)
    }

    /// Makes it the current graph of this thread; returns the number with which that ends.
    fn enter(&self) -> u64 {
        current_graph::enter(&self.0)
    }

    /// Ends what [`Graph::enter`] began.
    fn leave(&self, number: u64) -> PyResult<()> {
        match current_graph::leave(number) {
            true => Ok(()),
            false => Err(PyValueError::new_err("a graph is left on the thread that entered it")),
        }
    }

    /// Makes it the graph of all threads that have none of their own.
    fn make_default(&self) {
        current_graph::set_default(Some(self.0.clone()));
    }

    /// A tensor whose value is fed when the graph runs.
    fn placeholder(&self, py: Python<'_>, shape: Vec<usize>, dtype: &str) -> PyResult<Tensor> {
        let dtype = dtype_of(dtype)?;
        outside_graphs(py, || self.0.placeholder(shape, dtype)).map(Tensor)
    }

    /// Names a tensor, for errors.
    fn set_name(&self, py: Python<'_>, tensor: Value, name: &str) -> PyResult<()> {
        outside_graphs(py, || self.0.set_name(&tensor, name))
    }

    /// The gradients of the sum of some tensors with respect to others, as more calls of the graph.
    fn gradients(&self, py: Python<'_>, ys: Vec<Value>, xs: Vec<Value>) -> PyResult<Vec<Option<Tensor>>> {
        let gradients = outside_graphs(py, || {
            let ys: Vec<&Array> = ys.iter().map(|y| &**y).collect();
            let xs: Vec<&Array> = xs.iter().map(|x| &**x).collect();
            self.0.gradients(&ys, &xs)
        })?;
        Ok(gradients.into_iter().map(|gradient| gradient.map(Tensor)).collect())
    }

    /// An operation that gives the variables their initial values.
    fn initializer(&self, py: Python<'_>) -> PyResult<Tensor> {
        outside_graphs(py, || self.0.initializer()).map(Tensor)
    }

    /// The variables that were made in the graph.
    fn variables(&self, py: Python<'_>) -> PyResult<Vec<Variable>> {
        let variables = outside_graphs(py, || self.0.variables())?;
        Ok(variables.into_iter().map(Variable).collect())
    }

    /// The graph as text: a line for each call.
    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

#[pymethods]
impl Session {
    #[new]
    fn new(graph: &Graph) -> Session {
        Session(plimsoll::Session::new(&graph.0))
    }

    /// Runs what leads to the fetches; returns their values.
    fn run(&self, py: Python<'_>, fetches: Vec<Value>, feeds: Vec<(Value, Value)>) -> PyResult<Vec<Tensor>> {
        let values = outside_graphs(py, || {
            let fetches: Vec<&Array> = fetches.iter().map(|fetch| &**fetch).collect();
            let feeds: Vec<(&Array, &Array)> = feeds.iter().map(|(to, value)| (&**to, &**value)).collect();
            self.0.run_all(&fetches, &feeds)
        })?;
        Ok(values.into_iter().map(Tensor).collect())
    }

    /// What a run of these fetches will need.
    fn plan(&self, py: Python<'_>, fetches: Vec<Value>) -> PyResult<Footprint> {
        outside_graphs(py, || -> Result<Footprint> {
            let fetches: Vec<&Array> = fetches.iter().map(|fetch| &**fetch).collect();
            Ok(Footprint::new(&self.0.plan(&fetches)?, None))
        })
    }
}

/// Lets ops of all threads run at once again.
#[pyfunction]
fn forget_default_graph() {
    current_graph::set_default(None);
}

/// Whether ops of this thread are added to a graph.
#[pyfunction]
fn is_in_graph() -> bool {
    current_graph::current().is_some()
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Graph>()?;
    module.add_class::<Session>()?;
    module.add_function(wrap_pyfunction!(forget_default_graph, module)?)?;
    module.add_function(wrap_pyfunction!(is_in_graph, module)?)
}
