//! Random numbers by counting: Philox4x32-10.
//!
//! The generator is a function, not a state: block `i` of draw `d` under a key is four words, and element `e` of the draw
//! takes word `e % 4` of block `e / 4`. So elements can be computed in any order, by any number of threads and on any
//! device, with the same bits. 64-bit values take two words each, words 0 and 1 or words 2 and 3 of block `e / 2`.
//!
//! The function is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). The key
//! is the seed, least significant half first; the counter's words are the block number and the draw number, each least
//! significant half first.

use std::f64::consts::TAU;

use crate::element::{CastTo, Element};
use crate::map::generate;
use crate::math::Real;
use crate::trig;

/// The numbers of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The generator's seed.
    pub seed: u64,
    /// Which draw from the generator this is.
    pub number: u64,
}

/// Four words by ten rounds of Philox4x32.
#[inline(always)]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    /// The published multipliers, and the steps of the key from round to round.
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    for _ in 0..10 {
        let product_0 = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let product_1 = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (product_1 >> 32) as u32 ^ counter[1] ^ key[0],
            product_1 as u32,
            (product_0 >> 32) as u32 ^ counter[3] ^ key[1],
            product_0 as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

impl Draw {
    /// Block `idx` of this draw.
    #[inline(always)]
    pub fn block(&self, idx: u64) -> [u32; 4] {
        philox(
            [idx as u32, (idx >> 32) as u32, self.number as u32, (self.number >> 32) as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// Word of element `idx`.
    #[inline(always)]
    pub fn word(&self, idx: usize) -> u32 {
        self.block(idx as u64 / 4)[idx % 4]
    }

    /// Writes the words of the elements from index `first` on, which is a multiple of four.
    ///
    /// Ops that need random bits within a tile of their own (dropout) call this; inlined into vectorised code it is
    /// vectorised too.
    #[inline(always)]
    pub fn words(&self, first: usize, words: &mut [u32]) {
        debug_assert!(first.is_multiple_of(4), "a run of words begins with a block");
        let (blocks, rest) = words.as_chunks_mut::<4>();
        let first_block = first as u64 / 4;
        for (idx, words) in blocks.iter_mut().enumerate() {
            *words = self.block(first_block + idx as u64);
        }
        let last = self.block(first_block + blocks.len() as u64);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// A float that the generator makes from its words.
pub trait Random: Real {
    /// How many words one value takes.
    const N_WORDS: usize;

    /// A value in [0, 1), every multiple of the step equally likely: 2^-24 for f32, 2^-53 for f64. `words` holds
    /// [`Random::N_WORDS`] words.
    fn unit(words: &[u32]) -> Self;

    /// The cosine and sine of that part of a whole turn.
    fn turn(words: &[u32]) -> (Self, Self);
}

impl Random for f32 {
    const N_WORDS: usize = 1;

    #[inline(always)]
    fn unit(words: &[u32]) -> f32 {
        (words[0] >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    #[inline(always)]
    fn turn(words: &[u32]) -> (f32, f32) {
        trig::cos_sin_of_turn(words[0] >> 8)
    }
}

impl Random for f64 {
    const N_WORDS: usize = 2;

    #[inline(always)]
    fn unit(words: &[u32]) -> f64 {
        let bits = u64::from(words[1]) << 32 | u64::from(words[0]);
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    #[inline(always)]
    fn turn(words: &[u32]) -> (f64, f64) {
        let angle = TAU * f64::unit(words);
        (angle.cos(), angle.sin())
    }
}

/// The greatest number of words that a tile takes: two for each of 512, or one for each of 1024 elements.
const TILE_WORDS: usize = 1024;

/// Fills `output` with values in [low, high), computed as `low + (high - low) * unit`.
///
/// Narrow types are computed in f32 and rounded, which may give `high` itself.
///
/// # Safety
/// `output` is valid for writes of `len` elements.
pub unsafe fn uniform<T>(len: usize, output: *mut T, draw: Draw, low: T::Compute, high: T::Compute)
where
    T: Element<Compute: Random>,
{
    let span = high - low;
    // SAFETY: the caller's promise.
    unsafe {
        generate(
            len,
            output,
            #[inline(always)]
            |first, tile: &mut [T::Compute]| {
                let mut words = [0; TILE_WORDS];
                let n_words = <T::Compute as Random>::N_WORDS;
                draw.words(first * n_words, &mut words[..tile.len() * n_words]);
                for (value, words) in tile.iter_mut().zip(words.chunks_exact(n_words)) {
                    *value = low + span * T::Compute::unit(words);
                }
            },
        );
    }
}

/// Fills `output` with normally distributed values.
///
/// Elements come in pairs by the transform of Box and Muller: with the units `u` and `v` of elements `2i` and `2i + 1`,
/// `r = sqrt(-2 ln(1 - u))`, element `2i` is `r cos(2 pi v)` and element `2i + 1` is `r sin(2 pi v)`.
///
/// # Safety
/// `output` is valid for writes of `len` elements.
pub unsafe fn normal<T>(len: usize, output: *mut T, draw: Draw, mean: T::Compute, std: T::Compute)
where
    T: Element<Compute: Random>,
{
    // SAFETY: the caller's promise.
    unsafe {
        generate(
            len,
            output,
            #[inline(always)]
            |first, tile: &mut [T::Compute]| {
                let mut words = [0; TILE_WORDS];
                let n_words = <T::Compute as Random>::N_WORDS;
                // A last element without a partner still needs its partner's words.
                let n_pairs = tile.len().div_ceil(2);
                draw.words(first * n_words, &mut words[..2 * n_pairs * n_words]);
                normal_tile(&words[..2 * n_pairs * n_words], mean, std, tile);
            },
        );
    }
}

/// Box and Muller's transform of a tile's words.
#[inline(always)]
fn normal_tile<T: Random>(words: &[u32], mean: T, std: T, tile: &mut [T]) {
    let mut halves = [[T::ZERO; TILE_WORDS / 2]; 2];
    let [cosines, sines] = &mut halves;
    for ((words, c), s) in words.chunks_exact(2 * T::N_WORDS).zip(&mut *cosines).zip(&mut *sines) {
        let (u, (cos, sin)) = (T::unit(&words[..T::N_WORDS]), T::turn(&words[T::N_WORDS..]));
        let r = (T::from_f64(-2.0) * (T::ONE - u).ln()).sqrt() * std;
        *c = mean + r * cos;
        *s = mean + r * sin;
    }
    for (idx, value) in tile.iter_mut().enumerate() {
        *value = if idx % 2 == 0 { cosines[idx / 2] } else { sines[idx / 2] };
    }
}

/// Fills `output` with integers in [low, high): `low + floor(bits * (high - low) / 2^64)` with 64 bits for each.
///
/// # Panics
/// `low` is not less than `high`.
///
/// # Safety
/// `output` is valid for writes of `len` elements.
pub unsafe fn integers<T>(len: usize, output: *mut T, draw: Draw, low: i64, high: i64)
where
    T: Element,
    i64: CastTo<T::Compute>,
{
    assert!(low < high, "no integer is at least {low} and less than {high}");
    let span = high.wrapping_sub(low) as u64;
    // SAFETY: the caller's promise.
    unsafe {
        generate(
            len,
            output,
            #[inline(always)]
            |first, tile: &mut [T::Compute]| {
                let mut words = [0; TILE_WORDS];
                for (idx, values) in tile.chunks_mut(TILE_WORDS / 2).enumerate() {
                    draw.words(2 * first + idx * TILE_WORDS, &mut words[..2 * values.len()]);
                    for (value, &[low_word, high_word]) in values.iter_mut().zip(words.as_chunks::<2>().0) {
                        let bits = u64::from(high_word) << 32 | u64::from(low_word);
                        let above_low = ((u128::from(bits) * u128::from(span)) >> 64) as i64;
                        *value = low.wrapping_add(above_low).cast();
                    }
                }
            },
        );
    }
}

/// The threshold of a keep-decision: an element is kept when its word is less.
///
/// `keep` is the probability of keeping; one keeps every element but those whose word is the greatest of all, so ops
/// that keep everything do not ask.
pub fn keep_threshold(keep: f64) -> u32 {
    (keep.clamp(0.0, 1.0) * (u64::from(u32::MAX) + 1) as f64).min(f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::with_threads;
    use half::bf16;

    #[test]
    fn philox_gives_the_published_values() {
        const ONES: u32 = u32::MAX;
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344, 0xa409_3822, 0x299f_31d0];
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ONES; 4], [ONES; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([pi[0], pi[1], pi[2], pi[3]], [pi[4], pi[5]]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    const DRAW: Draw = Draw { seed: 0x0123_4567_89ab_cdef, number: 3 };

    /// Runs a fill with 1, 2 and 7 threads, checks that the bits agree, and returns the values.
    fn filled<T: Element>(len: usize, fill: impl Fn(usize, *mut T)) -> Vec<T> {
        let mut runs = [1, 2, 7].map(|n_threads| {
            let mut values = vec![T::default(); len];
            with_threads(n_threads, || fill(len, values.as_mut_ptr()));
            values
        });
        assert_eq!(runs[0], runs[1]);
        assert_eq!(runs[0], runs[2]);
        std::mem::take(&mut runs[0])
    }

    /// Mean and variance.
    fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
        let n = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / n;
        (mean, values.map(|x| (x - mean) * (x - mean)).sum::<f64>() / n)
    }

    #[test]
    fn elements_are_words_of_their_block() {
        let mut words = [0; 11];
        DRAW.words(8, &mut words);
        assert!(words.iter().enumerate().all(|(i, &word)| word == DRAW.word(8 + i)));
        // SAFETY: `filled` passes a vector of that length.
        let values = filled::<f32>(100_003, |len, ptr| unsafe { uniform(len, ptr, DRAW, 0.0, 1.0) });
        for idx in [0, 1, 2, 3, 4, 1023, 1024, 50_001, 100_002] {
            assert_eq!(values[idx], (DRAW.word(idx) >> 8) as f32 / 16_777_216.0);
        }
    }

    #[test]
    fn uniform_values_fill_their_interval() {
        // SAFETY: `filled` passes a vector of that length.
        let values = filled::<f64>(200_001, |len, ptr| unsafe { uniform(len, ptr, DRAW, -2.0, 4.0) });
        assert!(values.iter().all(|&x| (-2.0..4.0).contains(&x)));
        let (mean, variance) = moments(values.iter().copied());
        assert!((mean - 1.0).abs() < 0.02 && (variance - 3.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn normal_values_have_their_moments() {
        // SAFETY: `filled` passes a vector of that length.
        let singles = filled::<f32>(200_001, |len, ptr| unsafe { normal(len, ptr, DRAW, 1.0, 2.0) });
        // SAFETY: as above.
        let doubles = filled::<f64>(200_001, |len, ptr| unsafe { normal(len, ptr, DRAW, 1.0, 2.0) });
        // SAFETY: as above.
        let narrow = filled::<bf16>(200_001, |len, ptr| unsafe { normal(len, ptr, DRAW, 1.0, 2.0) });
        for (mean, variance) in [
            moments(singles.iter().map(|&x| f64::from(x))),
            moments(doubles.iter().copied()),
            moments(narrow.iter().map(|&x| x.to_f64())),
        ] {
            assert!((mean - 1.0).abs() < 0.02 && (variance - 4.0).abs() < 0.05, "{mean} {variance}");
        }
        let within = doubles.iter().filter(|&&x| (x - 1.0).abs() < 2.0).count() as f64 / 200_001.0;
        assert!((within - 0.6827).abs() < 0.005, "{within}");
        assert!(singles.iter().zip(&narrow).all(|(&x, &y)| bf16::from_f32(x) == y));
    }

    #[test]
    fn integers_are_equally_likely() {
        // SAFETY: `filled` passes a vector of that length.
        let values = filled::<i32>(100_001, |len, ptr| unsafe { integers(len, ptr, DRAW, -2, 3) });
        for expected in -2..3 {
            let share = values.iter().filter(|&&x| x == expected).count() as f64 / 100_001.0;
            assert!((share - 0.2).abs() < 0.01, "{expected}: {share}");
        }
    }

    #[test]
    fn thresholds_keep_their_share() {
        let threshold = keep_threshold(0.9);
        let kept = (0..100_000).filter(|&i| DRAW.word(i) < threshold).count();
        assert!((kept as f64 / 1e5 - 0.9).abs() < 0.005, "{kept}");
        assert_eq!((keep_threshold(0.0), keep_threshold(1.0)), (0, u32::MAX));
    }
}
