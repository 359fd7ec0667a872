//! Numbers of all types as bytes, and how far apart two lists of them are.

use half::{bf16, f16};
use plimsoll_cuda::Scalar;

/// Numbers between -1 and 1, the same every time, that are exact in every type.
pub fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) % 129) as f64 / 64.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The bytes of numbers in a type.
pub fn encode(scalar: Scalar, numbers: &[f64]) -> Vec<u8> {
    let bytes = |number: &f64| match scalar {
        Scalar::F16 => f16::from_f64(*number).to_le_bytes().to_vec(),
        Scalar::BF16 => bf16::from_f64(*number).to_le_bytes().to_vec(),
        Scalar::F32 => (*number as f32).to_le_bytes().to_vec(),
        Scalar::F64 => number.to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes).collect()
}

/// The numbers that bytes are in a type.
pub fn decode(scalar: Scalar, bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| match *bytes {
        [a, b] if scalar == Scalar::F16 => f16::from_le_bytes([a, b]).to_f64(),
        [a, b] => bf16::from_le_bytes([a, b]).to_f64(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => f64::NAN,
    };
    bytes.chunks_exact(scalar.size()).map(number).collect()
}

/// The largest error of results against exact ones, in units of what a type rounds to at a sum's size: each of the
/// `n_terms` terms may add an error of its own in f32, and the result is rounded once to its type.
pub fn distance(scalar: Scalar, tf32: bool, found: &[f64], exact: &[f64], n_terms: usize) -> f64 {
    let epsilon = match scalar {
        Scalar::F16 => 1.0 / 1024.0,
        Scalar::BF16 => 1.0 / 128.0,
        Scalar::F32 => f64::from(f32::EPSILON),
        Scalar::F64 => f64::EPSILON,
    };
    let term = if tf32 { 1.0 / 1024.0 } else { epsilon.min(f64::from(f32::EPSILON)) };
    let allowed = |exact: f64| epsilon * exact.abs().max(1e-3) + term * (n_terms as f64).sqrt() * 4.0;
    let errors = found.iter().zip(exact).map(|(found, exact)| (found - exact).abs() / allowed(*exact));
    // A result that is not a number is infinitely far away.
    let worst = errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max);
    if found.len() == exact.len() { worst } else { f64::INFINITY }
}
