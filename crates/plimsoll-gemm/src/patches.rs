//! Patches of an image as a matrix that is never stored.
//!
//! A row of the matrix is a point of a grid laid over the image, a column is a channel at a tap, that is at one of a
//! few places around the point; places outside of the image are zeros. The same description serves a convolution (points are outputs, taps those of the kernel) and its gradient with respect to
//! the input (points are inputs of one phase of the stride, taps those that reach them).

use std::ops::Range;

use crate::element::{Access, Real};
use crate::isa::Kernels;
use crate::operand::Strided;

/// An image and the points and taps at which it is read. Pairs are vertical, horizontal.
pub(crate) struct Patches<T: 'static> {
    /// The element of picture 0, line 0, point 0, channel 0.
    pub first: *const u8,
    /// Elements from one picture, line, point, channel to the next.
    pub strides: [isize; 4],
    /// Lines and points of a picture.
    pub size: [usize; 2],
    /// Channels that one product reads; product `g` begins at channel `g * channels`.
    pub channels: usize,
    /// Points of the grid over one picture.
    pub grid: [usize; 2],
    /// Places of the image from one point of the grid to the next.
    pub step: [isize; 2],
    /// Taps.
    pub taps: [usize; 2],
    /// Where the first tap of the first point lies, and places from one tap to the next, at least one.
    pub start: [isize; 2],
    pub tap_step: [isize; 2],
    pub access: Access<T>,
    pub kernels: &'static Kernels<T>,
}

// SAFETY: the image is only read, and whoever made this promised that it may be.
unsafe impl<T> Sync for Patches<T> {}

/// Where the first tap of a point lies: in which line and column, and how many elements from the image's first.
#[derive(Clone, Copy, Default)]
pub(crate) struct Point {
    line: isize,
    column: isize,
    offset: isize,
}

impl<T: Real> Patches<T> {
    /// The image as a matrix with a row for each point and a column for each channel, if that is all the patches
    /// are. The lanes are the points.
    pub fn as_matrix(&self) -> Option<Strided<T>> {
        let [picture, line, point, channel] = self.strides;
        let whole =
            self.taps == [1, 1] && self.start == [0, 0] && self.step == [1, 1] && self.grid == self.size;
        let [height, width] = self.size.map(|n| n as isize);
        (whole && line == width * point && picture == height * line).then_some(Strided {
            first: self.first,
            lane_stride: point,
            depth_stride: channel,
            batch_stride: self.channels as isize * channel,
            access: self.access,
            kernels: self.kernels,
        })
    }

    /// The points of some rows.
    pub fn points(&self, rows: Range<usize>) -> impl Iterator<Item = Point> {
        let [height, width] = self.grid;
        let mut column = rows.start % width.max(1);
        let mut line = rows.start / width.max(1) % height.max(1);
        let mut picture = rows.start / width.max(1) / height.max(1);
        rows.map(move |_| {
            let at_line = self.start[0] + line as isize * self.step[0];
            let at_column = self.start[1] + column as isize * self.step[1];
            let offset =
                picture as isize * self.strides[0] + at_line * self.strides[1] + at_column * self.strides[2];
            column += 1;
            if column == width {
                (column, line) = (0, line + 1);
            }
            if line == height {
                (line, picture) = (0, picture + 1);
            }
            Point { line: at_line, column: at_column, offset }
        })
    }

    /// Whether a place lies within the image.
    fn is_inside(&self, line: isize, column: isize) -> bool {
        // A negative number becomes one larger than any size.
        (line as usize) < self.size[0] && (column as usize) < self.size[1]
    }

    /// The address of the element so many elements from the image's first.
    fn at(&self, elements: isize) -> *const u8 {
        self.first.wrapping_offset(elements * self.access.size as isize)
    }

    /// Reads the channels of one product at neighbouring places of a line, the first of them so many elements from the
    /// image's first.
    ///
    /// # Safety
    /// The image must have these places.
    pub unsafe fn read_line(&self, elements: isize, to: &mut [T]) {
        let [.., point, channel] = self.strides;
        // SAFETY: the caller promises the places.
        unsafe {
            if to.is_empty() || point == self.channels as isize * channel {
                return (self.access.read)(self.at(elements), channel, to);
            }
            for (place, to) in to.chunks_exact_mut(self.channels).enumerate() {
                (self.access.read)(self.at(elements + place as isize * point), channel, to);
            }
        }
    }

    /// The numbers at one tap of a point, from a channel on, for the channels of as many products as are wanted; none if
    /// the tap lies outside of the image. They are read into `staged` unless they can be used in place.
    ///
    /// # Safety
    /// The image must have these channels, and each product one of them.
    pub unsafe fn channels_at(
        &self,
        point: Point,
        tap: [usize; 2],
        channel: usize,
        staged: Option<&mut [T]>,
    ) -> Option<*const T> {
        let line = tap[0] as isize * self.tap_step[0];
        let column = tap[1] as isize * self.tap_step[1];
        if !self.is_inside(point.line + line, point.column + column) {
            return None;
        }
        let elements = line * self.strides[1] + column * self.strides[2] + channel as isize * self.strides[3];
        let from = self.at(point.offset + elements);
        let Some(staged) = staged else { return Some(from.cast()) };
        // SAFETY: the caller promises the channels.
        unsafe { (self.access.read)(from, self.strides[3], staged) };
        Some(staged.as_ptr())
    }

    /// Whether the channels of a tap can be used in place.
    pub fn in_place(&self) -> bool {
        self.access.same && self.strides[3] == 1
    }
}
