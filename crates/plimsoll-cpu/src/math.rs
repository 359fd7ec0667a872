//! The functions of one real variable that elementwise ops need.
//!
//! In f32 the frequent ones are written out without branches, calls or tables, so that a loop over them vectorises: a
//! range reduction, a minimax polynomial and a choice between finished results. They use products and sums only, never
//! a fused multiply-add, so their bits do not depend on the instruction set. The polynomials were fitted by Remez'
//! algorithm for the intervals named beside them. The greatest errors, in units in the last place of the result, which
//! the tests below hold them to:
//!
//! | `exp`, `ln` | `exp_m1`, `ln_1p`, `tanh`, `erf` | `sigmoid` | `sin`, `cos`, `tan` |
//! |---|---|---|---|
//! | 1.0 | 1.5 | 2.5 | 0.51 |
//!
//! `sin`, `cos` and `tan` of f32 are reduced and evaluated in f64, and hold for every finite argument. The other
//! functions of f32, and all of f64, are the standard library's (`erf` and `erfc` of f64 are libm's).

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::element::Number;
use crate::trig::{cos, sin, tan};

/// Floats, with operators and the functions of elementwise ops.
pub trait Real:
    Number
    + From<f32>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest value to an f64.
    fn from_f64(value: f64) -> Self;
    /// The value as f64; exact.
    fn to_f64(self) -> f64;

    /// e to the power of the value.
    fn exp(self) -> Self;
    /// `exp(x) - 1`, accurate near zero.
    fn exp_m1(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + x)`, accurate near zero.
    fn ln_1p(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `1 / (1 + exp(-x))`.
    fn sigmoid(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// `1 - erf(x)`, accurate for large arguments.
    fn erfc(self) -> Self;
    /// The sine.
    fn sin(self) -> Self;
    /// The cosine.
    fn cos(self) -> Self;
    /// The tangent.
    fn tan(self) -> Self;
    /// The arcsine.
    fn asin(self) -> Self;
    /// The arccosine.
    fn acos(self) -> Self;
    /// The arctangent.
    fn atan(self) -> Self;
    /// The angle of the point (`x`, `self`).
    fn atan2(self, x: Self) -> Self;
    /// The hyperbolic sine.
    fn sinh(self) -> Self;
    /// The hyperbolic cosine.
    fn cosh(self) -> Self;
    /// The value to a power.
    fn pow(self, exponent: Self) -> Self;
    /// The greatest integer that is not greater.
    fn floor(self) -> Self;
    /// The least integer that is not less.
    fn ceil(self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// The integer part.
    fn trunc(self) -> Self;

    /// `1 / x`.
    #[inline(always)]
    fn recip(self) -> Self {
        Self::ONE / self
    }

    /// `1 / sqrt(x)`.
    #[inline(always)]
    fn rsqrt(self) -> Self {
        self.sqrt().recip()
    }
}

/// Methods that are those of the standard library under the same name.
macro_rules! from_std {
    ($type:ident: $($name:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> $type {
            $type::$name(self)
        }
    )*};
}

/// Methods that take their argument by name from this module's functions for f32.
macro_rules! from_here {
    ($($name:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> f32 {
            $name(self)
        }
    )*};
}

/// Methods with other arguments or names than the standard library's.
macro_rules! from_std_renamed {
    ($type:ident) => {
        #[inline(always)]
        fn atan2(self, x: $type) -> $type {
            $type::atan2(self, x)
        }

        #[inline(always)]
        fn pow(self, exponent: $type) -> $type {
            $type::powf(self, exponent)
        }

        #[inline(always)]
        fn round(self) -> $type {
            $type::round_ties_even(self)
        }
    };
}

impl Real for f32 {
    #[inline(always)]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    from_here!(exp, exp_m1, ln, ln_1p, tanh, sigmoid, erf, sin, cos, tan);
    from_std!(f32: sqrt, asin, acos, atan, sinh, cosh, floor, ceil, trunc);
    from_std_renamed!(f32);

    #[inline(always)]
    fn erfc(self) -> f32 {
        libm::erfcf(self)
    }
}

impl Real for f64 {
    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    from_std!(f64: exp, exp_m1, ln, ln_1p, tanh, sin, cos, tan, sqrt, asin, acos, atan, sinh, cosh, floor, ceil, trunc);
    from_std_renamed!(f64);

    #[inline(always)]
    fn sigmoid(self) -> f64 {
        let e = f64::exp(-self.abs());
        let denominator = 1.0 + e;
        if self < 0.0 { e / denominator } else { 1.0 / denominator }
    }

    #[inline(always)]
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn erfc(self) -> f64 {
        libm::erfc(self)
    }
}

/// The polynomial with these coefficients, lowest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    for idx in (0..N - 1).rev() {
        sum = sum * x + coefficients[idx];
    }
    sum
}

/// Adding and taking away this number rounds to an integer, ties to even, and leaves it in the low bits on the way.
const ROUNDER: f32 = 12_582_912.0;

/// A factor of two: ln 2 in a part whose products with small integers are exact, and the rest.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// Splits `x = n ln 2 + r` with `r` in [-ln 2 / 2, ln 2 / 2]; returns `n` and `exp(r) - 1`.
#[inline(always)]
fn reduced_exp_m1(x: f32) -> (i32, f32) {
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // (exp(r) - 1 - r) / r^2 on [-0.3475, 0.3475].
    let tail =
        polynomial(r, [0.5, 0.166_666_67, 0.041_666_35, 0.008_333_272, 0.001_394_127_7, 0.000_199_145_46]);
    (shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32, r + r * r * tail)
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    // Beyond these ends the result has overflowed or vanished. A NaN passes both comparisons.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (n, y) = reduced_exp_m1(x);
    // The scale is applied in two factors, because the whole of it may not be a normal number.
    let half = n >> 1;
    (y + 1.0) * power_of_two(half) * power_of_two(n - half)
}

#[inline(always)]
fn exp_m1(x: f32) -> f32 {
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -18.0 { -18.0 } else { bounded };
    let (n, y) = reduced_exp_m1(bounded);
    let half = n >> 1;
    let rest = n - half;
    // 2^n y + (2^n - 1), with 2^rest taken out.
    let result = (power_of_two(half) * y + (power_of_two(half) - power_of_two(-rest))) * power_of_two(rest);
    if x == 0.0 { x } else { result }
}

/// `ln(m 2^e)` as `e` and `ln m` for a positive normal number, with `m` around one.
#[inline(always)]
fn ln_normal(x: f32) -> (f32, f32) {
    const SQRT_HALF: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
    const MANTISSA: u32 = 0x007f_ffff;
    // Counting the exponent from sqrt(1/2) puts m into [sqrt(1/2), sqrt(2)).
    let offset = x.to_bits().wrapping_sub(SQRT_HALF);
    let exponent = (offset as i32) >> 23;
    let m = f32::from_bits((offset & MANTISSA) + SQRT_HALF);
    let t = m - 1.0;
    // (ln(1 + t) - t + t^2 / 2) / t^3 on [sqrt(1/2) - 1, sqrt(2) - 1].
    let tail = polynomial(
        t,
        [
            0.333_333_1,
            -0.249_999_87,
            0.200_022_27,
            -0.166_692_53,
            0.142_186_64,
            -0.123_843_35,
            0.118_729_26,
            -0.117_898_64,
            0.069_155_395,
        ],
    );
    let square = t * t;
    let low = square * t * tail + exponent as f32 * LN_2_LOW - 0.5 * square;
    (exponent as f32 * LN_2_HIGH, low + t)
}

#[inline(always)]
fn ln(x: f32) -> f32 {
    const SCALE: f32 = 8_388_608.0;
    const LN_SCALE: f32 = 15.942_385;
    let is_subnormal = x < f32::MIN_POSITIVE;
    let (high, low) = ln_normal(if is_subnormal { x * SCALE } else { x });
    let finite = high + low - if is_subnormal { LN_SCALE } else { 0.0 };
    let positive = if x < f32::INFINITY { finite } else { x };
    let result = if x > 0.0 { positive } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { result }
}

#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What rounding took from the sum, brought back to first order.
    let lost = if x < 1.0 { x - (sum - 1.0) } else { 1.0 - (sum - x) };
    let (high, low) = ln_normal(sum);
    let finite = high + (low + lost / sum);
    let above = if x < f32::INFINITY { finite } else { x };
    let result = if x > -1.0 { above } else { f32::NAN };
    let result = if x == -1.0 { f32::NEG_INFINITY } else { result };
    if x == 0.0 { x } else { result }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    // (tanh(x) / x - 1) / x^2 as a polynomial in x^2 on [0, 0.625].
    let tail =
        polynomial(square, [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_588, -0.005_717_045]);
    let near = magnitude + magnitude * square * tail;
    let far = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    if magnitude < 0.625 { near } else { far }.copysign(x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // Of the two forms, the one whose exponential does not overflow.
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

#[inline(always)]
fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    // erf(x) / x - 1 as a polynomial in x^2 on [0, 0.9].
    let tail = polynomial(
        x * x,
        [
            0.128_379_17,
            -0.376_126_35,
            0.112_837_195,
            -0.026_860_753,
            0.005_204_436,
            -0.000_818_192_84,
            8.538_843e-5,
        ],
    );
    let near = magnitude + magnitude * tail;
    // -ln(erfc(x)) on [0.9, 4]; beyond, the result is one.
    let bounded = if magnitude > 4.0 { 4.0 } else { magnitude };
    let log = polynomial(
        bounded,
        [
            -0.000_218_020_55,
            1.129_755_4,
            0.632_777_6,
            0.109_030_366,
            -0.025_720_378,
            0.004_470_173_7,
            -0.000_524_666_04,
            3.614_188e-5,
            -1.061_483_4e-6,
        ],
    );
    let far = 1.0 - exp(-log);
    if magnitude < 0.9 { near } else { far }.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 1009th f32, of both signs: all exponents, and mantissas without a pattern.
    fn samples() -> impl Iterator<Item = f32> {
        (0..=u32::MAX / 1009).map(|i| f32::from_bits(i * 1009)).filter(|x| x.is_finite())
    }

    /// The distance of `got` from `exact`, in units in the last place of the exact value as f32.
    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if got == nearest || got.is_nan() && exact.is_nan() {
            return 0.0;
        }
        let unit =
            (f64::from(nearest.abs().next_up()) - f64::from(nearest.abs())).max(f64::from(f32::from_bits(1)));
        (f64::from(got) - exact).abs() / unit
    }

    /// Fails when `f` is farther than `bound` from `exact` for any sample.
    #[track_caller]
    fn check(bound: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        let error = |x: f32| ulps(f(x), exact(f64::from(x)));
        let (worst, x) =
            samples().map(|x| (error(x), x)).max_by(|a, b| a.0.total_cmp(&b.0)).expect("samples");
        assert!(worst <= bound, "{worst} units at {x:e}: {:e}, not {:e}", f(x), exact(f64::from(x)));
    }

    #[test]
    fn exp_is_accurate() {
        check(1.0, exp, f64::exp);
        check(1.5, exp_m1, f64::exp_m1);
    }

    #[test]
    fn ln_is_accurate() {
        check(1.0, ln, f64::ln);
        check(1.5, ln_1p, f64::ln_1p);
    }

    #[test]
    fn tanh_and_sigmoid_are_accurate() {
        check(1.5, tanh, f64::tanh);
        check(2.5, sigmoid, Real::sigmoid);
    }

    #[test]
    fn erf_is_accurate() {
        check(1.5, erf, libm::erf);
    }

    #[test]
    fn sin_cos_and_tan_are_accurate() {
        check(0.51, sin, f64::sin);
        check(0.51, cos, f64::cos);
        check(0.51, tan, f64::tan);
    }

    #[test]
    fn ends_and_zeros_are_exact() {
        const INF: f32 = f32::INFINITY;
        let same = |got: f32, want: f32| assert!(got.to_bits() == want.to_bits(), "{got:e}, not {want:e}");
        for f in [exp_m1, ln_1p, tanh, erf, sin, tan] {
            same(f(0.0), 0.0);
            same(f(-0.0), -0.0);
        }
        for f in [exp, exp_m1, ln, ln_1p, tanh, sigmoid, erf, sin, cos, tan] {
            assert!(f(f32::NAN).is_nan());
        }
        for f in [sin, cos, tan] {
            assert!(f(INF).is_nan() && f(-INF).is_nan());
        }
        for (f, at_minus_inf, at_inf) in [
            (exp as fn(f32) -> f32, 0.0, INF),
            (exp_m1, -1.0, INF),
            (tanh, -1.0, 1.0),
            (sigmoid, 0.0, 1.0),
            (erf, -1.0, 1.0),
        ] {
            same(f(-INF), at_minus_inf);
            same(f(INF), at_inf);
        }
        same(exp(0.0), 1.0);
        same(ln(1.0), 0.0);
        same(ln(INF), INF);
        same(ln_1p(INF), INF);
        same(ln(0.0), -INF);
        same(ln(-0.0), -INF);
        same(ln_1p(-1.0), -INF);
        assert!(ln(-1.0).is_nan() && ln(-INF).is_nan() && ln_1p(-1.5).is_nan());
    }

    #[test]
    fn bits_do_not_depend_on_the_instruction_set() {
        fn check(f: impl Fn(f32) -> f32) {
            let xs: Vec<f32> = samples().step_by(97).collect();
            let mut wide = vec![0; xs.len()];
            crate::simd::vectorize(
                #[inline(always)]
                || wide.iter_mut().zip(&xs).for_each(|(y, &x)| *y = f(x).to_bits()),
            );
            assert!(xs.iter().zip(wide).all(|(&x, y)| f(x).to_bits() == y));
        }
        check(exp);
        check(exp_m1);
        check(ln);
        check(ln_1p);
        check(tanh);
        check(sigmoid);
        check(erf);
        check(sin);
        check(cos);
        check(tan);
    }

    #[test]
    fn rounding_takes_ties_to_even() {
        let rounded = [0.5f32, 1.5, 2.5, -0.5, -1.5].map(Real::round);
        assert_eq!(rounded, [0.0, 2.0, 2.0, 0.0, -2.0]);
        assert_eq!(Real::round(2.5f64), 2.0);
    }

    #[test]
    fn f64_functions_agree_with_their_definitions() {
        for x in [-40.0, -1.5, -0.1, 0.0, 0.3, 2.0, 40.0] {
            assert!((Real::sigmoid(x) - 1.0 / (1.0 + f64::exp(-x))).abs() < 1e-16);
            assert!((Real::erf(x) + Real::erfc(x) - 1.0).abs() < 1e-15);
        }
        assert_eq!(Real::rsqrt(4.0f64), 0.5);
        assert_eq!(Real::recip(4.0f32), 0.25);
    }
}
