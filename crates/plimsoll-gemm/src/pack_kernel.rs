//! Kernels that bring numbers into the order of a panel: groups of `width` numbers, one per lane, one group per
//! depth; numbers beyond the last lane become zero.

use crate::element::Real;
use crate::simd::{MAX_SIDE, Simd};

/// Lanes of a matrix. Along either lanes or depth, numbers lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<T> {
    /// The number at the first lane and depth.
    pub first: *const T,
    /// Numbers between neighbours along the side that is not side by side.
    pub stride: isize,
    pub n_lanes: usize,
}

/// Writes lanes that lie side by side into a panel.
///
/// # Safety
/// The lanes must have `panel.len() / width` numbers each, and there must be at most `width` of them.
#[inline(always)]
pub(crate) unsafe fn copy<T: Real>(lanes: Lanes<T>, width: usize, panel: &mut [T]) {
    // SAFETY: the caller promises the lanes, of which there are at least as many as a chunk has.
    unsafe {
        match lanes.n_lanes {
            16.. => copy_in_chunks::<T, 16>(lanes, width, panel),
            8.. => copy_in_chunks::<T, 8>(lanes, width, panel),
            4.. => copy_in_chunks::<T, 4>(lanes, width, panel),
            1.. => copy_in_chunks::<T, 1>(lanes, width, panel),
            0 => panel.fill(T::default()),
        }
    }
}

/// Copies each group in chunks of a fixed size, which take no call; the last overlaps the one before it.
///
/// # Safety
/// See [`copy`]; there must be at least `CHUNK` lanes.
#[inline(always)]
unsafe fn copy_in_chunks<T: Real, const CHUNK: usize>(lanes: Lanes<T>, width: usize, panel: &mut [T]) {
    for (p, group) in panel.chunks_exact_mut(width).enumerate() {
        // SAFETY: chunks lie within the group and within the lanes that the caller promises.
        unsafe {
            let from = lanes.first.offset(p as isize * lanes.stride);
            for idx in 0..lanes.n_lanes.div_ceil(CHUNK) {
                let at = (idx * CHUNK).min(lanes.n_lanes - CHUNK);
                let chunk = from.add(at).cast::<[T; CHUNK]>().read();
                group.as_mut_ptr().add(at).cast::<[T; CHUNK]>().write(chunk);
            }
        }
        group[lanes.n_lanes..].fill(T::default());
    }
}

/// Writes lanes, each with its depths side by side, into a panel.
///
/// A few lanes are walked along their whole depth before the next few, because lanes often lie a power of two
/// apart and more of them at once would evict each other from the cache. The last few come first: their squares
/// reach beyond the group into the next, whose first lanes are then written over.
///
/// # Safety
/// The processor must have the instruction set of `S`; the lanes must have `panel.len() / width` numbers each, and
/// there must be between one and `width` of them.
#[inline(always)]
pub(crate) unsafe fn transpose<S: Simd<Real: Real>>(
    lanes: Lanes<S::Real>,
    width: usize,
    panel: &mut [S::Real],
) {
    let Lanes { first, stride: lane_stride, n_lanes } = lanes;
    let depth = panel.len() / width;
    for lane in (0..n_lanes).step_by(S::SIDE).rev() {
        // SAFETY: rows are clamped to the last lane, depths to those of the panel, and squares are only written where
        // they end within the panel.
        unsafe {
            let row = |i: usize| first.offset((lane + i).min(n_lanes - 1) as isize * lane_stride);
            let mut rows: [_; MAX_SIDE] = std::array::from_fn(row);
            let mut p = 0;
            while p + S::SIDE <= depth && (p + S::SIDE - 1) * width + lane + S::SIDE <= panel.len() {
                S::transpose(&rows, panel.as_mut_ptr().add(p * width + lane), width);
                rows = rows.map(|row| row.add(S::SIDE));
                p += S::SIDE;
            }
            let rest = &mut panel[p * width..];
            for (p, group) in rest.chunks_exact_mut(width).enumerate() {
                for (number, row) in group[lane..n_lanes].iter_mut().zip(&rows[..S::SIDE]) {
                    *number = *row.add(p);
                }
            }
        }
    }
    if n_lanes < width {
        panel.chunks_exact_mut(width).for_each(|group| group[n_lanes..].fill(S::Real::default()));
    }
}
