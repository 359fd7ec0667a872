//! `Model`: a layer that has been built; a function with variables.

use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{
    DType, IntoShape, Result, Shape, Site, Tensor, Variable, at_callers_line, enter_layer, is_recording,
    recompute,
};

use crate::flow::{Flow, Reader};
use crate::layer::Forward;
use crate::policy::Policy;
use crate::prediction::Prediction;
use crate::summary::Summary;

/// Whether a forward pass is one of training: dropout drops, and batch norm takes its statistics from the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A step of training.
    Train,
    /// The model is only asked.
    Infer,
}

/// A built layer of any size: cheap to clone, equal to its clones.
#[derive(Clone)]
pub struct Model(Arc<Parts>);

/// What a model is made of.
pub(crate) struct Parts {
    /// The name inside the model around it; empty for the outermost.
    pub name: String,
    /// The name of the kind of layer.
    pub kind: String,
    /// The names from the outermost model down to this one.
    pub path: String,
    /// Where the layer was described; unknown where the one around it says enough.
    pub described: Site,
    /// The shape of one example that goes in.
    pub input: Shape,
    pub forward: Forward,
    /// The variables that the layer itself made, not its parts.
    pub variables: Vec<Variable>,
    pub parts: Vec<Model>,
    pub policy: Policy,
    pub recompute: bool,
    /// Whether the layer itself does the same at every call, whatever its parts do.
    pub is_pure: bool,
}

impl Model {
    pub(crate) fn new(parts: Parts) -> Model {
        Model(Arc::new(parts))
    }

    /// The output for a batch of inputs: as a step of training while a tape records, else as inference.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn call(&self, x: &Tensor) -> Result<Tensor> {
        let _line = at_callers_line();
        self.forward(x, if is_recording() { Mode::Train } else { Mode::Infer })
    }

    /// The output for a batch of inputs.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let _line = at_callers_line();
        self.flow(&Flow::of(x.clone()), mode, Reader::Anyone)?.values()
    }

    /// The output for a batch of inputs, with its last linear function left to a loss if the model ends in one.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn prediction(&self, x: &Tensor, mode: Mode) -> Result<Prediction> {
        let _line = at_callers_line();
        self.flow(&Flow::of(x.clone()), mode, Reader::Loss)?.into_prediction()
    }

    /// What this makes of what another layer gave, as far as the reader does not do it.
    pub(crate) fn flow(&self, x: &Flow, mode: Mode, reader: Reader) -> Result<Flow> {
        let run = || {
            let cast = x.cast(self.0.policy)?;
            let x = cast.as_ref().unwrap_or(x);
            if self.0.recompute && is_recording() {
                let model = self.clone();
                let again = move |inputs: &[Tensor]| {
                    model.run(&Flow::of(inputs[0].clone()), mode, Reader::Anyone)?.values()
                };
                return recompute(&[&x.values()?], again).map(Flow::of);
            }
            self.run(x, mode, reader)
        };
        let _layer = enter_layer(&self.0.name, self.0.described);
        run()
    }

    fn run(&self, x: &Flow, mode: Mode, reader: Reader) -> Result<Flow> {
        let flow = (self.0.forward.function)(x, mode, reader).and_then(|flow| flow.settled(reader));
        flow.map_err(|error| error.in_layer(&self.0.path, self.described()))
    }

    /// Whether it begins with a norm, which can make the sum that it looks at.
    pub(crate) fn begins_with_norm(&self) -> bool {
        self.0.forward.begins_with_norm && !self.0.recompute
    }

    /// What it is to the layer before it.
    pub(crate) fn as_reader(&self) -> Reader {
        if self.begins_with_norm() { Reader::Norm } else { Reader::Anyone }
    }

    /// The output for a batch without a tape and without training; no more than one layer's input and output are held
    /// at a time.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn infer(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x, Mode::Infer)
    }

    /// The shape of one example that goes in.
    pub fn input_shape(&self) -> &Shape {
        &self.0.input
    }

    /// The dtype of what goes in: whole numbers for a model that begins with an embedding, else floats.
    pub fn input_dtype(&self) -> DType {
        let first = || self.0.parts.first().map(Model::input_dtype);
        self.0.forward.takes.or_else(first).unwrap_or_else(|| self.0.policy.compute_dtype())
    }

    /// The shape of one example that comes out.
    pub fn output_shape(&self) -> &Shape {
        &self.0.forward.output
    }

    /// The kind of layer that this was built from.
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// The names from the outermost model down to this one, such as `encoder.dense_1`; empty for the outermost.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// File and line of the place that described it: where it was added to others, or built.
    pub fn described(&self) -> Option<(&'static str, u32)> {
        self.0.described.place()
    }

    /// The precision policy that it was built under.
    pub fn policy(&self) -> Policy {
        self.0.policy
    }

    /// The layers that it is made of.
    pub fn parts(&self) -> &[Model] {
        &self.0.parts
    }

    /// The variables that it made itself, without those of its parts.
    pub fn own_variables(&self) -> &[Variable] {
        &self.0.variables
    }

    /// All variables: its own, then those of its parts.
    pub fn variables(&self) -> Vec<Variable> {
        let mut variables = Vec::new();
        self.collect(&mut variables);
        variables
    }

    /// The variables that training changes.
    pub fn trainable_variables(&self) -> Vec<Variable> {
        let mut variables = self.variables();
        variables.retain(Variable::is_trainable);
        variables
    }

    fn collect(&self, variables: &mut Vec<Variable>) {
        variables.extend(self.0.variables.iter().cloned());
        self.0.parts.iter().for_each(|part| part.collect(variables));
    }

    /// Whether it does the same at every call, with all its parts: see [`Layer::is_pure`](crate::Layer::is_pure).
    pub fn is_pure(&self) -> bool {
        self.0.is_pure && self.0.parts.iter().all(Model::is_pure)
    }

    /// The number of weights.
    pub fn n_parameters(&self) -> usize {
        self.variables().iter().map(|variable| variable.n_elems()).sum()
    }

    /// A table of the layers: shapes, parameters, and the bytes that each keeps for backward at a batch of `batch`.
    /// It is found on a ghost, without arithmetic.
    ///
    /// # Errors
    /// Those of the layers.
    #[track_caller]
    pub fn summary(&self, batch: usize) -> Result<Summary> {
        Summary::of(self, &batch_of(batch, &self.0.input)?)
    }
}

/// The shape of a batch of examples.
pub(crate) fn batch_of(batch: usize, example: &Shape) -> Result<Shape> {
    let dims: Vec<usize> = std::iter::once(batch).chain(example.dims().iter().copied()).collect();
    dims.into_shape()
}

impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Model {}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Model({} {:?}, {} → {})", self.0.kind, self.0.path, self.0.input, self.output_shape())
    }
}
