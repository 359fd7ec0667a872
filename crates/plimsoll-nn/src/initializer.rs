//! Initializers: the distributions that weights start from.

use plimsoll_tensor::{DType, IntoShape, Result, Shape, Tensor};

/// How a variable starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// One number everywhere.
    Constant(f64),
    /// A normal distribution around zero.
    Normal {
        /// The standard deviation.
        std: f64,
    },
    /// A normal distribution around zero, cut off at two standard deviations.
    TruncatedNormal {
        /// The standard deviation.
        std: f64,
    },
    /// Evenly from `-limit` to `limit`.
    Uniform {
        /// The largest magnitude.
        limit: f64,
    },
    /// Evenly within ±√(6 / (fan in + fan out)): Keras's default for weights.
    GlorotUniform,
    /// Normal with variance 2 / (fan in + fan out), cut off at two standard deviations.
    GlorotNormal,
    /// Evenly within ±√(6 / fan in), for relu.
    HeUniform,
    /// Normal with variance 2 / fan in, cut off at two standard deviations, for relu.
    HeNormal,
    /// Normal with variance 1 / fan in, cut off at two standard deviations.
    LecunNormal,
    /// Evenly within ±1 / √(fan in): PyTorch's default for weights and biases of linear maps and convolutions.
    FanInUniform,
}

/// How many numbers are summed up for one output, and for one input's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fans {
    /// Numbers summed up for one output.
    pub inputs: usize,
    /// Outputs that one input goes into.
    pub outputs: usize,
}

impl Fans {
    /// The fans of a variable that is no linear map; initializers that need fans take its elements.
    pub fn of_elements(shape: &Shape) -> Fans {
        Fans { inputs: shape.n_elems().max(1), outputs: shape.n_elems().max(1) }
    }
}

impl Initializer {
    /// A tensor that starts so. Random ones take one draw of the thread's generator.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn tensor(self, shape: impl IntoShape, dtype: DType, fans: Fans) -> Result<Tensor> {
        let (fan_in, fan_out) = (fans.inputs.max(1) as f64, fans.outputs.max(1) as f64);
        let evenly = |limit: f64, shape| Tensor::uniform(shape, -limit, limit, dtype);
        // A normal distribution that is cut off at two standard deviations is narrower than it was.
        let cut = |variance: f64, shape| {
            Tensor::truncated_normal(shape, 0.0, variance.sqrt() / CUT_NORMAL_STD, dtype)
        };
        let shape = shape.into_shape()?;
        match self {
            Initializer::Zeros => Tensor::zeros_of(shape, dtype),
            Initializer::Ones => Tensor::full_of(shape, 1.0, dtype),
            Initializer::Constant(value) => Tensor::full_of(shape, value, dtype),
            Initializer::Normal { std } => Tensor::normal(shape, 0.0, std, dtype),
            Initializer::TruncatedNormal { std } => Tensor::truncated_normal(shape, 0.0, std, dtype),
            Initializer::Uniform { limit } => evenly(limit, shape),
            Initializer::GlorotUniform => evenly((6.0 / (fan_in + fan_out)).sqrt(), shape),
            Initializer::GlorotNormal => cut(2.0 / (fan_in + fan_out), shape),
            Initializer::HeUniform => evenly((6.0 / fan_in).sqrt(), shape),
            Initializer::HeNormal => cut(2.0 / fan_in, shape),
            Initializer::LecunNormal => cut(1.0 / fan_in, shape),
            Initializer::FanInUniform => evenly(1.0 / fan_in.sqrt(), shape),
        }
    }
}

/// The standard deviation of a normal distribution of deviation 1 that is cut off at ±2.
const CUT_NORMAL_STD: f64 = 0.879_625_661_034_239_8;
