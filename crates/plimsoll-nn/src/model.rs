//! `Model`: a layer that has been built; a function with variables.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use plimsoll_tensor::{
    DType, Device, Error, IntoShape, Nested, Result, Shape, Site, Tensor, Variable, at_callers_line,
    current_scope, enter_layer, is_recording, recompute,
};

use crate::added_losses::collect;
use crate::deferred::{Consumer, Deferred};
use crate::layer::{BuiltLayer, Layer, OwnVariable, Settings, build};
use crate::placement::Placement;
use crate::policy::Policy;
use crate::prediction::Prediction;
use crate::shards::{self, Cut, Zero};
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
    /// The shapes of one example that goes in.
    pub input: Nested<Shape>,
    pub forward: BuiltLayer,
    pub placement: Placement,
    /// The variables that the layer itself made, not its parts.
    pub variables: Vec<OwnVariable>,
    pub parts: Vec<Model>,
    pub policy: Policy,
    pub recompute: bool,
    /// Whether the layer itself does the same at every call, whatever its parts do.
    pub is_pure: bool,
    /// The variables that were cut into shards as they were made, if some were.
    pub cut: Option<Cut>,
}

impl Model {
    pub(crate) fn new(parts: Parts) -> Model {
        Model(Arc::new(parts))
    }

    /// Takes the shards into which its variables were cut as they were made.
    pub(crate) fn take_shards(&self) -> Option<Zero> {
        let own = shards::take(self.0.cut.as_ref());
        own.or_else(|| self.0.parts.iter().find_map(Model::take_shards))
    }

    /// The output for a batch of inputs, one tensor or several: as a step of training while a tape records, else as
    /// inference.
    ///
    /// # Errors
    /// Inputs that do not fit; a model that gives several tensors, see [`Model::forward_nested`]; memory that is full.
    #[track_caller]
    pub fn call(&self, inputs: impl Into<Nested<Tensor>>) -> Result<Tensor> {
        let _line = at_callers_line();
        self.forward(inputs, if is_recording() { Mode::Train } else { Mode::Infer })
    }

    /// The output for a batch of inputs, one tensor or several: `model.forward(&x, mode)`, `model.forward((&x, &y), mode)`.
    ///
    /// # Errors
    /// Inputs that do not fit; a model that gives several tensors, see [`Model::forward_nested`]; memory that is full.
    #[track_caller]
    pub fn forward(&self, inputs: impl Into<Nested<Tensor>>, mode: Mode) -> Result<Tensor> {
        let _line = at_callers_line();
        self.forward_deferred(&Deferred::nested(inputs.into()), mode, Consumer::Anyone)?.values()
    }

    /// All outputs for a batch of inputs, of a model that gives one tensor or several.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn forward_nested(&self, inputs: impl Into<Nested<Tensor>>, mode: Mode) -> Result<Nested<Tensor>> {
        let _line = at_callers_line();
        self.forward_deferred(&Deferred::nested(inputs.into()), mode, Consumer::Anyone)?.nested_values()
    }

    /// The output for a batch of inputs, with its last linear function left to a loss if the model ends in one.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn prediction(&self, inputs: impl Into<Nested<Tensor>>, mode: Mode) -> Result<Prediction> {
        let _line = at_callers_line();
        self.forward_deferred(&Deferred::nested(inputs.into()), mode, Consumer::Loss)?.into_prediction()
    }

    /// What this makes of what another layer gave, as far as the consumer does not do it.
    pub(crate) fn forward_deferred(&self, x: &Deferred, mode: Mode, consumer: Consumer) -> Result<Deferred> {
        let open = OpenModels::enter();
        if open.n_outside > 0 && mode == Mode::Train && self.0.name.is_empty() {
            self.check_trained_inside()?;
        }
        let _layer = enter_layer(&self.0.name, self.0.described);
        self.flow_inside(x, mode, consumer)
    }

    /// Refuses a model of its own that is called inside another one, which does not know its variables: they would not be
    /// trained, saved or named.
    fn check_trained_inside(&self) -> Result<()> {
        match self.trainable_variables().first() {
            None => Ok(()),
            Some(variable) => Err(Error::argument(
                "model",
                format!(
                    "a model that was built by itself is called inside another one, which would not train its variables, such \
                     as {:?}; in `make`, call `build` on it and use what that gives, or freeze it",
                    variable.name()
                ),
            )),
        }
    }

    /// As [`Model::forward_deferred`], in the layer that is open.
    fn flow_inside(&self, x: &Deferred, mode: Mode, consumer: Consumer) -> Result<Deferred> {
        let brought = self.0.placement.copy_here(x)?;
        let x = brought.as_ref().unwrap_or(x);
        let cast = x.cast(self.0.policy)?;
        let x = cast.as_ref().unwrap_or(x);
        if self.0.recompute && is_recording() {
            let (model, inputs) = (self.clone(), x.nested_values()?);
            let arrangement = inputs.map(|_| ());
            let rerun = move |inputs: &[Tensor]| {
                let mut inputs = inputs.iter().cloned();
                let inputs = arrangement.try_map(&mut |()| {
                    inputs.next().ok_or_else(|| Error::argument("recompute", "an input is missing"))
                })?;
                let (given, added) = collect(|| model.run(&Deferred::nested(inputs), mode, Consumer::Anyone));
                match added.is_empty() {
                    true => given?.values(),
                    // No gradient would flow through them: what is inside is not recorded.
                    false => Err(Error::argument(
                        "add_loss",
                        "a layer that is recomputed cannot add a loss".to_owned(),
                    )),
                }
            };
            return recompute(&inputs.leaves(), rerun).map(Deferred::of);
        }
        self.run(x, mode, consumer)
    }

    fn run(&self, x: &Deferred, mode: Mode, consumer: Consumer) -> Result<Deferred> {
        let run = || {
            x.check_arrangement(&self.0.input)?;
            let is_as_built = x.is_of(&self.0.input);
            let flow = (self.0.forward.function)(x, mode, consumer)?.materialize_for(consumer)?;
            match flow.differs_from(&self.0.forward.output) {
                Some(given) if is_as_built => Err(self.broken_promise(&given)),
                _ => Ok(flow),
            }
        };
        run().map_err(|error| error.in_layer(&self.path_here(), self.described()))
    }

    /// The error of a layer that gives other shapes than it said when it was built.
    fn broken_promise(&self, given: &Nested<Shape>) -> Error {
        Error::shape(
            "layer",
            format!(
                "{} promised examples of {} and gave a batch of {given}; what `make` says and what its function gives \
                 must agree",
                self.0.kind, self.0.forward.output
            ),
        )
    }

    /// The path of this model where it runs: its own, or a longer one inside a model that it was nested in later.
    fn path_here(&self) -> String {
        let scope = current_scope();
        if scope.ends_with(&self.0.path) { scope } else { self.0.path.clone() }
    }

    /// Whether it begins with a norm, which can make the sum that it looks at.
    pub(crate) fn begins_with_norm(&self) -> bool {
        self.0.forward.begins_with_norm && !self.0.recompute
    }

    /// What it is to the layer before it.
    pub(crate) fn as_consumer(&self) -> Consumer {
        if self.begins_with_norm() { Consumer::Norm } else { Consumer::Anyone }
    }

    /// The output for a batch without a tape and without training; no more than one layer's input and output are held
    /// at a time.
    ///
    /// # Errors
    /// Inputs that do not fit; memory that is full.
    #[track_caller]
    pub fn infer(&self, inputs: impl Into<Nested<Tensor>>) -> Result<Tensor> {
        self.forward(inputs, Mode::Infer)
    }

    /// The shape of one example that goes in; of several tensors, the first one's.
    pub fn input_shape(&self) -> &Shape {
        self.0.input.first().unwrap_or(&Shape::SCALAR)
    }

    /// The shapes of one example that goes in.
    pub fn input_shapes(&self) -> &Nested<Shape> {
        &self.0.input
    }

    /// The dtype of what goes in: whole numbers for a model that begins with an embedding, else floats. Of several tensors,
    /// the first one's.
    pub fn input_dtype(&self) -> DType {
        self.input_dtypes().first().copied().unwrap_or_else(|| self.0.policy.compute_dtype())
    }

    /// The dtypes of all tensors that go in, in order.
    pub fn input_dtypes(&self) -> Vec<DType> {
        let (n, takes) = (self.0.input.n_leaves(), &self.0.forward.takes);
        let of_first = || self.0.parts.first().map(Model::input_dtypes).filter(|dtypes| dtypes.len() == n);
        let known = takes.is_empty().then(of_first).flatten();
        let taken = |idx: usize| takes.get(idx).copied().flatten();
        let dtype = |idx| taken(idx).unwrap_or_else(|| self.0.policy.compute_dtype());
        known.unwrap_or_else(|| (0..n).map(dtype).collect())
    }

    /// Whether it can be applied to examples of these shapes: of its own ranks, and with its own last extents.
    pub(crate) fn takes_shapes(&self, shapes: &Nested<Shape>) -> bool {
        let alike = |(ours, theirs): (&Shape, &Shape)| {
            ours.rank() == theirs.rank() && ours.dims().last() == theirs.dims().last()
        };
        self.0.input.is_like(shapes) && self.0.input.leaves().into_iter().zip(shapes.leaves()).all(alike)
    }

    /// The shape of one example that comes out; of several tensors, the first one's.
    pub fn output_shape(&self) -> &Shape {
        self.0.forward.output.first().unwrap_or(&Shape::SCALAR)
    }

    /// The shapes of one example that comes out.
    pub fn output_shapes(&self) -> &Nested<Shape> {
        &self.0.forward.output
    }

    /// The name inside the model around it; empty for the outermost.
    pub fn name(&self) -> &str {
        &self.0.name
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

    /// The device that it was built on.
    pub fn device(&self) -> &Device {
        self.0.placement.device()
    }

    /// The devices of its variables, in the order in which they come up; that of the model itself if it has none.
    pub fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for variable in self.variables() {
            if !devices.contains(&variable.device()) {
                devices.push(variable.device());
            }
        }
        if devices.is_empty() {
            devices.push(self.device().clone());
        }
        devices
    }

    /// Whether its layers are on several devices, so that values travel between them.
    pub(crate) fn is_spread(&self) -> bool {
        self.0.placement.is_spread()
    }

    /// The layers that it is made of.
    pub fn parts(&self) -> &[Model] {
        &self.0.parts
    }

    /// The layer at a path inside it, such as `encoder.dense_1`.
    ///
    /// # Errors
    /// There is none; the error lists the layers that are where the path ends.
    pub fn layer(&self, path: &str) -> Result<&Model> {
        path.split('.').try_fold(self, |model, name| {
            let part = model.0.parts.iter().find(|part| part.0.name == name);
            part.ok_or_else(|| {
                let names: Vec<&str> = model.0.parts.iter().map(Model::name).collect();
                let detail = format!("there is no {name:?} of {path:?}; there are {}", names.join(", "));
                Error::argument("layer", detail)
            })
        })
    }

    /// The variables that it made itself, without those of its parts.
    pub fn own_variables(&self) -> Vec<Variable> {
        self.0.variables.iter().map(|own| own.variable.clone()).collect()
    }

    /// All variables: its own, then those of its parts; one that several of them share is there once.
    pub fn variables(&self) -> Vec<Variable> {
        self.named_variables().into_iter().map(|(_, variable)| variable).collect()
    }

    /// All variables with their names, which say by which layers of this model they are reached. A model that is nested in
    /// another one has longer names there.
    pub fn named_variables(&self) -> Vec<(String, Variable)> {
        self.named_variables_in("")
    }

    /// The same, inside a model where this one has a path.
    pub(crate) fn named_variables_in(&self, path: &str) -> Vec<(String, Variable)> {
        let mut named: Vec<(String, Variable)> = Vec::new();
        self.collect(path, &mut |path, own| {
            if named.iter().all(|(_, known)| *known != own.variable) {
                named.push((join(path, &own.name), own.variable.clone()));
            }
        });
        named
    }

    fn collect(&self, path: &str, f: &mut impl FnMut(&str, &OwnVariable)) {
        self.0.variables.iter().for_each(|own| f(path, own));
        self.0.parts.iter().for_each(|part| part.collect(&join(path, &part.0.name), f));
    }

    /// Freezes all its layers, or has them trained again: Keras's `layer.trainable`. Running statistics stay as they are. A
    /// run takes it up with its next step; what its optimizer knows of a frozen variable is there when it is trained again.
    pub fn set_trainable(&self, trainable: bool) {
        self.collect("", &mut |_, own| {
            if !own.is_buffer {
                _ = own.variable.clone().trainable(trainable);
            }
        });
    }

    /// This model as a part of another one, under a name there.
    pub(crate) fn nested_as(
        &self,
        (name, kind, path): (&str, &str, &str),
        described: Site,
        settings: &Settings,
        placement: Placement,
    ) -> Model {
        let (parts, model) = (&self.0, self.clone());
        let forward = BuiltLayer {
            output: parts.forward.output.clone(),
            takes: self.input_dtypes().into_iter().map(Some).collect(),
            function: Box::new(move |x, mode, consumer| model.flow_inside(x, mode, consumer)),
            begins_with_norm: self.begins_with_norm(),
        };
        Model::new(Parts {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path: path.to_owned(),
            described,
            input: parts.input.clone(),
            forward,
            placement,
            variables: parts.variables.clone(),
            parts: parts.parts.clone(),
            policy: parts.policy,
            recompute: settings.recompute && !parts.recompute && parts.forward.output.one().is_some(),
            is_pure: parts.is_pure,
            cut: parts.cut.clone(),
        })
    }

    /// The variables that training changes.
    pub fn trainable_variables(&self) -> Vec<Variable> {
        let mut variables = self.variables();
        variables.retain(Variable::is_trainable);
        variables
    }

    /// Whether it does the same at every call, with all its parts: see [`Layer::is_pure`].
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
        Summary::of(self, &self.0.input.try_map(&mut |input| batch_of(batch, input))?)
    }
}

/// A model that has been built, as a layer of another one: a part with the variables that it has. Applied several times, it is
/// one part, and its variables are shared.
impl Layer for Model {
    fn name(&self) -> &str {
        if self.0.name.is_empty() { &self.0.kind } else { &self.0.name }
    }

    fn built(&self) -> Option<&Model> {
        Some(self)
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.make_nested(&Nested::One(*input))
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        let part = build(self, inputs, Site::UNKNOWN)?;
        BuiltLayer::deferring(part.output_shapes().clone(), move |x, mode, consumer| {
            part.forward_deferred(x, mode, consumer)
        })
    }

    fn is_pure(&self) -> bool {
        self.0.is_pure
    }
}

thread_local!(static N_OPEN: Cell<usize> = const { Cell::new(0) });

/// The models that are being called on this thread; one fewer when it is dropped.
struct OpenModels {
    n_outside: usize,
}

impl OpenModels {
    fn enter() -> OpenModels {
        let n_outside = N_OPEN.get();
        N_OPEN.set(n_outside + 1);
        OpenModels { n_outside }
    }
}

impl Drop for OpenModels {
    fn drop(&mut self) {
        N_OPEN.set(self.n_outside);
    }
}

/// A path and a name in it.
pub(crate) fn join(path: &str, name: &str) -> String {
    match (path, name) {
        ("", name) => name.to_owned(),
        (path, "") => path.to_owned(),
        (path, name) => format!("{path}.{name}"),
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
        write!(f, "Model({} {:?}, {} → {})", self.0.kind, self.0.path, self.0.input, self.output_shapes())
    }
}
