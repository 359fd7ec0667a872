//! Normally distributed numbers within two standard deviations of their mean.
//!
//! Each element is the inverse of the normal distribution at a number evenly distributed between its two tails. Nothing
//! is drawn again, so the bits of an element depend on (seed, draw, element) alone. The inverse is evaluated in f64 by
//! the rational functions of Wichura's algorithm AS 241 (1988), whose relative error is about 1e-16.

use crate::element::Element;
use crate::map::{TILE_BYTES, generate};
use crate::math::Real;
use crate::random::{Draw, Random};

/// The words of one tile: a value takes as many bytes as its words.
const TILE_WORDS: usize = TILE_BYTES / size_of::<u32>();

/// The probability of a normal number to lie between the mean and two deviations above it.
const HALF_MASS: f64 = 0.477_249_868_051_820_8;

/// Fills `output` with normally distributed values that are at most two deviations from the mean.
///
/// # Safety
/// `output` is valid for writes of `len` elements.
pub unsafe fn truncated_normal<T>(len: usize, output: *mut T, draw: Draw, mean: f64, std: f64)
where
    T: Element<Compute: Random>,
{
    let fill = |first: usize, tile: &mut [T::Compute]| {
        let mut words = [0; TILE_WORDS];
        let n_words = <T::Compute as Random>::N_WORDS;
        draw.words(first * n_words, &mut words[..tile.len() * n_words]);
        for (value, words) in tile.iter_mut().zip(words.chunks_exact(n_words)) {
            let from_middle = (2.0 * T::Compute::unit(words).to_f64() - 1.0) * HALF_MASS;
            *value = T::Compute::from_f64(mean + std * deviations(from_middle).clamp(-2.0, 2.0));
        }
    };
    // SAFETY: the caller's promise.
    unsafe { generate(len, output, fill) }
}

/// The number of deviations below which a normal number lies with probability `1/2 + q`, for `|q|` up to [`HALF_MASS`].
fn deviations(q: f64) -> f64 {
    /// Where the formula for the middle ends.
    const MIDDLE: f64 = 0.425;
    if q.abs() <= MIDDLE {
        return q * ratio(MIDDLE * MIDDLE - q * q, &MIDDLE_ABOVE, &MIDDLE_BELOW);
    }
    let r = (-(0.5 - q.abs()).ln()).sqrt();
    ratio(r - 1.6, &TAIL_ABOVE, &TAIL_BELOW).copysign(q)
}

/// The ratio of two polynomials, coefficients lowest power first.
fn ratio(x: f64, above: &[f64; 8], below: &[f64; 8]) -> f64 {
    let polynomial = |coefficients: &[f64; 8]| coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    polynomial(above) / polynomial(below)
}

const MIDDLE_ABOVE: [f64; 8] = [
    3.387_132_872_796_366_5,
    133.141_667_891_784_38,
    1_971.590_950_306_551_3,
    13_731.693_765_509_46,
    45_921.953_931_549_87,
    67_265.770_927_008_7,
    33_430.575_583_588_13,
    2_509.080_928_730_122_7,
];
const MIDDLE_BELOW: [f64; 8] = [
    1.0,
    42.313_330_701_600_91,
    687.187_007_492_057_9,
    5_394.196_021_424_751,
    21_213.794_301_586_597,
    39_307.895_800_092_71,
    28_729.085_735_721_943,
    5_226.495_278_852_854,
];
const TAIL_ABOVE: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    0.241_780_725_177_450_6,
    0.022_723_844_989_269_184,
    0.000_774_545_014_278_341_4,
];
const TAIL_BELOW: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    0.689_767_334_985_1,
    0.148_103_976_427_480_08,
    0.015_198_666_563_616_457,
    0.000_547_593_808_499_534_5,
    1.050_750_071_644_416_9e-9,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::with_threads;
    use half::bf16;

    const DRAW: Draw = Draw { seed: 17, number: 5 };

    fn filled<T: Element<Compute: Random>>(len: usize, mean: f64, std: f64) -> Vec<T> {
        let runs = [1, 2, 7].map(|n_threads| {
            let mut values = vec![T::default(); len];
            // SAFETY: the vector has that length.
            with_threads(n_threads, || unsafe {
                truncated_normal(len, values.as_mut_ptr(), DRAW, mean, std);
            });
            values
        });
        assert!(runs[0] == runs[1] && runs[0] == runs[2], "the bits do not depend on threads");
        let [values, ..] = runs;
        values
    }

    #[test]
    fn the_inverse_undoes_the_distribution() {
        for step in -1000..=1000 {
            let q = f64::from(step) / 1000.0 * HALF_MASS;
            let back = 0.5 * libm::erf(deviations(q) / 2f64.sqrt());
            assert!((back - q).abs() < 3e-16, "{q}: {back}");
        }
        assert!((deviations(HALF_MASS) - 2.0).abs() < 1e-14);
    }

    #[test]
    fn values_have_their_moments_and_bounds() {
        let check = |values: &[f64]| {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let moment = |power| values.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / n;
            assert!(values.iter().all(|x| (-3.0..=5.0).contains(x)));
            // With a deviation of 2, that of the part between the bounds is 2 √0.77374, and its skewness is zero.
            assert!((mean - 1.0).abs() < 0.015, "{mean}");
            assert!((moment(2) - 4.0 * 0.773_741).abs() < 0.03, "{}", moment(2));
            assert!(moment(3).abs() < 0.08, "{}", moment(3));
            assert!(values.iter().any(|x| *x > 4.9) && values.iter().any(|x| *x < -2.9));
        };
        check(&filled::<f64>(200_001, 1.0, 2.0));
        let singles = filled::<f32>(200_001, 1.0, 2.0);
        check(&singles.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        let narrow = filled::<bf16>(200_001, 1.0, 2.0);
        assert!(singles.iter().zip(&narrow).all(|(&x, &y)| bf16::from_f32(x) == y));
    }

    #[test]
    fn an_element_depends_on_its_number_alone() {
        let (few, many) = (filled::<f32>(5, 0.0, 1.0), filled::<f32>(70_000, 0.0, 1.0));
        assert_eq!(few, many[..5]);
    }
}
