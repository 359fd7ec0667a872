//! The eight element types, and the Rust types that stand for them.
//!
//! Ops do not promote between float dtypes: a clash is an error that names `cast`. Rust numbers are weak, that
//! is, they take the dtype of the tensor that they meet.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements, known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point, the default.
    F32,
    /// 16-bit IEEE floating point.
    F16,
    /// 16-bit floating point with the exponent of `F32`.
    BF16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer.
    U8,
    /// A truth value, one byte.
    Bool,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 8] =
        [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether values are floating point, the only ones that have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether values are whole numbers.
    pub const fn is_integer(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::U8)
    }

    /// The dtype in which kernels add up values of this one: wider for the 16-bit floats.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// The name, as numpy spells it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "float64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::U8 => "uint8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Keeps the set of element types closed.
mod sealed {
    /// Implemented for the eight types and no others.
    pub trait Sealed {}
}

/// A Rust type that can be the element of a tensor.
///
/// Sealed: the set of dtypes is closed, and kernels rely on each type having no padding and the size that its
/// dtype states.
pub trait Element: plimsoll_cpu::element::Element + sealed::Sealed {
    /// The dtype that this type stands for.
    const DTYPE: DType;
    /// The value nearest to `x`.
    fn from_f64(x: f64) -> Self;
    /// The value as `f64`, exactly but for the largest `i64`.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($type:ty, $dtype:ident, $from:expr, $to:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn from_f64(x: f64) -> Self {
                $from(x)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    )*};
}

element! {
    f64, F64, |x| x, |x| x;
    f32, F32, |x| x as f32, |x| x as f64;
    f16, F16, f16::from_f64, f16::to_f64;
    bf16, BF16, bf16::from_f64, bf16::to_f64;
    i64, I64, |x| x as i64, |x| x as f64;
    i32, I32, |x| x as i32, |x| x as f64;
    u8, U8, |x| x as u8, |x| x as f64;
    bool, Bool, |x| x != 0.0, |x| if x { 1.0 } else { 0.0 };
}
