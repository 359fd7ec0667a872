//! What a layer is: a description that makes a function with variables.
//!
//! How a description becomes a model is the business of `build`.

use plimsoll_tensor::{DType, Device, Error, Nested, Result, Shape, Tensor, callers_place};

pub(crate) use crate::build::{OwnVariable, build};
pub use crate::build::{adopt_variable, buffer, variable};
use crate::deferred::{Consumer, Deferred, Norm};
use crate::layers::functional::{self, Node};
use crate::model::{Mode, Model};
use crate::policy::Policy;
use crate::prediction::Prediction;
use crate::shapes::IntoShapes;

/// A description of a layer: plain data, from which any number of models can be built.
///
/// A layer of one's own says its name and makes its function:
///
/// ```
/// use plimsoll_nn::{BuiltLayer, Layer, layers::Dense};
/// use plimsoll_tensor::{Result, Shape, Tensor};
///
/// /// A dense layer whose outputs are let through by another one's.
/// struct Gated { units: usize }
///
/// impl Layer for Gated {
///     fn name(&self) -> &str { "gated" }
///
///     fn make(&self, input: &Shape) -> Result<BuiltLayer> {
///         let value = Dense::new(self.units).named("value").build(input)?;
///         let gate = Dense::new(self.units).named("gate").build(input)?;
///         BuiltLayer::new(*value.output_shape(), move |x, mode| {
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
    /// batch of them, whose extent comes first. A layer of several tensors has [`Layer::make_nested`] instead.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let detail = format!("it takes several tensors, and was given one, {input}");
        Err(Error::shape("layer", detail))
    }

    /// Makes the variables and the function of a layer that takes several tensors, with [`BuiltLayer::nested`]. A layer of
    /// one tensor has [`Layer::make`] and refuses several.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        match inputs {
            Nested::One(input) => self.make(input),
            several => Err(Error::shape(
                "layer",
                format!(
                    "it takes one tensor, and was given {several}; `Concatenate` or `Add` make one of them"
                ),
            )),
        }
    }

    /// Builds the layer for examples of the shape `input`, which does not count the batch: one shape, or a tuple or named
    /// fields of shapes.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    #[track_caller]
    fn build(&self, input: impl IntoShapes) -> Result<Model>
    where
        Self: Sized,
    {
        let described = callers_place();
        let _line = plimsoll_tensor::at_callers_line();
        build(self, &input.into_shapes()?, described)
    }

    /// Applies the layer to nodes of a [`Functional`](crate::layers::Functional) graph, which builds it: one node, or a
    /// tuple or named fields of them.
    ///
    /// # Errors
    /// Shapes that the layer does not take; a layer that gives several tensors, see [`Layer::apply_nested`]; memory that
    /// is full.
    #[track_caller]
    fn apply(&self, inputs: impl Into<Nested<Node>>) -> Result<Node>
    where
        Self: Sized,
    {
        let described = callers_place();
        Node::try_from(functional::apply(self, inputs.into(), described)?)
    }

    /// As [`Layer::apply`], for a layer that gives several tensors.
    ///
    /// # Errors
    /// Shapes that the layer does not take; memory that is full.
    #[track_caller]
    fn apply_nested(&self, inputs: impl Into<Nested<Node>>) -> Result<Nested<Node>>
    where
        Self: Sized,
    {
        let described = callers_place();
        functional::apply(self, inputs.into(), described)
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

    /// This layer on a device: its variables are made there, and what goes into it is brought there. How a model is spread over
    /// several devices (model parallelism). A layer that is built in the scope of another device than the layers around it
    /// ([`Device::enter`]) is placed there all the same.
    ///
    /// ```
    /// use plimsoll_nn::{Layer, layers::{Dense, Sequential}};
    /// use plimsoll_tensor::{Device, Tensor};
    ///
    /// let (first, second) = (Device::separate_cpu(), Device::separate_cpu());
    /// let model = Sequential::new().add(Dense::new(8).on(&first)).add(Dense::new(3).on(&second)).build([4])?;
    /// assert_eq!(model.devices(), [first, second.clone()]);
    /// assert_eq!(model.call(&Tensor::zeros([2, 4])?)?.device(), second);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    #[doc(alias = "to")]
    fn on(self, device: &Device) -> With<Self>
    where
        Self: Sized,
    {
        With { device: Some(device.clone()), ..With::of(self) }
    }

    /// How the layer is to be built: what [`With`] adds to it.
    #[doc(hidden)]
    fn settings(&self) -> Settings {
        Settings::default()
    }

    /// The model that this is, if it has been built already.
    #[doc(hidden)]
    fn built(&self) -> Option<&Model> {
        None
    }
}

/// What can be said of any layer, besides its own description.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) is_named: bool,
    pub(crate) recompute: bool,
    pub(crate) frozen: bool,
    pub(crate) policy: Option<Policy>,
    pub(crate) device: Option<Device>,
}

/// A layer with a name, a policy, a device, recomputing or freezing: see the methods of [`Layer`].
#[derive(Clone, Debug)]
pub struct With<L> {
    layer: L,
    name: Option<String>,
    recompute: bool,
    frozen: bool,
    pure: bool,
    policy: Option<Policy>,
    device: Option<Device>,
}

impl<L> With<L> {
    fn of(layer: L) -> With<L> {
        With { layer, name: None, recompute: false, frozen: false, pure: false, policy: None, device: None }
    }
}

impl<L: Layer> Layer for With<L> {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.layer.name())
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        self.layer.make(input)
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        self.layer.make_nested(inputs)
    }

    fn built(&self) -> Option<&Model> {
        self.layer.built()
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
            device: self.device.clone().or(inner.device),
        }
    }
}

/// A function from a batch to a batch, and the shape of one example that comes out.
pub struct BuiltLayer {
    pub(crate) output: Nested<Shape>,
    /// The dtypes of its inputs, where it takes certain ones; none at all if it does not matter.
    pub(crate) takes: Vec<Option<DType>>,
    pub(crate) function: Box<Function>,
    /// Whether it begins with a norm, which can make the sum that it looks at.
    pub(crate) begins_with_norm: bool,
}

/// What a built layer does, for a certain consumer.
pub(crate) type Function = dyn Fn(&Deferred, Mode, Consumer) -> Result<Deferred> + Send + Sync;

impl BuiltLayer {
    /// A function whose outputs' examples have the shape `output`.
    ///
    /// # Errors
    /// A shape with too many dimensions.
    pub fn new(
        output: impl IntoShapes,
        function: impl Fn(&Tensor, Mode) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<BuiltLayer> {
        BuiltLayer::deferring(output, move |x, mode, _| function(&x.values()?, mode).map(Deferred::of))
    }

    /// A function of several tensors, or one that gives several; `output` are the shapes of one example of each. It takes
    /// a tuple or an array of tensors, or [`Nested`] ones as they come, and gives the same.
    ///
    /// ```
    /// use plimsoll_nn::{BuiltLayer, Layer};
    /// use plimsoll_tensor::{Nested, Result, Shape, Tensor};
    ///
    /// /// The difference of two inputs, and its square.
    /// struct Difference;
    ///
    /// impl Layer for Difference {
    ///     fn name(&self) -> &str { "difference" }
    ///
    ///     fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
    ///         let [left, _] = inputs.clone().try_into()?;
    ///         BuiltLayer::nested((left, left), |(left, right): (Tensor, Tensor), _| {
    ///             let difference = left.sub(&right)?;
    ///             Ok((difference.square()?, difference))
    ///         })
    ///     }
    /// }
    ///
    /// let model = Difference.build(([3], [3]))?;
    /// let outputs = model.forward_nested((Tensor::ones([2, 3])?, Tensor::zeros([2, 3])?), plimsoll_nn::Mode::Infer)?;
    /// assert_eq!(outputs.n_leaves(), 2);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A shape with too many dimensions.
    pub fn nested<I, O>(
        output: impl IntoShapes,
        function: impl Fn(I, Mode) -> Result<O> + Send + Sync + 'static,
    ) -> Result<BuiltLayer>
    where
        I: TryFrom<Nested<Tensor>, Error: Into<Error>>,
        O: Into<Nested<Tensor>>,
    {
        let output = output.into_shapes()?;
        let function = move |x: &Deferred, mode, _| {
            let inputs = I::try_from(x.nested_values()?).map_err(Into::into)?;
            Ok(Deferred::nested(function(inputs, mode)?.into()))
        };
        Ok(BuiltLayer { output, takes: Vec::new(), function: Box::new(function), begins_with_norm: false })
    }

    /// A function that may leave its last step to its consumer.
    pub(crate) fn deferring(
        output: impl IntoShapes,
        function: impl Fn(&Deferred, Mode, Consumer) -> Result<Deferred> + Send + Sync + 'static,
    ) -> Result<BuiltLayer> {
        let (output, function) = (output.into_shapes()?, Box::new(function));
        Ok(BuiltLayer { output, takes: Vec::new(), function, begins_with_norm: false })
    }

    /// A norm, which the shape stays under.
    pub(crate) fn norm(output: impl IntoShapes, norm: impl Norm) -> Result<BuiltLayer> {
        let forward = BuiltLayer::deferring(output, move |x, _, _| x.normed(&norm).map(Deferred::of))?;
        Ok(forward.begins_with_norm(true))
    }

    /// Whether the function begins with a norm.
    pub(crate) fn begins_with_norm(self, begins_with_norm: bool) -> BuiltLayer {
        BuiltLayer { begins_with_norm, ..self }
    }

    /// A function that ends in a linear one, or may: `prediction` gives what goes into that and its weights, so that a
    /// loss can compute with them.
    ///
    /// # Errors
    /// A shape with too many dimensions.
    pub fn ending_linear(
        output: impl IntoShapes,
        prediction: impl Fn(&Tensor, Mode) -> Result<Prediction> + Send + Sync + 'static,
    ) -> Result<BuiltLayer> {
        BuiltLayer::deferring(output, move |x, mode, _| prediction(&x.values()?, mode).map(Deferred::from))
    }

    /// This function with another one after it, which keeps the shapes, such as a softmax after a dense layer.
    #[must_use]
    pub fn then(self, after: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> BuiltLayer {
        let before = self.function;
        let function = move |x: &Deferred, mode, _| {
            let values = before(x, mode, Consumer::Anyone)?.nested_values()?;
            Ok(Deferred::nested(values.try_map(&mut |tensor| after(tensor))?))
        };
        BuiltLayer { function: Box::new(function), ..self }
    }

    /// This function as one of inputs of that dtype, such as the whole numbers that an embedding takes.
    pub fn takes(self, dtype: DType) -> BuiltLayer {
        BuiltLayer { takes: vec![Some(dtype)], ..self }
    }
}
