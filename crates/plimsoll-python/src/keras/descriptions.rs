//! Descriptions of layers: a kind and its options, and the line that described it.

use std::sync::Arc;

use plimsoll::nn::layer::Settings;
use plimsoll::nn::layers::{
    ActivationLayer, Add, AveragePooling2D, BatchNormalization, Bidirectional, Concatenate, Conv1D,
    Conv1DTranspose, Conv2D, Conv2DTranspose, Dense, DepthwiseConv2D, Dropout, Embedding, Flatten, GRU,
    GlobalAveragePooling1D, GlobalAveragePooling2D, GroupNormalization, LSTM, LayerNormalization,
    MaxPooling2D, Merge, MultiHeadAttention, Multiply, RMSNormalization, Reshape, SimpleRNN, Subtract,
};
use plimsoll::nn::{BuiltLayer, Layer, Policy, enter_policy};
use plimsoll::{Nested, Result, Shape};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::model::{Model, Place, at};
use super::nested::Shapes;
use super::options::{After, Options};
use super::raised;
use crate::lines;

/// A description that several may hold.
#[derive(Clone)]
pub struct Shared(Arc<dyn Layer + Send + Sync>);

impl Layer for Shared {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        self.0.make_nested(inputs)
    }

    fn is_pure(&self) -> bool {
        self.0.is_pure()
    }

    fn settings(&self) -> Settings {
        self.0.settings()
    }
}

/// A layer with a function after it that its kernel does not have built in, such as a softmax.
struct Activated {
    layer: Shared,
    after: After,
}

impl Layer for Activated {
    fn name(&self) -> &str {
        self.layer.name()
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        Ok(self.layer.make_nested(inputs)?.then(self.after))
    }

    fn is_pure(&self) -> bool {
        self.layer.is_pure()
    }
}

/// A function without variables.
struct Function(After);

impl Layer for Function {
    fn name(&self) -> &str {
        "activation"
    }

    fn make_nested(&self, inputs: &Nested<Shape>) -> Result<BuiltLayer> {
        ActivationLayer::new(plimsoll::Activation::None).make_nested(inputs).map(|none| none.then(self.0))
    }

    fn is_pure(&self) -> bool {
        true
    }
}

/// A layer that is described, and not built yet.
#[derive(Clone)]
#[pyclass(frozen, module = "plimsoll._core")]
pub struct Description {
    layer: Shared,
    policy: Policy,
    place: Place,
}

impl Description {
    /// Builds it for examples of these shapes, as described at its line.
    pub fn build(&self, inputs: &Nested<Shape>) -> Result<plimsoll::nn::Model> {
        let _policy = enter_policy(self.policy);
        at(&self.place, || self.layer.build(inputs))
    }
}

#[pymethods]
impl Description {
    /// The description of a layer of that kind, from a line of the user's code.
    #[new]
    fn new(
        kind: &str,
        options: Bound<'_, PyDict>,
        name: Option<&str>,
        policy: &str,
        place: Place,
    ) -> PyResult<Description> {
        let layer = describe(kind, &Options(options))?;
        let layer = match name {
            Some(name) => Shared(Arc::new(layer.named(name))),
            None => layer,
        };
        let policy =
            policy.parse().map_err(|error: plimsoll::Error| PyValueError::new_err(error.to_string()))?;
        Ok(Description { layer, policy, place })
    }

    /// The layer for examples of these shapes.
    #[pyo3(name = "build")]
    fn build_for(&self, py: Python<'_>, inputs: Shapes) -> PyResult<Model> {
        raised::call(py, || self.build(&inputs.0)).map(Model)
    }
}

fn shared(layer: impl Layer + Sync + 'static) -> Shared {
    Shared(Arc::new(layer))
}

fn after(layer: Shared, after: Option<After>) -> Shared {
    match after {
        Some(after) => shared(Activated { layer, after }),
        None => layer,
    }
}

fn describe(kind: &str, options: &Options<'_>) -> PyResult<Shared> {
    match kind {
        "dense" => dense(options),
        "conv1d" | "conv2d" | "conv1d_transpose" | "conv2d_transpose" | "depthwise_conv2d" => {
            convolution(kind, options)
        }
        "simple_rnn" | "lstm" | "gru" => recurrent(kind, options),
        "bidirectional" => bidirectional(options),
        "max_pooling2d" | "average_pooling2d" => pooling(kind, options),
        _ => other(kind, options),
    }
}

/// A layer with the bias that its options say.
macro_rules! with_bias {
    ($layer:expr, $options:expr) => {
        match $options.get::<bool>("use_bias")? {
            true => $layer.bias_initializer($options.initializer("bias_initializer")?),
            false => $layer.no_bias(),
        }
    };
}
fn dense(options: &Options<'_>) -> PyResult<Shared> {
    let (activation, then) = options.activation()?;
    let dense = Dense::new(options.get("units")?)
        .activation(activation)
        .kernel_initializer(options.initializer("kernel_initializer")?);
    Ok(after(shared(with_bias!(dense, options)), then))
}

/// What all convolutions have; `same` is whether the padding keeps the extents.
macro_rules! convolution {
    ($layer:expr, $options:expr, $activation:expr) => {{
        let layer = $layer
            .stride($options.get::<[usize; _]>("strides")?)
            .dilation($options.get::<[usize; _]>("dilation_rate")?)
            .activation($activation)
            .kernel_initializer($options.initializer("kernel_initializer")?);
        let layer = if $options.get("same")? { layer.same() } else { layer };
        with_bias!(layer, $options)
    }};
}

fn convolution(kind: &str, options: &Options<'_>) -> PyResult<Shared> {
    let (activation, then) = options.activation()?;
    let layer = match kind {
        "depthwise_conv2d" => {
            let layer = DepthwiseConv2D::new(options.get::<[usize; 2]>("kernel_size")?)
                .depth_multiplier(options.get("depth_multiplier")?);
            shared(convolution!(layer, options, activation))
        }
        "conv1d" => {
            let layer = Conv1D::new(options.get("filters")?, options.get::<[usize; 1]>("kernel_size")?);
            shared(convolution!(layer.groups(options.get("groups")?), options, activation))
        }
        "conv2d" => {
            let layer = Conv2D::new(options.get("filters")?, options.get::<[usize; 2]>("kernel_size")?);
            shared(convolution!(layer.groups(options.get("groups")?), options, activation))
        }
        "conv1d_transpose" => {
            let layer =
                Conv1DTranspose::new(options.get("filters")?, options.get::<[usize; 1]>("kernel_size")?);
            shared(convolution!(layer, options, activation))
        }
        _ => {
            let layer =
                Conv2DTranspose::new(options.get("filters")?, options.get::<[usize; 2]>("kernel_size")?);
            shared(convolution!(layer, options, activation))
        }
    };
    Ok(after(layer, then))
}

/// What all recurrent layers have.
macro_rules! recurrent {
    ($layer:expr, $options:expr) => {{
        let layer = $layer
            .kernel_initializer($options.initializer("kernel_initializer")?)
            .recurrent_initializer($options.initializer("recurrent_initializer")?);
        let layer = if $options.get("return_sequences")? { layer.return_sequences() } else { layer };
        with_bias!(layer, $options)
    }};
}

fn recurrent(kind: &str, options: &Options<'_>) -> PyResult<Shared> {
    let units = options.get("units")?;
    Ok(match kind {
        "simple_rnn" => {
            shared(recurrent!(SimpleRNN::new(units), options).activation(options.built_in_activation()?))
        }
        "lstm" => shared(recurrent!(LSTM::new(units), options)),
        _ => shared(recurrent!(GRU::new(units), options)),
    })
}

fn bidirectional(options: &Options<'_>) -> PyResult<Shared> {
    let (kind, inner): (String, Bound<'_, PyDict>) = options.get("layer")?;
    let merge = match options.get::<String>("merge_mode")?.as_str() {
        "concat" => Merge::Concatenate,
        "sum" => Merge::Sum,
        "mul" => Merge::Multiply,
        "ave" => Merge::Average,
        other => return Err(PyValueError::new_err(format!("there is no merge_mode {other:?}"))),
    };
    Ok(shared(Bidirectional::new(describe(&kind, &Options(inner))?).merge(merge)))
}

fn pooling(kind: &str, options: &Options<'_>) -> PyResult<Shared> {
    let window: [usize; 2] = options.get("pool_size")?;
    let stride: [usize; 2] = options.get("strides")?;
    Ok(match kind {
        "max_pooling2d" => shared(MaxPooling2D::new(window).stride(stride)),
        _ => shared(AveragePooling2D::new(window).stride(stride)),
    })
}

fn other(kind: &str, options: &Options<'_>) -> PyResult<Shared> {
    Ok(match kind {
        "activation" => match options.activation()? {
            (activation, None) => shared(ActivationLayer::new(activation)),
            (_, Some(function)) => shared(Function(function)),
        },
        "add" => shared(Add::new()),
        "subtract" => shared(Subtract::new()),
        "multiply" => shared(Multiply::new()),
        "concatenate" => shared(Concatenate::new(options.get("axis")?)),
        "dropout" => shared(Dropout::new(options.get("rate")?)),
        "embedding" => {
            let layer = Embedding::new(options.get("input_dim")?, options.get("output_dim")?);
            shared(layer.embeddings_initializer(options.initializer("embeddings_initializer")?))
        }
        "flatten" => shared(Flatten::new()),
        "reshape" => shared(Reshape::new(options.get::<Vec<isize>>("target_shape")?)),
        "global_average_pooling1d" => shared(GlobalAveragePooling1D::new()),
        "global_average_pooling2d" => shared(GlobalAveragePooling2D::new()),
        "batch_normalization" => {
            let layer = BatchNormalization::new().momentum(options.get("momentum")?);
            shared(layer.epsilon(options.get("epsilon")?).named(kind))
        }
        "layer_normalization" => {
            shared(LayerNormalization::new().epsilon(options.get("epsilon")?).named(kind))
        }
        "rms_normalization" => shared(RMSNormalization::new().epsilon(options.get("epsilon")?).named(kind)),
        "group_normalization" => {
            let layer = GroupNormalization::new(options.get("groups")?);
            shared(layer.epsilon(options.get("epsilon")?).named(kind))
        }
        "multi_head_attention" => {
            let layer = MultiHeadAttention::new(options.get("num_heads")?)
                .kernel_initializer(options.initializer("kernel_initializer")?);
            let layer = if options.get("use_causal_mask")? { layer.causal() } else { layer };
            let layer = if options.get("use_bias")? { layer } else { layer.no_bias() };
            shared(layer.named(kind))
        }
        _ => return Err(PyValueError::new_err(format!("there is no layer {kind:?}"))),
    })
}

/// The line of the user's code that is running.
#[pyfunction]
fn user_line(py: Python<'_>) -> PyResult<Place> {
    Ok(lines::user_line(py)?.map(|(file, line)| (file.to_string(), line)))
}

/// Adds what Python calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(user_line, module)?)?;
    module.add_class::<Description>()
}
