//! What a layer is: a description that makes a function with variables.
//!
//! While a layer is being made, [`variable`] names what it makes by the path of the layers around it and notes it for
//! the model; layers that it builds are noted as its parts. Nothing has to be listed by hand, so nothing can be
//! forgotten.

use std::cell::RefCell;

use plimsoll_tensor::{
    DType, IntoShape, Owner, Result, Shape, Site, Tensor, Variable, callers_place, current_scope,
    enter_layer, with_own_places, with_owner,
};

use crate::flow::{Flow, Norm, Reader};
use crate::initializer::{Fans, Initializer};
use crate::model::{Mode, Model};
use crate::policy::{Policy, current_policy, with_policy};
use crate::prediction::Prediction;

/// A description of a layer: plain data, from which any number of models can be built.
///
/// A layer of one's own says its name and makes its function:
///
/// ```
/// use plimsoll_nn::{Forward, Layer, layers::Dense};
/// use plimsoll_tensor::{Result, Shape, Tensor};
///
/// /// A dense layer whose outputs are let through by another one's.
/// struct Gated { units: usize }
///
/// impl Layer for Gated {
///     fn name(&self) -> &str { "gated" }
///
///     fn make(&self, input: &Shape) -> Result<Forward> {
///         let value = Dense::new(self.units).named("value").build(input)?;
///         let gate = Dense::new(self.units).named("gate").build(input)?;
///         Forward::new(*value.output_shape(), move |x, mode| {
///             value.forward(x, mode)?.mul(&gate.forward(x, mode)?.sigmoid()?)
///         })
///     }
/// }
///
/// let model = Gated { units: 3 }.build([4])?;
/// let names: Vec<String> = model.variables().iter().map(|variable| variable.name()).collect();
/// assert_eq!(names, ["value.kernel", "value.bias", "gate.kernel", "gate.bias"]);
/// assert_eq!(model.call(&Tensor::zeros([2, 4])?)?.shape().dims(), [2, 3]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub trait Layer: Send {
    /// The name of the kind of layer, which paths use unless [`Layer::named`] gives one.
    fn name(&self) -> &str;

    /// Makes the variables and the function, for inputs whose examples have the shape `input`; the function gets a
    /// batch of them, whose extent comes first.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    fn make(&self, input: &Shape) -> Result<Forward>;

    /// Builds the layer for examples of the shape `input`, which does not count the batch.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    #[track_caller]
    fn build(&self, input: impl IntoShape) -> Result<Model>
    where
        Self: Sized,
    {
        let described = callers_place();
        let _line = plimsoll_tensor::at_callers_line();
        build(self, &input.into_shape()?, described)
    }

    /// This layer under a name of its own.
    fn named(self, name: &str) -> With<Self>
    where
        Self: Sized,
    {
        With { name: Some(name.to_owned()), ..With::of(self) }
    }

    /// This layer, keeping nothing for backward but its input: backward runs it again. The numbers are the same.
    fn recompute(self) -> With<Self>
    where
        Self: Sized,
    {
        With { recompute: true, ..With::of(self) }
    }

    /// This layer with variables that are not trained.
    fn frozen(self) -> With<Self>
    where
        Self: Sized,
    {
        With { frozen: true, ..With::of(self) }
    }

    /// Whether what the layer does depends on nothing but the shapes of its input, its description and the mode: then a
    /// step that was recorded once may be repeated without calling it. True of the layers here; of one's own, that is said
    /// by [`Layer::pure`].
    fn is_pure(&self) -> bool {
        false
    }

    /// This layer, declared to do the same at every call: see [`Layer::is_pure`]. A layer that looks at something that
    /// changes, such as a number that is annealed, must not be.
    fn pure(self) -> With<Self>
    where
        Self: Sized,
    {
        With { pure: true, ..With::of(self) }
    }

    /// This layer under a precision policy of its own.
    fn with_policy(self, policy: Policy) -> With<Self>
    where
        Self: Sized,
    {
        With { policy: Some(policy), ..With::of(self) }
    }

    /// How the layer is to be built: what [`With`] adds to it.
    #[doc(hidden)]
    fn settings(&self) -> Settings {
        Settings::default()
    }
}

/// What can be said of any layer, besides its own description.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub(crate) is_named: bool,
    pub(crate) recompute: bool,
    pub(crate) frozen: bool,
    pub(crate) policy: Option<Policy>,
}

/// A layer with a name, a policy, recomputing or freezing: see the methods of [`Layer`].
#[derive(Clone, Debug)]
pub struct With<L> {
    layer: L,
    name: Option<String>,
    recompute: bool,
    frozen: bool,
    pure: bool,
    policy: Option<Policy>,
}

impl<L> With<L> {
    fn of(layer: L) -> With<L> {
        With { layer, name: None, recompute: false, frozen: false, pure: false, policy: None }
    }
}

impl<L: Layer> Layer for With<L> {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.layer.name())
    }

    fn make(&self, input: &Shape) -> Result<Forward> {
        self.layer.make(input)
    }

    fn is_pure(&self) -> bool {
        self.pure || self.layer.is_pure()
    }

    fn settings(&self) -> Settings {
        let inner = self.layer.settings();
        Settings {
            is_named: inner.is_named || self.name.is_some(),
            recompute: inner.recompute || self.recompute,
            frozen: inner.frozen || self.frozen,
            policy: self.policy.or(inner.policy),
        }
    }
}

/// A function from a batch to a batch, and the shape of one example that comes out.
pub struct Forward {
    pub(crate) output: Shape,
    pub(crate) takes: Option<DType>,
    pub(crate) function: Box<Function>,
    /// Whether it begins with a norm, which can make the sum that it looks at.
    pub(crate) begins_with_norm: bool,
}

/// What a built layer does, for a certain reader.
pub(crate) type Function = dyn Fn(&Flow, Mode, Reader) -> Result<Flow> + Send + Sync;

impl Forward {
    /// A function whose outputs' examples have the shape `output`.
    ///
    /// # Errors
    /// A shape with too many dimensions.
    pub fn new(
        output: impl IntoShape,
        function: impl Fn(&Tensor, Mode) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Forward> {
        Forward::flowing(output, move |x, mode, _| function(&x.values()?, mode).map(Flow::of))
    }

    /// A function that may leave its last step to its reader.
    pub(crate) fn flowing(
        output: impl IntoShape,
        function: impl Fn(&Flow, Mode, Reader) -> Result<Flow> + Send + Sync + 'static,
    ) -> Result<Forward> {
        let (output, function) = (output.into_shape()?, Box::new(function));
        Ok(Forward { output, takes: None, function, begins_with_norm: false })
    }

    /// A norm, which the shape stays under.
    pub(crate) fn norm(output: impl IntoShape, norm: impl Norm) -> Result<Forward> {
        let forward = Forward::flowing(output, move |x, _, _| x.normed(&norm).map(Flow::of))?;
        Ok(forward.begins_with_norm(true))
    }

    /// Whether the function begins with a norm.
    pub(crate) fn begins_with_norm(self, begins_with_norm: bool) -> Forward {
        Forward { begins_with_norm, ..self }
    }

    /// A function that ends in a linear one, or may: `prediction` gives what goes into that and its weights, so that a
    /// loss can compute with them.
    ///
    /// # Errors
    /// A shape with too many dimensions.
    pub fn ending_linear(
        output: impl IntoShape,
        prediction: impl Fn(&Tensor, Mode) -> Result<Prediction> + Send + Sync + 'static,
    ) -> Result<Forward> {
        Forward::flowing(output, move |x, mode, _| prediction(&x.values()?, mode).map(Flow::from))
    }

    /// This function as one of inputs of that dtype, such as the whole numbers that an embedding takes.
    pub fn takes(self, dtype: DType) -> Forward {
        Forward { takes: Some(dtype), ..self }
    }
}

/// What has been made so far of a layer that is being built.
#[derive(Default)]
struct Frame {
    variables: Vec<Variable>,
    parts: Vec<Model>,
    frozen: bool,
}

thread_local!(static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) });

/// The frame of the layer that is being built; gone also if building it panics.
struct OpenFrame {
    n_below: usize,
}

impl OpenFrame {
    fn push(frozen: bool) -> OpenFrame {
        FRAMES.with_borrow_mut(|frames| {
            let frozen = frozen || frames.last().is_some_and(|frame| frame.frozen);
            frames.push(Frame { frozen, ..Frame::default() });
            OpenFrame { n_below: frames.len() - 1 }
        })
    }

    fn pop(self) -> Frame {
        FRAMES.with_borrow_mut(|frames| frames.pop()).unwrap_or_default()
    }
}

impl Drop for OpenFrame {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| frames.truncate(self.n_below));
    }
}

/// Builds a layer for examples of the shape `input`, as a part of the layer that is being built, if one is.
pub(crate) fn build(layer: &dyn Layer, input: &Shape, described: Site) -> Result<Model> {
    let is_part = FRAMES.with(|frames| !frames.borrow().is_empty());
    build_as(layer, if is_part { layer.name() } else { "" }, input, described)
}

/// Builds a layer as a part that is called `name` and was described there; the outermost layer adds nothing to the path.
pub(crate) fn build_as(layer: &dyn Layer, name: &str, input: &Shape, described: Site) -> Result<Model> {
    let settings = layer.settings();
    let policy = settings.policy.unwrap_or_else(current_policy);
    let open = OpenFrame::push(settings.frozen);
    let (made, path) = {
        let _layer = enter_layer(name, described);
        let made = with_policy(policy, || with_own_places(|| layer.make(input)));
        (made, current_scope())
    };
    let frame = open.pop();
    let model = Model::new(crate::model::Parts {
        name: name.to_owned(),
        kind: layer.name().to_owned(),
        path: path.clone(),
        described,
        input: *input,
        forward: made.map_err(|error| error.in_layer(&path, described.place()))?,
        variables: frame.variables,
        parts: frame.parts,
        policy,
        recompute: settings.recompute,
        is_pure: layer.is_pure(),
    });
    FRAMES.with(|frames| {
        if let Some(outer) = frames.borrow_mut().last_mut() {
            outer.parts.push(model.clone());
        }
    });
    Ok(model)
}

/// Makes a trainable variable of the layer that is being built, under the policy of the moment: the master dtype, and
/// a copy to compute with where the policy is mixed.
///
/// # Errors
/// Memory that is full.
#[track_caller]
pub fn variable(name: &str, shape: impl IntoShape, initializer: Initializer, fans: Fans) -> Result<Variable> {
    let _line = plimsoll_tensor::at_callers_line();
    let policy = current_policy();
    let made = with_owner(Owner::Parameters, || initializer.tensor(shape, policy.variable_dtype(), fans))?;
    let frozen = FRAMES.with(|frames| frames.borrow().last().is_some_and(|frame| frame.frozen));
    let variable = Variable::new(made).named(&full_name(name)).trainable(!frozen);
    note(variable.mixed(policy.compute_dtype())?)
}

/// Makes a variable of the layer that is being built that is not trained and has no copy, such as running statistics.
///
/// # Errors
/// Memory that is full.
#[track_caller]
pub fn variable_apart(name: &str, shape: impl IntoShape, initializer: Initializer) -> Result<Variable> {
    let _line = plimsoll_tensor::at_callers_line();
    let shape = shape.into_shape()?;
    let made = with_owner(Owner::Parameters, || {
        initializer.tensor(shape, current_policy().variable_dtype(), Fans::of_elements(&shape))
    })?;
    note(Variable::new(made).named(&full_name(name)).trainable(false))
}

fn full_name(name: &str) -> String {
    match current_scope() {
        path if path.is_empty() => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

fn note(variable: Variable) -> Result<Variable> {
    FRAMES.with(|frames| {
        if let Some(frame) = frames.borrow_mut().last_mut() {
            frame.variables.push(variable.clone());
        }
    });
    Ok(variable)
}
