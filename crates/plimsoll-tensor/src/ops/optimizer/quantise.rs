//! Eight bits per number: dynamic quantisation, block by block.
//!
//! A block of numbers is divided by its greatest magnitude, the block's scale. What remains lies between 0 and 1 and is
//! written as a decade and an even division of it: a code with `k` bits below its highest one stands for the decade that
//! ends at 10^(k - N), where N is the greatest k, and the larger the number, the finer the division of its decade. The
//! scale itself is exact, magnitudes over seven decades stay apart, and codes rise with the numbers, so no table has to
//! be searched. Signed codes spend their highest bit on the sign.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::reduce::in_lanes;

/// The decades of a code without a sign, and of one with a sign, less one.
const UNSIGNED: u32 = 7;
const SIGNED: u32 = 6;

/// What each code stands for, as a part of the block's scale.
pub(super) static UNSIGNED_VALUES: [f32; 256] = values(UNSIGNED);
pub(super) static SIGNED_VALUES: [f32; 256] = values(SIGNED);

const fn values(finest: u32) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code: u32 = 1;
    while code < 256 {
        let magnitude = if finest == SIGNED { code & 0x7f } else { code };
        if magnitude > 0 {
            let n_bits = magnitude.ilog2();
            let n_steps = 1 << n_bits;
            let mut value = 0.1 + 0.9 * (magnitude + 1 - n_steps) as f64 / n_steps as f64;
            let mut decade = finest - n_bits;
            while decade > 0 {
                value /= 10.0;
                decade -= 1;
            }
            values[code as usize] = if magnitude < code { -value } else { value } as f32;
        }
        code += 1;
    }
    values
}

/// The nearest code of a number from 0 to 1; any code for what is not a number.
#[inline(always)]
fn code(x: f32, finest: u32) -> u32 {
    let (mut threshold, mut scale, mut n_steps) = (0.1f32, 1.0f32, (1 << finest) as f32);
    for _ in 0..finest {
        let is_lower = x <= threshold;
        scale = if is_lower { scale * 10.0 } else { scale };
        n_steps = if is_lower { n_steps * 0.5 } else { n_steps };
        threshold *= 0.1;
    }
    // Step zero of a decade is the last of the decade below, and its code is one less, too.
    let exact = n_steps - 1.0 + (x * scale - 0.1) * (n_steps / 0.9);
    // The last place of this number is one, so the sum is rounded, and ends in the code's bits: conversions from float to
    // integer check their range, and that does not vectorise.
    const TWO_POW_23: f32 = 8_388_608.0;
    (exact + TWO_POW_23).to_bits() & 0xff
}

/// Writes the codes of numbers that may be negative, and returns their scale.
#[inline(always)]
pub(super) fn quantise_signed(numbers: &[f32], codes: &mut [u8]) -> f32 {
    let (scale, inverse) = scale_of(numbers);
    for (to, &x) in codes.iter_mut().zip(numbers) {
        let sign = (x.to_bits() >> 31 << 7) as u8;
        *to = sign | code(x.abs() * inverse, SIGNED) as u8;
    }
    scale
}

/// Writes the codes of numbers that are not negative, and returns their scale. What is not zero does not become zero:
/// a divisor must not vanish.
#[inline(always)]
pub(super) fn quantise_unsigned(numbers: &[f32], codes: &mut [u8]) -> f32 {
    let (scale, inverse) = scale_of(numbers);
    for (to, &x) in codes.iter_mut().zip(numbers) {
        *to = code(x * inverse, UNSIGNED).max(u32::from(x > 0.0)) as u8;
    }
    scale
}

/// The greatest magnitude, and what numbers are multiplied by to be at most one. A number that is not one makes the
/// scale so, and with it the whole block, so that it is not lost.
#[inline(always)]
fn scale_of(numbers: &[f32]) -> (f32, f32) {
    let scale = in_lanes(numbers, 0.0, |x, _| x.abs(), Number::max);
    // A scale so small that its inverse overflows is as good as zero.
    let inverse = scale.recip();
    (scale, if inverse.is_finite() { inverse } else { 0.0 })
}

/// The numbers of a block from their codes and scale.
#[inline(always)]
pub(super) fn dequantise_signed(codes: &[u8], scale: f32, numbers: &mut [f32]) {
    for (x, &code) in numbers.iter_mut().zip(codes) {
        *x = SIGNED_VALUES[usize::from(code)] * scale;
    }
}

/// The numbers of a block from their codes and scale.
#[inline(always)]
pub(super) fn dequantise_unsigned(codes: &[u8], scale: f32, numbers: &mut [f32]) {
    for (x, &code) in numbers.iter_mut().zip(codes) {
        *x = UNSIGNED_VALUES[usize::from(code)] * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_nearest_of_its_own_value() {
        for code_value in 0..=u8::MAX {
            let x = UNSIGNED_VALUES[usize::from(code_value)];
            assert_eq!(code(x, UNSIGNED), u32::from(code_value), "{x}");
            let x = SIGNED_VALUES[usize::from(code_value & 0x7f)];
            assert_eq!(code(x, SIGNED), u32::from(code_value & 0x7f), "{x}");
            let negative = SIGNED_VALUES[usize::from(code_value | 0x80)];
            assert_eq!(negative, -x);
        }
    }

    #[test]
    fn codes_rise_with_the_values_and_end_at_one() {
        assert!(UNSIGNED_VALUES.is_sorted_by(|a, b| a < b));
        assert!(SIGNED_VALUES[..128].is_sorted_by(|a, b| a < b));
        assert_eq!((UNSIGNED_VALUES[255], SIGNED_VALUES[127], SIGNED_VALUES[0]), (1.0, 1.0, 0.0));
    }

    #[test]
    fn the_nearest_code_is_found_for_any_number() {
        for step in 0..=100_000u32 {
            let x = (step as f32 / 100_000.0).powi(3);
            let found = UNSIGNED_VALUES[code(x, UNSIGNED) as usize];
            let nearest = UNSIGNED_VALUES.iter().map(|value| (value - x).abs()).fold(1.0, f32::min);
            assert!((found - x).abs() <= nearest * 1.001 + 6e-8, "{x} became {found}");
        }
    }

    #[test]
    fn blocks_keep_their_greatest_and_lose_little_of_the_rest() {
        let numbers: Vec<f32> = (0..256).map(|idx| ((idx as f32) * 0.7).sin() * 3.7e-3).collect();
        let (mut codes, mut back) = ([0; 256], [0.0; 256]);
        let scale = quantise_signed(&numbers, &mut codes);
        dequantise_signed(&codes, scale, &mut back);
        for (x, y) in numbers.iter().zip(&back) {
            assert!((x - y).abs() <= scale * 0.9 / 64.0 / 2.0 + 1e-9, "{x} became {y}");
        }
        let greatest = numbers.iter().position(|x| x.abs() == scale).expect("the scale is one of them");
        assert_eq!(back[greatest], numbers[greatest]);
    }

    #[test]
    fn zeros_small_numbers_and_nan_stay_what_they_are() {
        let mut codes = [1; 4];
        assert_eq!((quantise_signed(&[0.0; 4], &mut codes), codes), (0.0, [0; 4]));
        quantise_unsigned(&[1.0, 1e-20, 0.0, 0.5], &mut codes);
        assert_eq!((codes[0], codes[1], codes[2]), (255, 1, 0));
        let scale = quantise_unsigned(&[1.0, f32::NAN, 2.0, 0.0], &mut codes);
        assert!(scale.is_nan());
    }
}
