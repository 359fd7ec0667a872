//! What the pooling kernels share: rows of pixels for threads, tiles of channels for vectors.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{self, SharedPtr};

use crate::base::shape::Shape;
use crate::eager::op::Operand;
use crate::ops::kernel::units_per_task;

/// The most channels that are handled at a time.
pub(super) const TILE: usize = 256;

/// Images of one operand: where the channels of a pixel begin.
#[derive(Clone, Copy)]
pub(super) struct Images<T> {
    first: SharedPtr<T>,
    strides: [isize; 4],
}

impl<T: Element> Images<T> {
    pub fn of(operand: &Operand) -> Images<T> {
        let &[n, row, col, channel] = operand.meta.layout.strides() else {
            unreachable!("images have four axes")
        };
        Images { first: SharedPtr::new(operand.ptr().cast()), strides: [n, row, col, channel] }
    }

    /// The address of one channel of a pixel.
    ///
    /// # Safety
    /// The pixel and the channel belong to the images.
    #[inline(always)]
    pub unsafe fn at(&self, [n, row, col]: [usize; 3], channel: usize) -> *mut T {
        let [by_image, by_row, by_col, by_channel] = self.strides;
        let offset = n as isize * by_image
            + row as isize * by_row
            + col as isize * by_col
            + channel as isize * by_channel;
        // SAFETY: the caller's promise.
        unsafe { self.first.get().offset(offset) }
    }

    /// The channels of a pixel from `channel` on, as many as `copy` holds: in place where they lie side by side in the
    /// type that is computed with, else copied.
    ///
    /// # Safety
    /// The pixel and the channels belong to the images, and nobody writes to them meanwhile.
    #[inline(always)]
    pub unsafe fn load<'a>(
        &self,
        pixel: [usize; 3],
        channel: usize,
        copy: &'a mut [T::Compute],
    ) -> &'a [T::Compute] {
        // SAFETY: the caller's promise, here and below.
        let from = unsafe { self.at(pixel, channel) };
        let stride = self.strides[3];
        if stride == 1 && T::IS_COMPUTE {
            // SAFETY: as many channels side by side.
            return unsafe { std::slice::from_raw_parts(from.cast(), copy.len()) };
        }
        if stride == 1 {
            for (idx, value) in copy.iter_mut().enumerate() {
                // SAFETY: a channel of the pixel.
                *value = unsafe { *from.add(idx) }.widen();
            }
        } else {
            for (idx, value) in copy.iter_mut().enumerate() {
                // SAFETY: a channel of the pixel.
                *value = unsafe { *from.offset(idx as isize * stride) }.widen();
            }
        }
        copy
    }

    /// Writes the channels of a pixel from `channel` on; they lie side by side.
    ///
    /// # Safety
    /// The pixel and the channels belong to the images, and nobody else uses them meanwhile.
    #[inline(always)]
    pub unsafe fn store(&self, pixel: [usize; 3], channel: usize, values: &[T::Compute]) {
        debug_assert_eq!(self.strides[3], 1, "outputs are row-major");
        // SAFETY: the caller's promise.
        let to = unsafe { self.at(pixel, channel) };
        for (idx, &value) in values.iter().enumerate() {
            // SAFETY: a channel of the pixel.
            unsafe { *to.add(idx) = T::narrow(value) };
        }
    }
}

/// Calls `f(image, row)` for every row of pixels of `shape`, on several threads where it pays; `n_taps` is the number of
/// pixels that are read for each that is written. `f` is compiled for wide vectors if it is inlined.
pub(super) fn for_each_row(shape: &Shape, n_taps: usize, f: impl Fn(usize, usize) + Sync) {
    let &[n, n_rows, n_cols, channels] = shape.dims() else { unreachable!("images have four axes") };
    let total = if n_cols * channels == 0 { 0 } else { n * n_rows };
    let per_task = units_per_task(n_cols * channels * n_taps);
    threads::parallel(total.div_ceil(per_task), |task| {
        simd::vectorize(
            #[inline(always)]
            || {
                for row in task * per_task..total.min((task + 1) * per_task) {
                    f(row / n_rows, row % n_rows);
                }
            },
        );
    });
}

/// The tiles of that many channels: where each begins, and how many it has.
#[inline(always)]
pub(super) fn tiles(channels: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..channels).step_by(TILE).map(move |first| (first, TILE.min(channels - first)))
}
