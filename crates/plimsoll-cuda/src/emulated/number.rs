//! Numbers of the device's types, as matrix products and convolutions read and write them.

use std::ops::{Add, Mul};

use half::{bf16, f16};

use crate::matmul::Scalar;

/// What sums are kept in.
pub trait Sum: Copy + Default + Add<Output = Self> + Mul<Output = Self> + Into<f64> {
    /// Rounds to this type.
    fn round(value: f64) -> Self;
}

impl Sum for f32 {
    fn round(value: f64) -> f32 {
        value as f32
    }
}

impl Sum for f64 {
    fn round(value: f64) -> f64 {
        value
    }
}

/// The number at an index; all types widen exactly.
///
/// # Safety
/// The address is that of numbers of this type, more than `idx`.
pub unsafe fn load(scalar: Scalar, from: *const u8, idx: usize) -> f64 {
    // SAFETY: the caller promises it; device addresses are aligned for their type.
    unsafe {
        match scalar {
            Scalar::F16 => (*from.cast::<f16>().add(idx)).to_f64(),
            Scalar::BF16 => (*from.cast::<bf16>().add(idx)).to_f64(),
            Scalar::F32 => f64::from(*from.cast::<f32>().add(idx)),
            Scalar::F64 => *from.cast::<f64>().add(idx),
        }
    }
}

/// Writes the number at an index, rounded.
///
/// # Safety
/// As for `load`, for writing.
pub unsafe fn store(scalar: Scalar, to: *mut u8, idx: usize, value: f64) {
    // SAFETY: the caller promises it; device addresses are aligned for their type.
    unsafe {
        match scalar {
            Scalar::F16 => to.cast::<f16>().add(idx).write(f16::from_f64(value)),
            Scalar::BF16 => to.cast::<bf16>().add(idx).write(bf16::from_f64(value)),
            Scalar::F32 => to.cast::<f32>().add(idx).write(value as f32),
            Scalar::F64 => to.cast::<f64>().add(idx).write(value),
        }
    }
}

/// A number of f32 as TF32 has it: ten bits of fraction, the nearest, away from zero between two.
pub fn to_tf32(value: f64) -> f64 {
    let bits = (value as f32).to_bits();
    match value.is_finite() {
        true => f64::from(f32::from_bits(bits.wrapping_add(0x1000) & !0x1FFF)),
        false => value,
    }
}
