//! Numbers of every element type, random ones, and guarded memory.

use half::{bf16, f16};
use plimsoll_gemm::Element;

/// What the tests need of an element beyond the crate's own trait.
pub trait Number: Element + PartialEq + std::fmt::Debug {
    /// The largest error of one rounding, relative.
    const EPSILON: f64;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn real(value: f64) -> Self::Real;
    fn real_to_f64(value: Self::Real) -> f64;
}

macro_rules! number {
    ($($element:ty, $real:ty, $epsilon:expr, $to:expr;)+) => {$(
        impl Number for $element {
            const EPSILON: f64 = $epsilon;
            fn from_f64(value: f64) -> Self {
                Self::narrow(value as $real)
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn real(value: f64) -> $real {
                value as $real
            }
            fn real_to_f64(value: $real) -> f64 {
                f64::from(value)
            }
        }
    )+};
}

number! {
    f32, f32, f32::EPSILON as f64, f64::from;
    f64, f64, f64::EPSILON, f64::from;
    f16, f32, 9.8e-4, f64::from;
    bf16, f32, 7.9e-3, f64::from;
}

/// Numbers in [-1, 1) that depend on the seed alone.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    }
}

/// A workspace of exactly the bytes asked for, aligned to 64, full of NaNs, between guards.
pub struct Workspace {
    data: Vec<u64>,
    first: usize,
    len: usize,
}

const FILL: u8 = 0xff;

impl Workspace {
    pub fn new(len: usize) -> Self {
        let data = vec![u64::MAX; len.div_ceil(8) + 32];
        let address = data.as_ptr() as usize;
        let first = (address + 64).next_multiple_of(64) - address;
        Self { data, first, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.data.len() * 8;
        // SAFETY: bytes may be seen in any initialised memory.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_mut_ptr().cast(), len) }
    }

    pub fn slice(&mut self) -> &mut [u8] {
        let (first, len) = (self.first, self.len);
        &mut self.bytes()[first..first + len]
    }

    pub fn assert_guards(&mut self) {
        let (first, end) = (self.first, self.first + self.len);
        let bytes = self.bytes();
        assert!(bytes[..first].iter().all(|&b| b == FILL), "bytes before the workspace were written");
        assert!(bytes[end..].iter().all(|&b| b == FILL), "bytes after the workspace were written");
    }
}
