//! Tiles: the few kilobytes at a time that kernels work on.
//!
//! A [`Patch`] is a rectangle of elements somewhere in memory, a [`Tile`] room for one on the stack. [`gather`] brings a
//! patch into a tile, row after row, widened to the compute type; [`scatter`] takes it back. Both read and write along
//! the direction in which memory is contiguous. Nothing here decides which patches a kernel visits.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use crate::element::Element;
use crate::simd;

/// The most bytes of one operand that a kernel sees at a time.
pub const TILE_BYTES: usize = 4096;

/// The most elements that a kernel sees at a time.
pub const TILE_LEN: usize = 1024;

/// The number of elements of that many bytes in one tile.
#[inline]
pub const fn tile_len(n_bytes: usize) -> usize {
    let fitting = TILE_BYTES / n_bytes;
    if fitting < TILE_LEN { fitting } else { TILE_LEN }
}

/// Room on the stack for values of any type.
#[repr(C, align(64))]
pub(crate) struct Tile<const N_BYTES: usize = TILE_BYTES>(MaybeUninit<[u8; N_BYTES]>);

impl<const N_BYTES: usize> Tile<N_BYTES> {
    /// Room whose contents are not yet anything.
    #[inline(always)]
    pub(crate) const fn uninit() -> Self {
        Tile(MaybeUninit::uninit())
    }

    /// Where the tile begins.
    #[inline(always)]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// The form of a rectangle of elements in memory; strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) row_stride: isize,
    pub(crate) col_stride: isize,
}

impl Patch {
    /// The number of elements.
    #[inline(always)]
    pub(crate) fn n_elems(&self) -> usize {
        self.n_rows * self.n_cols
    }

    /// Whether the elements lie one after the other, row after row.
    #[inline(always)]
    pub(crate) fn is_contiguous(&self) -> bool {
        (self.col_stride == 1 || self.n_cols == 1)
            && (self.n_rows == 1 || self.row_stride == self.n_cols as isize)
    }

    /// Whether to walk down the columns, because each begins on a cache line of its own and rows are near each other.
    #[inline(always)]
    fn is_column_major(&self, size: usize) -> bool {
        const LINE_BYTES: usize = 64;
        let (across, down) = (self.col_stride.unsigned_abs(), self.row_stride.unsigned_abs());
        down < across && across * size >= LINE_BYTES && self.n_rows > 1
    }
}

/// Copies a patch into a tile, row after row, in the compute type.
///
/// # Safety
/// Every element of the patch at `src` is valid for reads, and `dst` for writes of as many values of the compute type.
/// They do not overlap.
pub(crate) unsafe fn gather<T: Element>(src: *const u8, patch: Patch, dst: *mut u8) {
    let (src, dst) = (src.cast::<T>(), dst.cast::<T::Compute>());
    if patch.is_contiguous() {
        // SAFETY: contiguous elements of the patch, and as much room as the caller promises.
        return unsafe { widen_run(src, dst, patch.n_elems()) };
    }
    let Patch { n_rows, n_cols, row_stride, col_stride } = patch;
    if patch.is_column_major(size_of::<T>()) {
        // Columns lie on pages of their own, where the hardware does not look ahead: ask for all of them at once.
        let n_bytes = ((n_rows - 1) * row_stride.unsigned_abs() + 1) * size_of::<T>();
        for col in 0..n_cols as isize {
            let ends = [0, (n_rows - 1) as isize * row_stride]
                .map(|row| src.wrapping_offset(row + col * col_stride));
            simd::prefetch(ends[0].min(ends[1]).cast(), n_bytes);
        }
        for col in 0..n_cols {
            for row in 0..n_rows {
                // SAFETY: `row` and `col` name an element of the patch and its place in the tile.
                unsafe {
                    let value = *src.offset(row as isize * row_stride + col as isize * col_stride);
                    dst.add(row * n_cols + col).write(value.widen());
                }
            }
        }
        return;
    }
    for row in 0..n_rows {
        // SAFETY: `row` names a row of the patch and its place in the tile.
        let (src, dst) = unsafe { (src.offset(row as isize * row_stride), dst.add(row * n_cols)) };
        match col_stride {
            // SAFETY: a row of contiguous elements, and as much room.
            1 => unsafe { widen_run(src, dst, n_cols) },
            // SAFETY: one element repeated over a row of the tile.
            0 => unsafe { fill_run((*src).widen(), dst, n_cols) },
            _ => {
                for col in 0..n_cols {
                    // SAFETY: `col` names an element of this row and its place in the tile.
                    unsafe { dst.add(col).write((*src.offset(col as isize * col_stride)).widen()) };
                }
            }
        }
    }
}

/// Copies a tile to a patch, narrowed to the stored type.
///
/// # Safety
/// Every element of the patch at `dst` is valid for writes, and `src` for reads of as many values of the compute type.
/// They do not overlap.
pub(crate) unsafe fn scatter<T: Element>(src: *const u8, dst: *mut u8, patch: Patch) {
    let (src, dst) = (src.cast::<T::Compute>(), dst.cast::<T>());
    if patch.is_contiguous() {
        // SAFETY: contiguous elements of the patch, and as many values as the caller promises.
        return unsafe { narrow_run(src, dst, patch.n_elems()) };
    }
    let Patch { n_rows, n_cols, row_stride, col_stride } = patch;
    for row in 0..n_rows {
        // SAFETY: `row` names a row of the patch and its place in the tile.
        let (src, dst) = unsafe { (src.add(row * n_cols), dst.offset(row as isize * row_stride)) };
        if col_stride == 1 {
            // SAFETY: a row of contiguous elements, and as many values.
            unsafe { narrow_run(src, dst, n_cols) };
        } else {
            for col in 0..n_cols {
                // SAFETY: `col` names an element of this row and its value in the tile.
                unsafe { dst.offset(col as isize * col_stride).write(T::narrow(*src.add(col))) };
            }
        }
    }
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` values, and they do not overlap.
#[inline]
unsafe fn widen_run<T: Element>(src: *const T, dst: *mut T::Compute, len: usize) {
    if T::IS_COMPUTE {
        // SAFETY: stored and computed type are the same type.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst.cast::<T>(), len) };
    }
    // SAFETY: the caller's promise.
    let (src, dst) =
        unsafe { (from_raw_parts(src, len), from_raw_parts_mut(dst.cast::<MaybeUninit<_>>(), len)) };
    simd::vectorize(
        #[inline(always)]
        move || each(src, dst, T::widen),
    );
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` values, and they do not overlap.
#[inline]
unsafe fn narrow_run<T: Element>(src: *const T::Compute, dst: *mut T, len: usize) {
    if T::IS_COMPUTE {
        // SAFETY: stored and computed type are the same type.
        return unsafe { std::ptr::copy_nonoverlapping(src.cast::<T>(), dst, len) };
    }
    // SAFETY: the caller's promise.
    let (src, dst) =
        unsafe { (from_raw_parts(src, len), from_raw_parts_mut(dst.cast::<MaybeUninit<_>>(), len)) };
    simd::vectorize(
        #[inline(always)]
        move || each(src, dst, T::narrow),
    );
}

/// Writes `f` of every source value.
#[inline(always)]
fn each<T: Copy, U>(src: &[T], dst: &mut [MaybeUninit<U>], f: impl Fn(T) -> U) {
    for (dst, &src) in dst.iter_mut().zip(src) {
        dst.write(f(src));
    }
}

/// # Safety
/// `dst` is valid for writes of `len` values.
#[inline]
unsafe fn fill_run<T: Copy>(value: T, dst: *mut T, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { from_raw_parts_mut(dst.cast::<MaybeUninit<T>>(), len) }.fill(MaybeUninit::new(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// What `gather` must bring, by definition.
    fn expected(memory: &[bf16], start: usize, patch: Patch) -> Vec<f32> {
        let at = |row: usize, col: usize| {
            let offset = row as isize * patch.row_stride + col as isize * patch.col_stride;
            memory[(start as isize + offset) as usize].to_f32()
        };
        (0..patch.n_elems()).map(|i| at(i / patch.n_cols, i % patch.n_cols)).collect()
    }

    #[test]
    fn gather_and_scatter_follow_any_strides() {
        let memory: Vec<bf16> = (0..2000).map(|i| bf16::from_f32(i as f32 * 0.5)).collect();
        let strides =
            [(20, 1), (1, 20), (40, 2), (2, 40), (0, 1), (1, 0), (0, 0), (-20, 1), (-1, -20), (1, -20)];
        for (row_stride, col_stride) in strides {
            let patch = Patch { n_rows: 7, n_cols: 20, row_stride, col_stride };
            let mut tile = <Tile>::uninit();
            // SAFETY: the patch around the middle stays inside `memory`, and 140 values fit into a tile.
            let got = unsafe {
                gather::<bf16>(memory.as_ptr().add(1000).cast(), patch, tile.as_mut_ptr());
                from_raw_parts(tile.as_mut_ptr().cast::<f32>(), patch.n_elems())
            };
            assert_eq!(got, expected(&memory, 1000, patch), "{patch:?}");
            if row_stride == 0 || col_stride == 0 {
                continue;
            }
            let mut copy = vec![bf16::ZERO; memory.len()];
            // SAFETY: as above.
            unsafe { scatter::<bf16>(tile.as_mut_ptr(), copy.as_mut_ptr().add(1000).cast(), patch) };
            assert_eq!(expected(&copy, 1000, patch), expected(&memory, 1000, patch), "{patch:?}");
        }
    }
}
