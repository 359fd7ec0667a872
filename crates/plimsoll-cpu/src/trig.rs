//! Sine, cosine and tangent of every finite f32, without branches.
//!
//! The argument is first counted in turns: its 24 bits times the right window of the bits of 1/(2 pi), in integers, so
//! that whole turns fall off the top and nothing is lost below, however large the argument. The rest, at most an eighth
//! of a turn from a multiple of a quarter, goes through polynomials in f64, whose error vanishes in the final rounding.

/// `2^232 / (2 pi)`, most significant word first: 1/(2 pi) as a fraction of 256 bits, shifted right by 24.
const TURNS_PER_RADIAN: [u64; 4] =
    [0x0000_0028_be60_db93, 0x9105_4a7f_09d5_f47d, 0x4d37_7036_d8a5_664f, 0x10e4_107f_9458_eaf7];

/// The argument as a quarter of the circle (0 to 3) and the angle from the middle of that quarter, in radians.
#[inline(always)]
fn reduce(magnitude: f32) -> (u64, f64) {
    const HALF_EXPONENT: u32 = 126;
    let bits = magnitude.to_bits();
    let mantissa = u64::from((bits & 0x007f_ffff) | 0x0080_0000);
    let shift = (bits >> 23).wrapping_sub(HALF_EXPONENT) & 0xff;
    let [w0, w1, w2, w3] = TURNS_PER_RADIAN;
    // The three words of the window that begins `shift` bits down.
    let a = if shift < 64 {
        w0
    } else if shift < 128 {
        w1
    } else {
        w2
    };
    let b = if shift < 64 {
        w1
    } else if shift < 128 {
        w2
    } else {
        w3
    };
    let c = if shift < 64 {
        w2
    } else if shift < 128 {
        w3
    } else {
        0
    };
    let shift = shift & 63;
    let high = (a << shift) | ((b >> 1) >> (63 - shift));
    let low = ((b << shift) | ((c >> 1) >> (63 - shift))) >> 32;
    // The fraction of a turn, as 64 bits after the point.
    let turn = mantissa.wrapping_mul(high).wrapping_add((mantissa * low) >> 32);
    let quarter = turn.wrapping_add(1 << 61) >> 62;
    let rest = turn.wrapping_sub(quarter << 62) as i64;
    // Below a half the window would keep too few bits, and there is nothing to take off.
    let is_small = magnitude < 0.5;
    let angle = if is_small {
        f64::from(magnitude)
    } else {
        rest as f64 * (std::f64::consts::TAU / 18_446_744_073_709_551_616.0)
    };
    (if is_small { 0 } else { quarter }, angle)
}

/// The sine of an angle in [-pi/4, pi/4].
#[inline(always)]
fn near_sin(r: f64) -> f64 {
    let z = r * r;
    let tail = -0.166_666_666_416_269_9
        + z * (0.008_333_329_385_944_242
            + z * (-0.000_198_393_348_539_524_33 + z * 2.718_311_666_260_017e-6));
    r * (1.0 + z * tail)
}

/// The cosine of an angle in [-pi/4, pi/4].
#[inline(always)]
fn near_cos(r: f64) -> f64 {
    let z = r * r;
    let tail = 0.041_666_666_622_828_22
        + z * (-0.001_388_888_375_342_794_8
            + z * (2.479_952_001_415_156_2e-5 + z * -2.721_023_825_175_500_7e-7));
    1.0 - 0.5 * z + z * z * tail
}

/// The sine and cosine of a magnitude.
#[inline(always)]
fn sin_cos(magnitude: f32) -> (f64, f64) {
    let (quarter, r) = reduce(magnitude);
    let (s, c) = (near_sin(r), near_cos(r));
    let (sin, cos) = if quarter & 1 == 0 { (s, c) } else { (c, s) };
    let sin = if quarter & 2 == 0 { sin } else { -sin };
    let cos = if (quarter + 1) & 2 == 0 { cos } else { -cos };
    (sin, cos)
}

/// The sine.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let magnitude = x.abs();
    let result = sin_cos(magnitude).0 as f32;
    odd(x, magnitude, result)
}

/// The cosine.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let magnitude = x.abs();
    let result = sin_cos(magnitude).1 as f32;
    if magnitude < f32::INFINITY { result } else { f32::NAN }
}

/// The tangent.
#[inline(always)]
pub(crate) fn tan(x: f32) -> f32 {
    let magnitude = x.abs();
    let (sin, cos) = sin_cos(magnitude);
    odd(x, magnitude, (sin / cos) as f32)
}

/// An odd function's value at `x`, from that at its magnitude; NaN where `x` is not finite.
#[inline(always)]
fn odd(x: f32, magnitude: f32, at_magnitude: f32) -> f32 {
    let sign = x.to_bits() ^ magnitude.to_bits();
    let result = f32::from_bits(at_magnitude.to_bits() ^ sign);
    if magnitude < f32::INFINITY { result } else { f32::NAN }
}

/// The cosine and sine of so many parts of a turn out of 2^24, within two units in the last place of one.
///
/// Such an angle needs no reduction but by its bits, and is exact, so f32 is enough throughout.
#[inline(always)]
pub(crate) fn cos_sin_of_turn(part: u32) -> (f32, f32) {
    const QUARTER: u32 = 1 << 22;
    const STEP: f32 = (std::f64::consts::TAU / (1u32 << 24) as f64) as f32;
    let quarter = (part + QUARTER / 2) / QUARTER;
    let r = (part as i32 - (quarter * QUARTER) as i32) as f32 * STEP;
    let z = r * r;
    // The polynomials above, rounded.
    let s = r + r * z * (-0.166_666_67 + z * (0.008_333_329 + z * (-0.000_198_393_35 + z * 2.718_311_7e-6)));
    let c = 1.0 - 0.5 * z
        + z * z * (0.041_666_668 + z * (-0.001_388_888_4 + z * (2.479_952e-5 + z * -2.721_023_8e-7)));
    let (cos, sin) = if quarter & 1 == 0 { (c, s) } else { (s, c) };
    (if (quarter + 1) & 2 == 0 { cos } else { -cos }, if quarter & 2 == 0 { sin } else { -sin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_turn_are_accurate() {
        let worst = (0..1 << 24).step_by(7).map(|part| {
            let angle = std::f64::consts::TAU * f64::from(part) / f64::from(1 << 24);
            let (cos, sin) = cos_sin_of_turn(part);
            (f64::from(cos) - angle.cos()).abs().max((f64::from(sin) - angle.sin()).abs())
        });
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 1.2e-7, "{worst:e}");
        assert_eq!(cos_sin_of_turn(0), (1.0, 0.0));
        assert_eq!(cos_sin_of_turn(1 << 22), (0.0, 1.0));
        assert_eq!(cos_sin_of_turn(1 << 23), (-1.0, 0.0));
    }
}
