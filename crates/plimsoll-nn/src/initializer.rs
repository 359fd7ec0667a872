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
    #[doc(alias = "RandomNormal")]
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
    #[doc(alias = "RandomUniform")]
    Uniform {
        /// The largest magnitude.
        limit: f64,
    },
    /// Evenly within ±√(6 / (fan in + fan out)): Keras's default for weights.
    #[doc(alias = "xavier_uniform_")]
    GlorotUniform,
    /// Normal with variance 2 / (fan in + fan out), cut off at two standard deviations.
    #[doc(alias = "xavier_normal_")]
    GlorotNormal,
    /// Evenly within ±√(6 / fan in), for relu.
    #[doc(alias = "kaiming_uniform_")]
    HeUniform,
    /// Normal with variance 2 / fan in, cut off at two standard deviations, for relu.
    #[doc(alias = "kaiming_normal_")]
    HeNormal,
    /// Normal with variance 1 / fan in, cut off at two standard deviations.
    LecunNormal,
    /// Evenly within ±1 / √(fan in): PyTorch's default for weights and biases of linear maps and convolutions.
    FanInUniform,
    /// A matrix whose rows are orthogonal and have length 1, or its columns if it has fewer of them; evenly among all
    /// such matrices. The last dimension counts as the columns. Keras's default for weights of hidden states.
    Orthogonal,
    /// Zeros, with ones in the second of four equal parts: the bias of an LSTM whose forget gates begin open.
    UnitForget,
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
            Initializer::Orthogonal => orthogonal(&shape, dtype),
            Initializer::UnitForget => unit_forget(&shape, dtype),
        }
    }
}

/// The standard deviation of a normal distribution of deviation 1 that is cut off at ±2.
const CUT_NORMAL_STD: f64 = 0.879_625_661_034_239_8;

/// A random orthogonal matrix: the one nearest to a matrix of normal numbers, which favours no direction.
///
/// It is found by Newton's iteration `X = (3 - X Xᵀ) X / 2`, which draws every singular value between 0 and √3 towards 1.
/// What singular values normal numbers give is known, hence also how many rounds it takes, and nothing is read back.
fn orthogonal(shape: &Shape, dtype: DType) -> Result<Tensor> {
    let n_cols = shape.dims().last().copied().unwrap_or(1);
    let n_rows = shape.n_elems() / n_cols.max(1);
    let (short, long) = (n_rows.min(n_cols), n_rows.max(n_cols));
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    // The singular values lie between √long - √short and √long + √short, but for a chance that vanishes outside.
    let greatest = (long as f64).sqrt() + (short as f64).sqrt() + 4.0;
    let n_rounds = if long >= 2 * short { ROUNDS_OF_OBLONG } else { ROUNDS_OF_SQUARE };
    let mut x = Tensor::normal([short, long], 0.0, 1.0 / greatest, wide)?;
    for _ in 0..n_rounds {
        let products = x.matmul(&x.t()?)?;
        let correction = products.matmul(&x)?.into_affine(-0.5, 0.0)?;
        x = x.into_affine(1.5, 0.0)?.add(&correction)?;
    }
    let x = if n_rows <= n_cols { x } else { x.t()? };
    x.cast(dtype)?.reshape(*shape)
}

/// Rounds until all singular values of a matrix with one side twice the other, or more, are 1 to the last place of f64:
/// the least begins above 0.1, a round lets it grow by half while it is small and squares its distance from 1 later.
const ROUNDS_OF_OBLONG: usize = 12;

/// The same for a square matrix, whose least singular value is below a millionth of the greatest with a chance of one
/// in a hundred thousand.
const ROUNDS_OF_SQUARE: usize = 42;

/// Zeros, with ones in the second of four equal parts.
fn unit_forget(shape: &Shape, dtype: DType) -> Result<Tensor> {
    let quarter = shape.n_elems() / 4;
    let part = |len: usize, value: f64| Tensor::full_of([len], value, dtype);
    let rest = shape.n_elems() - 2 * quarter;
    Tensor::concat(&[&part(quarter, 0.0)?, &part(quarter, 1.0)?, &part(rest, 0.0)?], 0)?.reshape(*shape)
}
