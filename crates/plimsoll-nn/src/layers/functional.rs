//! `Functional`: graphs of layers, as Keras's functional API.
//!
//! A graph is described by a function of nodes, which is called when the layer is built: a [`Node`] stands for a tensor that
//! is not there yet and knows its shape. [`Layer::apply`] builds a layer for the nodes that it is given and notes that it
//! is called there. What runs later is that list of calls, in the order in which they were noted; a value is dropped after
//! the last call that reads it. The function itself is not called again, so what it decides, it decides once.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use plimsoll_tensor::{DType, Error, Nested, Result, Shape, Site, Tensor, at_callers_line};

use super::Concatenate;
use crate::deferred::{Consumer, Deferred};
use crate::layer::{BuiltLayer, Layer, build};
use crate::model::{Mode, Model};

/// A graph of layers, with any number of inputs and outputs, and layers that several of them share.
///
/// ```
/// use plimsoll_nn::layers::{Concatenate, Dense, Embedding, Flatten, Functional, Node};
/// use plimsoll_nn::Layer;
///
/// let model = Functional::new(|(image, text): (Node, Node)| {
///     let image = Dense::new(16).apply(&Flatten::new().apply(&image)?)?;
///     let text = Flatten::new().apply(&Embedding::new(100, 4).apply(&text)?)?;
///     Dense::new(3).apply(&Concatenate::new(-1).apply((&image, &text))?)
/// })
/// .build(([8, 8], [5]))?;
/// assert_eq!(model.output_shape().dims(), [3]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// A layer that is described is a new one wherever it is applied; a model that was built is one part, with variables that all
/// its places share. Outputs may be a tuple, or named: `Ok(Nested::named([("class", class), ("box", corners)]))`.
#[derive(Clone)]
pub struct Functional {
    graph: Arc<Describe>,
}

type Describe = dyn Fn(Nested<Node>) -> Result<Nested<Node>> + Send + Sync;

impl Functional {
    /// A graph that a function describes, from its inputs to its outputs.
    pub fn new<I, O>(graph: impl Fn(I) -> Result<O> + Send + Sync + 'static) -> Functional
    where
        I: TryFrom<Nested<Node>, Error: Into<Error>>,
        O: Into<Nested<Node>>,
    {
        let graph = move |inputs| Ok(graph(I::try_from(inputs).map_err(Into::into)?)?.into());
        Functional { graph: Arc::new(graph) }
    }
}

impl fmt::Debug for Functional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Functional")
    }
}

/// A tensor of a graph that is being described: its shape is known, its values are not.
#[derive(Clone)]
pub struct Node {
    graph: Rc<RefCell<Graph>>,
    /// The number of the value in the graph.
    value: usize,
    shape: Shape,
}

/// A graph as far as it has been described.
#[derive(Default)]
struct Graph {
    n_values: usize,
    calls: Vec<Call>,
}

impl Node {
    /// The shape of one example.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Several nodes one after the other along an axis of an example; -1 is the last one.
    ///
    /// # Errors
    /// Shapes that differ in another axis; memory that is full.
    #[track_caller]
    pub fn concat(nodes: impl IntoIterator<Item = Node>, axis: isize) -> Result<Node> {
        Concatenate::new(axis).apply(nodes.into_iter().collect::<Vec<Node>>())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.shape)
    }
}

impl From<Node> for Nested<Node> {
    fn from(node: Node) -> Nested<Node> {
        Nested::One(node)
    }
}

impl From<&Node> for Nested<Node> {
    fn from(node: &Node) -> Nested<Node> {
        Nested::One(node.clone())
    }
}

impl TryFrom<Nested<Node>> for Node {
    type Error = Error;

    fn try_from(nodes: Nested<Node>) -> Result<Node> {
        match nodes {
            Nested::One(node) => Ok(node),
            several => {
                let shapes = several.map(|node| node.shape);
                Err(Error::shape("functional", format!("one tensor is wanted, and there are {shapes}")))
            }
        }
    }
}

/// A layer that is called: which values it reads, and which it gives.
struct Call {
    model: Model,
    inputs: Nested<usize>,
    outputs: Nested<usize>,
}

/// New nodes of a graph, for examples of these shapes.
fn new_nodes(graph: &Rc<RefCell<Graph>>, shapes: &Nested<Shape>) -> Nested<Node> {
    shapes.map(|&shape| {
        let value = graph.borrow().n_values;
        graph.borrow_mut().n_values += 1;
        Node { graph: graph.clone(), value, shape }
    })
}

/// Builds a layer for nodes, and notes that it is called with them.
#[track_caller]
pub(crate) fn apply(layer: &dyn Layer, inputs: Nested<Node>, described: Site) -> Result<Nested<Node>> {
    let _line = at_callers_line();
    let Some(graph) = inputs.first().map(|node| node.graph.clone()) else {
        return Err(Error::argument("functional", format!("{:?} is applied to no node", layer.name())));
    };
    check_graph(layer.name(), &inputs, &graph)?;
    let model = build(layer, &inputs.map(|node| node.shape), described)?;
    let outputs = new_nodes(&graph, model.output_shapes());
    let values = |nodes: &Nested<Node>| nodes.map(|node| node.value);
    graph.borrow_mut().calls.push(Call { model, inputs: values(&inputs), outputs: values(&outputs) });
    Ok(outputs)
}

/// Refuses nodes of another graph: their values would not be there.
fn check_graph(what: &str, nodes: &Nested<Node>, graph: &Rc<RefCell<Graph>>) -> Result<()> {
    match nodes.leaves().iter().all(|node| Rc::ptr_eq(&node.graph, graph)) {
        true => Ok(()),
        false => Err(Error::argument("functional", format!("{what:?} is given nodes of another graph"))),
    }
}

/// What runs: calls in order, and which values each of them reads last.
struct Schedule {
    n_values: usize,
    calls: Vec<(Call, Vec<usize>)>,
    outputs: Nested<usize>,
}

impl Schedule {
    /// The calls that the outputs depend on.
    fn new(graph: Graph, outputs: Nested<usize>) -> Schedule {
        let mut is_needed = vec![false; graph.n_values];
        outputs.leaves().into_iter().for_each(|&value| is_needed[value] = true);
        // A value that is read later, or given out, is not dropped.
        let mut is_read_later = is_needed.clone();
        let mut calls = Vec::new();
        for call in graph.calls.into_iter().rev() {
            if !call.outputs.leaves().iter().any(|&&value| is_needed[value]) {
                continue;
            }
            let mut last_read = Vec::new();
            for &value in call.inputs.leaves() {
                if !std::mem::replace(&mut is_read_later[value], true) {
                    last_read.push(value);
                }
                is_needed[value] = true;
            }
            calls.push((call, last_read));
        }
        calls.reverse();
        Schedule { n_values: graph.n_values, calls, outputs }
    }

    /// The dtype that each of the inputs must have, where a layer that reads it takes whole numbers.
    fn takes(&self, n_inputs: usize) -> Vec<Option<DType>> {
        let taken = |input: usize| {
            self.calls.iter().find_map(|(call, _)| {
                let place = call.inputs.leaves().iter().position(|&&value| value == input)?;
                call.model.input_dtypes().get(place).copied().filter(|dtype| !dtype.is_float())
            })
        };
        (0..n_inputs).map(taken).collect()
    }

    /// Whether a call gives what the whole graph gives, so that it may leave its last step to the consumer.
    fn is_final(&self, idx: usize) -> bool {
        idx + 1 == self.calls.len() && self.outputs == self.calls[idx].0.outputs
    }

    fn run(&self, inputs: Nested<Tensor>, mode: Mode, consumer: Consumer) -> Result<Deferred> {
        let mut values: Vec<Option<Tensor>> = vec![None; self.n_values];
        for (value, tensor) in values.iter_mut().zip(inputs.into_leaves()) {
            *value = Some(tensor);
        }
        for (idx, (call, last_read)) in self.calls.iter().enumerate() {
            let x = Deferred::nested(read(&values, &call.inputs)?);
            last_read.iter().for_each(|&value| values[value] = None);
            if self.is_final(idx) {
                return call.model.forward_deferred(&x, mode, consumer);
            }
            let given = call.model.forward_deferred(&x, mode, Consumer::Anyone)?.nested_values()?;
            for (&value, tensor) in call.outputs.leaves().into_iter().zip(given.into_leaves()) {
                values[value] = Some(tensor);
            }
        }
        read(&values, &self.outputs).map(Deferred::nested)
    }
}

fn read(values: &[Option<Tensor>], numbers: &Nested<usize>) -> Result<Nested<Tensor>> {
    numbers.try_map(&mut |&number| match &values[number] {
        Some(tensor) => Ok(tensor.clone()),
        None => Err(Error::argument("functional", "the inputs are fewer than the graph was built for")),
    })
}

impl Layer for Functional {
    fn name(&self) -> &str {
        "functional"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_nested(&Nested::One(*input))
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        let graph = Rc::new(RefCell::new(Graph::default()));
        let outputs = (self.graph)(new_nodes(&graph, inputs))?;
        check_graph("functional", &outputs, &graph)?;
        let shapes = outputs.map(|node| node.shape);
        let values = outputs.map(|node| node.value);
        drop(outputs);
        let schedule = Schedule::new(graph.take(), values);
        let takes = schedule.takes(inputs.n_leaves());
        let forward = BuiltLayer::deferring(shapes, move |x, mode, consumer| {
            schedule.run(x.nested_values()?, mode, consumer)
        })?;
        Ok(BuiltLayer { takes, ..forward })
    }
}
