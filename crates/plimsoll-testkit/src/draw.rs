//! Values for inputs and weights for outputs.
//!
//! Values depend on a key alone, made of the names of op and sample: a test that fails fails again, and a new op does
//! not change the inputs of the others.

use plimsoll_tensor::ops::registry::{Array, Input, OpInfo, Values};
use plimsoll_tensor::{DType, Element, Result, Tensor};

/// The dtype of an input.
pub fn dtype_of(values: Values, under_test: DType) -> DType {
    match values {
        Values::Floats(..) | Values::Constants(..) => under_test,
        Values::Indices(_) => DType::I64,
        Values::Truths => DType::Bool,
        Values::Of(dtype, ..) => dtype,
    }
}

/// Draws values for inputs.
pub fn draw_all(op: &OpInfo, sample: &str, inputs: &[Input], dtype: DType) -> Vec<Array> {
    let one = |(idx, input): (usize, &Input)| draw(&format!("{}/{sample}/{idx}", op.name), input, dtype);
    inputs.iter().enumerate().map(one).collect()
}

/// Draws the values of one input; they depend on the key alone, and are rounded to the dtype.
pub fn draw(key: &str, input: &Input, dtype: DType) -> Array {
    let mut uniform = Uniform::new(key);
    let n_elems = input.shape.iter().product();
    let dtype = dtype_of(input.values, dtype);
    let (low, high) = match input.values {
        Values::Floats(low, high) | Values::Constants(low, high) | Values::Of(_, low, high) => (low, high),
        Values::Indices(bound) => (0.0, bound as f64),
        Values::Truths => (0.0, 2.0),
    };
    let mut one = || {
        let value = low + (high - low) * uniform.next();
        round(if dtype.is_float() { value } else { value.floor() }, dtype)
    };
    Array::new(&input.shape, (0..n_elems).map(|_| one()).collect())
}

/// Numbers from zero to one that depend on a key: SplitMix64 over a hash of it.
pub struct Uniform(u64);

impl Uniform {
    /// The numbers of a key.
    pub fn new(key: &str) -> Uniform {
        Uniform(key.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        }))
    }

    /// The next number.
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Calls a generic expression with the Rust type of a dtype.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => with_type!(@ $T, f64, $body),
            DType::F32 => with_type!(@ $T, f32, $body),
            DType::F16 => with_type!(@ $T, half::f16, $body),
            DType::BF16 => with_type!(@ $T, half::bf16, $body),
            DType::I64 => with_type!(@ $T, i64, $body),
            DType::I32 => with_type!(@ $T, i32, $body),
            DType::U8 => with_type!(@ $T, u8, $body),
            DType::Bool => with_type!(@ $T, bool, $body),
        }
    };
    (@ $T:ident, $type:ty, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// A number as its dtype holds it.
pub fn round(value: f64, dtype: DType) -> f64 {
    with_type!(dtype, T => <T as Element>::from_f64(value).to_f64())
}

/// An array as a contiguous tensor on the current device.
///
/// # Errors
/// Memory that is full.
pub fn tensor(array: &Array, dtype: DType) -> Result<Tensor> {
    with_type!(dtype, T => {
        let values: Vec<T> = array.values.iter().map(|&value| <T as Element>::from_f64(value)).collect();
        Tensor::from_slice(&values, array.shape.as_slice())
    })
}

/// The weight of an output's element: small numbers that every float dtype holds, with no sum in common.
pub fn weight(flat: usize) -> f64 {
    ((flat * 7 + 3) % 11) as f64 / 4.0 - 1.25
}

/// The weights of a float output's elements: the gradient that its backward begins with.
///
/// # Errors
/// Memory that is full.
pub fn weights(output: &Tensor) -> Result<Tensor> {
    let _there = output.device().enter();
    let values = (0..output.n_elems()).map(weight).collect();
    tensor(&Array::new(output.shape(), values), output.dtype())
}
