//! The micro-kernels: one tile of C in registers, from one panel of A and one panel of B, or from operands that are
//! multiplied where they lie.
//!
//! Each is instantiated per instruction set, per number of rows up to the tallest tile that fits the registers, and
//! for one or two vectors of columns. Having every height means that rows are never padded: a block of 32 rows is
//! three panels of 11, 11 and 10 rather than 14, 14 and 4.

use crate::simd::Simd;

/// Bytes of a row of the widest tile of any instruction set; panels of B are padded to at most this.
pub(crate) const MAX_TILE_ROW_BYTES: usize = 128;

/// The most columns that any tile has.
pub(crate) const MAX_WIDTH: usize = MAX_TILE_ROW_BYTES / 4;

/// The most numbers that any tile has.
pub(crate) const MAX_TILE: usize = 14 * MAX_WIDTH;

/// Where a tile is written and what is added to it on the way.
#[derive(Clone, Copy)]
pub(crate) struct Target<T> {
    /// The tile's first number; its rows lie `row_stride` apart and their numbers side by side.
    pub tile: *mut T,
    /// Numbers between one row of the tile and the next.
    pub row_stride: isize,
    /// Whether the numbers already there are added.
    pub accumulate: bool,
    /// A row to add to every row of the tile, or null.
    pub bias: *const T,
}

/// Multiplies a packed panel of A (`depth` groups of one number per row) by a packed panel of B (`depth` groups of
/// one number per column).
pub(crate) type Tile<T> = unsafe fn(depth: usize, a: *const T, b: *const T, target: Target<T>);

/// # Safety
/// The processor must have the instruction set of `S`; `a` and `b` must hold `depth` groups of `ROWS` and of
/// `VECTORS * S::LANES` numbers, `target` a tile of that size, its bias null or such a row.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    depth: usize,
    a: *const S::Real,
    b: *const S::Real,
    target: Target<S::Real>,
) {
    // SAFETY: all addresses stay within the panels and the tile that the caller promises.
    unsafe {
        for i in 0..ROWS {
            let row = target.tile.offset(i as isize * target.row_stride);
            for v in 0..VECTORS {
                S::prefetch(row.add(v * S::LANES));
            }
        }
        let mut sums = [[S::zero(); VECTORS]; ROWS];
        for p in 0..depth {
            let mut row_of_b = [S::zero(); VECTORS];
            for (v, vector) in row_of_b.iter_mut().enumerate() {
                *vector = S::load(b.add((p * VECTORS + v) * S::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let number_of_a = S::splat(*a.add(p * ROWS + i));
                for (sum, vector) in sums.iter_mut().zip(row_of_b) {
                    *sum = S::mul_add(number_of_a, vector, *sum);
                }
            }
        }
        finish::<S, ROWS, VECTORS>(&sums, target);
    }
}

/// Two operands that are multiplied where they lie. The depth is walked in three nested loops.
#[derive(Clone, Copy)]
pub(crate) struct InPlace<T> {
    /// The first number of A at the first depth, and numbers from there to each row's.
    pub a: *const T,
    pub rows: *const isize,
    /// The first number of B's first row; its columns lie side by side.
    pub b: *const T,
    /// Turns of the loops, outermost first, and numbers from one turn to the next in A and in B.
    pub turns: [usize; 3],
    pub a_steps: [isize; 3],
    pub b_steps: [isize; 3],
}

/// Multiplies operands in place.
pub(crate) type InPlaceTile<T> = unsafe fn(operands: &InPlace<T>, target: Target<T>);

/// # Safety
/// The processor must have the instruction set of `S`; there must be `ROWS` rows, all numbers that the loops lead to must
/// be readable, those of B in stretches of `VECTORS * S::LANES`, and `target` must be a tile of that size, its bias null or
/// such a row.
#[inline(always)]
pub(crate) unsafe fn in_place<S: Simd, const ROWS: usize, const VECTORS: usize>(
    operands: &InPlace<S::Real>,
    target: Target<S::Real>,
) {
    let InPlace { a, rows, b, turns, a_steps, b_steps } = *operands;
    // SAFETY: all addresses are those that the caller promises.
    unsafe {
        let rows: [isize; ROWS] = std::array::from_fn(|i| *rows.add(i));
        let mut sums = [[S::zero(); VECTORS]; ROWS];
        for outer in 0..turns[0] as isize {
            for middle in 0..turns[1] as isize {
                let mut a = a.offset(outer * a_steps[0] + middle * a_steps[1]);
                let mut b = b.offset(outer * b_steps[0] + middle * b_steps[1]);
                for _ in 0..turns[2] {
                    let row_of_b: [_; VECTORS] = std::array::from_fn(|v| S::load(b.add(v * S::LANES)));
                    for (sums, &row) in sums.iter_mut().zip(&rows) {
                        let number_of_a = S::splat(*a.offset(row));
                        for (sum, vector) in sums.iter_mut().zip(row_of_b) {
                            *sum = S::mul_add(number_of_a, vector, *sum);
                        }
                    }
                    a = a.wrapping_offset(a_steps[2]);
                    b = b.wrapping_offset(b_steps[2]);
                }
            }
        }
        finish::<S, ROWS, VECTORS>(&sums, target);
    }
}

/// Writes the sums of a tile.
///
/// # Safety
/// See [`tile`].
#[inline(always)]
unsafe fn finish<S: Simd, const ROWS: usize, const VECTORS: usize>(
    sums: &[[S::Vector; VECTORS]; ROWS],
    target: Target<S::Real>,
) {
    // SAFETY: the caller promises the tile and the bias.
    unsafe {
        for (i, sums) in sums.iter().enumerate() {
            let row = target.tile.offset(i as isize * target.row_stride);
            for (v, sum) in sums.iter().enumerate() {
                let mut sum = *sum;
                if target.accumulate {
                    sum = S::add(S::load(row.add(v * S::LANES)), sum);
                }
                if !target.bias.is_null() {
                    sum = S::add(sum, S::load(target.bias.add(v * S::LANES)));
                }
                S::store(row.add(v * S::LANES), sum);
            }
        }
    }
}
