//! The storage types of the dtypes, and the types they are computed in.
//!
//! [`Element`] is what lies in memory; its [`Element::Compute`] is what a tile function sees. The half-width floats are
//! widened to f32 when they enter a tile and narrowed when they leave it; every other type computes as itself. The
//! conversions are bit arithmetic without branches, so that loops over them vectorise. [`Number`] is the arithmetic that
//! integers and floats share, [`CastTo`] the conversion between any two compute types.

use half::{bf16, f16};

/// A type that tensors store.
pub trait Element: Copy + Default + Send + Sync + std::fmt::Debug + PartialEq + 'static {
    /// The type that kernels compute in: f32 for the half-width floats, else the type itself.
    type Compute: Element<Compute = Self::Compute>;

    /// Whether stored and computed type are the same, so that memory can be read in place.
    const IS_COMPUTE: bool;

    /// The value as it is computed with; exact.
    fn widen(self) -> Self::Compute;

    /// The nearest stored value, ties to even.
    fn narrow(value: Self::Compute) -> Self;
}

/// Types that compute as themselves.
macro_rules! compute_as_themselves {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Compute = $type;
            const IS_COMPUTE: bool = true;

            #[inline(always)]
            fn widen(self) -> $type {
                self
            }

            #[inline(always)]
            fn narrow(value: $type) -> $type {
                value
            }
        }
    )*};
}

compute_as_themselves!(f64, f32, i64, i32, u8, bool);
// The bits of a half-width float, for copies that must not touch them.
compute_as_themselves!(u16);

impl Element for bf16 {
    type Compute = f32;
    const IS_COMPUTE: bool = false;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        let bits = value.to_bits();
        // Adding just under half of the last kept place, and one more when that place is odd, rounds ties to even.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A NaN must stay one: rounding could carry its mantissa away, so it is cut and made quiet instead.
        let nan = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { nan } else { rounded } as u16)
    }
}

impl Element for f16 {
    type Compute = f32;
    const IS_COMPUTE: bool = false;

    #[inline(always)]
    fn widen(self) -> f32 {
        /// The difference of the two exponent biases, as a factor.
        const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
        const F16_INFINITY: u32 = 0x7c00 << 13;
        let bits = u32::from(self.to_bits());
        let sign = (bits & 0x8000) << 16;
        let magnitude = (bits & 0x7fff) << 13;
        // The product is exact, and turns f16's subnormals into normal numbers on the way.
        let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
        let special = magnitude | 0x7f80_0000;
        f32::from_bits(sign | if magnitude >= F16_INFINITY { special } else { finite })
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        const TWO_POW_16: u32 = (127 + 16) << 23;
        const MIN_NORMAL: u32 = (127 - 14) << 23;
        const REBIAS: u32 = (127 - 15) << 10;
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // Ties to even as for bf16; what rounds beyond the largest finite value becomes infinity by the carry.
        let normal = (magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13).wrapping_sub(REBIAS);
        // The last place of 0.5 is the step of f16's subnormals, so this addition rounds to them.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let special = if value.is_nan() { 0x7e00 | ((magnitude >> 13) & 0x3ff) } else { 0x7c00 };
        let finite = if magnitude < MIN_NORMAL { subnormal } else { normal };
        f16::from_bits((sign | if magnitude >= TWO_POW_16 { special } else { finite }) as u16)
    }
}

/// The arithmetic that integer and float compute types share. Integers wrap.
pub trait Number: Element<Compute = Self> + PartialOrd {
    /// The additive identity.
    const ZERO: Self;
    /// The multiplicative identity.
    const ONE: Self;
    /// The least value: minus infinity for floats.
    const LEAST: Self;
    /// The greatest value: infinity for floats.
    const GREATEST: Self;

    /// The sum.
    fn add(self, rhs: Self) -> Self;
    /// The difference.
    fn sub(self, rhs: Self) -> Self;
    /// The product.
    fn mul(self, rhs: Self) -> Self;
    /// The quotient; of integers the truncated one, and zero where the divisor is zero.
    fn div(self, rhs: Self) -> Self;
    /// The value with its sign changed.
    fn neg(self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// Minus one, zero or one; zero for NaN.
    fn sign(self) -> Self;
    /// Whether this is not a number; never for integers.
    fn is_nan(self) -> bool;

    /// The smaller value, or NaN where either is.
    #[inline(always)]
    fn min(self, rhs: Self) -> Self {
        let lesser = if self < rhs { self } else { rhs };
        if self.is_nan() { self } else { lesser }
    }

    /// The greater value, or NaN where either is.
    #[inline(always)]
    fn max(self, rhs: Self) -> Self {
        let greater = if self > rhs { self } else { rhs };
        if self.is_nan() { self } else { greater }
    }
}

/// Floats as numbers.
macro_rules! float_number {
    ($type:ident) => {
        impl Number for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = $type::NEG_INFINITY;
            const GREATEST: Self = $type::INFINITY;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self + rhs
            }
            #[inline(always)]
            fn sub(self, rhs: Self) -> Self {
                self - rhs
            }
            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self * rhs
            }
            #[inline(always)]
            fn div(self, rhs: Self) -> Self {
                self / rhs
            }
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $type::abs(self)
            }
            #[inline(always)]
            fn sign(self) -> Self {
                f32::from(i8::from(self > 0.0) - i8::from(self < 0.0)).into()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $type::is_nan(self)
            }
        }
    };
}

float_number!(f32);
float_number!(f64);

/// Integers as numbers.
macro_rules! integer_number {
    ($type:ident, $abs:expr) => {
        impl Number for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LEAST: Self = $type::MIN;
            const GREATEST: Self = $type::MAX;

            #[inline(always)]
            fn add(self, rhs: Self) -> Self {
                self.wrapping_add(rhs)
            }
            #[inline(always)]
            fn sub(self, rhs: Self) -> Self {
                self.wrapping_sub(rhs)
            }
            #[inline(always)]
            fn mul(self, rhs: Self) -> Self {
                self.wrapping_mul(rhs)
            }
            #[inline(always)]
            fn div(self, rhs: Self) -> Self {
                if rhs == 0 { 0 } else { self.wrapping_div(rhs) }
            }
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $abs(self)
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "an unsigned type has no negative values")]
            fn sign(self) -> Self {
                $type::from(self > 0).wrapping_sub($type::from(self < 0))
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    };
}

integer_number!(i64, i64::wrapping_abs);
integer_number!(i32, i32::wrapping_abs);
integer_number!(u8, std::convert::identity);

/// Conversion between compute types: as Rust's `as`, and a value is true when it is not zero.
///
/// Floats become integers by truncation, saturating at the ends; NaN becomes zero.
pub trait CastTo<T> {
    /// The value in the other type.
    fn cast(self) -> T;
}

/// Conversions from one number type to each type named.
macro_rules! cast_numbers {
    ($from:ident to $($to:ident),*) => {
        $(impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
        })*

        impl CastTo<bool> for $from {
            #[inline(always)]
            fn cast(self) -> bool {
                self != <$from as Number>::ZERO
            }
        }

        impl CastTo<$from> for bool {
            #[inline(always)]
            fn cast(self) -> $from {
                if self { <$from as Number>::ONE } else { <$from as Number>::ZERO }
            }
        }
    };
}

cast_numbers!(f64 to f64, f32, i64, i32, u8);
cast_numbers!(f32 to f64, f32, i64, i32, u8);
cast_numbers!(i64 to f64, f32, i64, i32, u8);
cast_numbers!(i32 to f64, f32, i64, i32, u8);
cast_numbers!(u8 to f64, f32, i64, i32, u8);

impl CastTo<bool> for bool {
    #[inline(always)]
    fn cast(self) -> bool {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit patterns that cover every exponent, with the mantissas around each rounding boundary.
    fn f32_samples() -> impl Iterator<Item = f32> {
        let mantissas = (0..0x80u32).flat_map(|high| {
            let base = high << 16;
            [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| base | low)
        });
        (0..512u32).flat_map(move |sign_exponent| {
            mantissas.clone().map(move |m| f32::from_bits(sign_exponent << 23 | m))
        })
    }

    #[test]
    fn half_width_floats_widen_exactly() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(h.widen() == h.to_f32() || h.is_nan() && h.widen().is_nan(), "f16 {bits:#x}");
            assert!(b.widen() == b.to_f32() || b.is_nan() && b.widen().is_nan(), "bf16 {bits:#x}");
            assert_eq!(h.widen().is_sign_negative(), h.is_sign_negative());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for x in f32_samples() {
            let (h, b) = (<f16 as Element>::narrow(x), <bf16 as Element>::narrow(x));
            if x.is_nan() {
                assert!(h.is_nan() && b.is_nan());
            } else {
                assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{x:e}");
                assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
    }

    #[test]
    fn narrowing_undoes_widening() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(h.is_nan() || f16::narrow(h.widen()).to_bits() == bits);
            assert!(b.is_nan() || bf16::narrow(b.widen()).to_bits() == bits);
        }
    }

    #[test]
    fn extremes_keep_nan() {
        let nan = f32::NAN;
        for (a, b) in [(nan, 1.0), (1.0, nan), (nan, nan)] {
            assert!(Number::max(a, b).is_nan() && Number::min(a, b).is_nan());
        }
        assert_eq!(Number::max(2.0f32, 1.0), 2.0);
        assert_eq!(Number::min(2i32, 1), 1);
    }

    #[test]
    fn integers_never_panic() {
        assert_eq!(Number::div(i32::MIN, -1), i32::MIN);
        assert_eq!(Number::div(5i64, 0), 0);
        assert_eq!(Number::abs(i64::MIN), i64::MIN);
        assert_eq!((Number::sign(-3i32), Number::sign(0u8), Number::sign(7u8)), (-1, 0, 1));
        assert_eq!((Number::sign(-0.5f64), Number::sign(f32::NAN)), (-1.0, 0.0));
    }

    #[test]
    fn casts_truncate_and_saturate() {
        let to_u8: u8 = (-1.5f32).cast();
        let to_i32: i32 = 1e20f64.cast();
        let truth: bool = f32::NAN.cast();
        assert_eq!((to_u8, to_i32, truth), (0, i32::MAX, true));
    }
}
