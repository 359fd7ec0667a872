//! Kernels of a matrix times a vector, which read each number of the matrix once and pack nothing.

use crate::element::Real;
use crate::simd::Simd;
use crate::tile::MAX_WIDTH;

/// Adds to sums, number by number, the products of pairs of stretches.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<'a, T> {
    pub pairs: &'a [[*const T; 2]],
    pub sums: *mut T,
    /// Numbers of every stretch.
    pub len: usize,
}

/// Lanes of a matrix over a stretch of depth, the stretch of the vector, and the sums to add to.
#[derive(Clone, Copy)]
pub(crate) struct ByVector<T> {
    /// The number at the first lane and depth. Along one of the two, numbers lie side by side.
    pub first: *const T,
    /// Numbers between neighbours along the other.
    pub stride: isize,
    /// Lanes, and sums.
    pub n_lanes: usize,
    /// Depth, and numbers of the vector.
    pub depth: usize,
    pub vector: *const T,
    pub sums: *mut T,
}

/// Lanes that `dots` reads at once, and vectors of each; both only to have enough sums under way.
const DOT_LANES: usize = 4;
const DOT_VECTORS: usize = 2;

/// Adds to each sum the product of a lane, whose numbers lie side by side, and the vector.
///
/// # Safety
/// The processor must have the instruction set of `S`; matrix, vector and sums must be as large as they say.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd<Real: Real>>(by: ByVector<S::Real>) {
    let ByVector { first, stride: lane_stride, n_lanes, depth, vector, sums } = by;
    // SAFETY: all lanes lie within what the caller promises.
    unsafe {
        let whole = n_lanes - n_lanes % DOT_LANES;
        for lane in (0..whole).step_by(DOT_LANES) {
            let first = first.offset(lane as isize * lane_stride);
            some_dots::<S, DOT_LANES>(first, lane_stride, vector, depth, sums.add(lane));
        }
        for lane in whole..n_lanes {
            some_dots::<S, 1>(first.offset(lane as isize * lane_stride), 0, vector, depth, sums.add(lane));
        }
    }
}

/// The products of `N` lanes; each is summed in the same order whatever `N` is.
///
/// # Safety
/// See [`dots`].
#[inline(always)]
unsafe fn some_dots<S: Simd<Real: Real>, const N: usize>(
    first: *const S::Real,
    lane_stride: isize,
    vector: *const S::Real,
    depth: usize,
    sums: *mut S::Real,
) {
    // SAFETY: the caller promises `N` lanes of `depth` numbers, and as many sums.
    unsafe {
        let step = DOT_VECTORS * S::LANES;
        let mut partial = [[S::zero(); DOT_VECTORS]; N];
        for p in (0..depth - depth % step).step_by(step) {
            for v in 0..DOT_VECTORS {
                let at = p + v * S::LANES;
                let x = S::load(vector.add(at));
                for (i, partial) in partial.iter_mut().enumerate() {
                    let lane = first.offset(i as isize * lane_stride);
                    partial[v] = S::mul_add(S::load(lane.add(at)), x, partial[v]);
                }
            }
        }
        for (i, partial) in partial.iter().enumerate() {
            let mut numbers = [S::Real::default(); MAX_WIDTH];
            for (v, partial) in partial.iter().enumerate() {
                S::store(numbers.as_mut_ptr().add(v * S::LANES), *partial);
            }
            let mut half = step;
            while half > 1 {
                half /= 2;
                for j in 0..half {
                    let other = numbers[half + j];
                    numbers[j] += other;
                }
            }
            let mut sum = numbers[0];
            for p in depth - depth % step..depth {
                sum += *first.offset(i as isize * lane_stride).add(p) * *vector.add(p);
            }
            *sums.add(i) += sum;
        }
    }
}

/// Groups that `combine` adds at once, so that sums are read and written less often.
const COMBINED: usize = 8;

/// Adds to the sums all groups, whose numbers lie side by side, each times its number of the vector.
///
/// # Safety
/// See [`dots`].
#[inline(always)]
pub(crate) unsafe fn combine<S: Simd<Real: Real>>(by: ByVector<S::Real>) {
    let ByVector { first, stride: depth_stride, n_lanes, depth, vector, sums } = by;
    // SAFETY: all groups lie within what the caller promises.
    unsafe {
        let whole = depth - depth % COMBINED;
        for p in (0..whole).step_by(COMBINED) {
            let first = first.offset(p as isize * depth_stride);
            combine_some::<S, COMBINED>(first, depth_stride, n_lanes, vector.add(p), sums);
        }
        for p in whole..depth {
            combine_some::<S, 1>(first.offset(p as isize * depth_stride), 0, n_lanes, vector.add(p), sums);
        }
    }
}

/// Adds `N` groups.
///
/// # Safety
/// See [`combine`].
#[inline(always)]
unsafe fn combine_some<S: Simd<Real: Real>, const N: usize>(
    first: *const S::Real,
    depth_stride: isize,
    n_lanes: usize,
    vector: *const S::Real,
    sums: *mut S::Real,
) {
    // SAFETY: the caller promises `N` groups of `n_lanes` numbers, and as many sums.
    unsafe {
        let whole = n_lanes - n_lanes % S::LANES;
        for lane in (0..whole).step_by(S::LANES) {
            let mut sum = S::load(sums.add(lane));
            for p in 0..N {
                let numbers = S::load(first.offset(p as isize * depth_stride).add(lane));
                sum = S::mul_add(numbers, S::splat(*vector.add(p)), sum);
            }
            S::store(sums.add(lane), sum);
        }
        for lane in whole..n_lanes {
            for p in 0..N {
                *sums.add(lane) += *first.offset(p as isize * depth_stride).add(lane) * *vector.add(p);
            }
        }
    }
}

/// Adds to sums, number by number, the products of pairs of stretches.
///
/// # Safety
/// The processor must have the instruction set of `S`; sums and stretches must be as long as they say.
#[inline(always)]
pub(crate) unsafe fn add_products<S: Simd<Real: Real>>(pairs: Pairs<'_, S::Real>) {
    let Pairs { pairs, sums, len } = pairs;
    let block = SUMS_AT_ONCE * S::LANES;
    let (in_blocks, in_vectors) = (len - len % block, len - len % S::LANES);
    // SAFETY: the caller promises `len` numbers at every address.
    unsafe {
        for at in (0..in_blocks).step_by(block) {
            add_some_products::<S, SUMS_AT_ONCE>(pairs, sums, at);
        }
        for at in (in_blocks..in_vectors).step_by(S::LANES) {
            add_some_products::<S, 1>(pairs, sums, at);
        }
        for at in in_vectors..len {
            for [x, y] in pairs {
                *sums.add(at) += *x.add(at) * *y.add(at);
            }
        }
    }
}

/// Vectors of sums that `add_products` forms at once, so that one need not wait for another.
const SUMS_AT_ONCE: usize = 4;

/// Adds the products of `N` vectors of each stretch.
///
/// # Safety
/// See [`add_products`].
#[inline(always)]
unsafe fn add_some_products<S: Simd, const N: usize>(
    pairs: &[[*const S::Real; 2]],
    sums: *mut S::Real,
    at: usize,
) {
    // SAFETY: the caller promises `N` vectors at every address.
    unsafe {
        let mut vectors = [S::zero(); N];
        for (v, vector) in vectors.iter_mut().enumerate() {
            *vector = S::load(sums.add(at + v * S::LANES));
        }
        for [x, y] in pairs {
            for (v, vector) in vectors.iter_mut().enumerate() {
                let at = at + v * S::LANES;
                *vector = S::mul_add(S::load(x.add(at)), S::load(y.add(at)), *vector);
            }
        }
        for (v, vector) in vectors.iter().enumerate() {
            S::store(sums.add(at + v * S::LANES), *vector);
        }
    }
}
