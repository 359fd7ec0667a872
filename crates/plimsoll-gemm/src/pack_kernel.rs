//! Kernels that bring numbers into the order of a panel: groups of `width` numbers, one per lane, one group per
//! depth; numbers beyond the last lane become zero.

use crate::element::Real;
use crate::simd::{MAX_SIDE, Simd};

/// Groups of numbers in memory, one per depth, whose lanes lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct Groups<T> {
    /// The first number of the first group.
    pub first: *const T,
    /// Numbers from one group to the next.
    pub stride: isize,
    /// Numbers of a group.
    pub n_lanes: usize,
}

/// Packs groups.
///
/// # Safety
/// There must be `panel.len() / width` groups of at most `width` numbers.
#[inline(always)]
pub(crate) unsafe fn copy<T: Real>(groups: Groups<T>, width: usize, panel: &mut [T]) {
    // SAFETY: the caller promises the groups, which have at least as many lanes as a chunk.
    unsafe {
        match groups.n_lanes {
            16.. => copy_in_chunks::<T, 16>(groups, width, panel),
            8.. => copy_in_chunks::<T, 8>(groups, width, panel),
            4.. => copy_in_chunks::<T, 4>(groups, width, panel),
            1.. => copy_in_chunks::<T, 1>(groups, width, panel),
            0 => panel.fill(T::default()),
        }
    }
}

/// Copies each group in chunks of a fixed size, which take no call; the last overlaps the one before it.
///
/// # Safety
/// See [`copy`]; there must be at least `CHUNK` lanes.
#[inline(always)]
unsafe fn copy_in_chunks<T: Real, const CHUNK: usize>(groups: Groups<T>, width: usize, panel: &mut [T]) {
    for (p, group) in panel.chunks_exact_mut(width).enumerate() {
        // SAFETY: chunks lie within the group and within the lanes that the caller promises.
        unsafe {
            let from = groups.first.offset(p as isize * groups.stride);
            for idx in 0..groups.n_lanes.div_ceil(CHUNK) {
                let at = (idx * CHUNK).min(groups.n_lanes - CHUNK);
                let chunk = from.add(at).cast::<[T; CHUNK]>().read();
                group.as_mut_ptr().add(at).cast::<[T; CHUNK]>().write(chunk);
            }
        }
        group[groups.n_lanes..].fill(T::default());
    }
}

/// Packs lanes, each with its depths side by side.
///
/// A few lanes are walked along their whole depth before the next few, because lanes often lie a power of two
/// apart and more of them at once would evict each other from the cache. The last few come first: their squares
/// reach beyond the group into the next, whose first lanes are then written over.
///
/// # Safety
/// The processor must have the instruction set of `S`; the lanes must have `panel.len() / width` numbers each, and
/// there must be at most `width` of them.
#[inline(always)]
pub(crate) unsafe fn transpose<S: Simd<Real: Real>>(
    lanes: &[*const S::Real],
    width: usize,
    panel: &mut [S::Real],
) {
    let n_lanes = lanes.len();
    let depth = panel.len() / width;
    for lane in (0..n_lanes).step_by(S::SIDE).rev() {
        // SAFETY: rows are clamped to the last lane, depths to those of the panel, and squares are only written where
        // they end within the panel.
        unsafe {
            let mut rows: [_; MAX_SIDE] = std::array::from_fn(|i| lanes[(lane + i).min(n_lanes - 1)]);
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
