//! Patches of an image as a matrix that is never stored.
//!
//! A row of the matrix is a point of a grid laid over the image, a column is a channel at a tap, that is at one of a
//! few places around the point. Packing reads the image directly; places outside of it are zeros. The same
//! description serves a convolution (points are outputs, taps those of the kernel) and its gradient with respect to
//! the input (points are inputs of one phase of the stride, taps those that reach them).

use std::ops::Range;

use crate::element::{Access, Real};
use crate::isa::Kernels;
use crate::operand::{Operand, Strided};
use crate::staging::Staging;
use crate::tile::MAX_WIDTH;

/// Numbers along a patch that are brought together at once.
const STRETCH: usize = 128;

/// Channels from which on it pays to transpose each tap by itself, straight from the image.
const MANY_CHANNELS: usize = 16;

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
    /// Where the first tap of the first point lies, and places from one tap to the next.
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

/// A piece of a patch within one line of taps, relative to the point's first tap.
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Where its first tap lies, and its last.
    line: isize,
    column: isize,
    last_column: isize,
    /// Elements to its first number.
    offset: isize,
    /// Channels of the first tap that come before it.
    channel: usize,
    /// Numbers.
    len: usize,
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

    /// Numbers of product `batch` from a channel of a tap on, which may reach into the taps right of it.
    fn piece(&self, batch: usize, tap: [usize; 2], channel: usize, len: usize) -> Piece {
        let line = tap[0] as isize * self.tap_step[0];
        let column = tap[1] as isize * self.tap_step[1];
        let last_column = column + ((channel + len - 1) / self.channels) as isize * self.tap_step[1];
        let elements = (batch * self.channels + channel) as isize * self.strides[3];
        let offset = line * self.strides[1] + column * self.strides[2] + elements;
        Piece { line, column, last_column, offset, channel, len }
    }

    /// The pieces of some columns, in order, none longer than a stretch: taps, or whole lines of taps if these lie side
    /// by side in the image.
    fn pieces(&self, batch: usize, columns: Range<usize>, whole_lines: bool) -> impl Iterator<Item = Piece> {
        let run = if whole_lines { self.taps[1] * self.channels } else { self.channels };
        let mut at = columns.start;
        std::iter::from_fn(move || {
            if at == columns.end {
                return None;
            }
            let len = (run - at % run).min(columns.end - at).min(STRETCH);
            let (tap, channel) = (at / self.channels, at % self.channels);
            at += len;
            Some(self.piece(batch, [tap / self.taps[1], tap % self.taps[1]], channel, len))
        })
    }

    /// Whether the taps of a line lie side by side in the image.
    fn lines_are_whole(&self) -> bool {
        self.tap_step[1] == 1 && self.strides[2] == self.channels as isize * self.strides[3]
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

    /// The address of a piece within one tap, or none if it lies outside of the image.
    fn address(&self, point: Point, piece: Piece) -> Option<*const u8> {
        let inside = self.is_inside(point.line + piece.line, point.column + piece.column);
        inside.then(|| self.at(point.offset + piece.offset))
    }

    /// Reads a piece, with zeros where it lies outside of the image.
    fn read(&self, point: Point, piece: Piece, to: &mut [T]) {
        let (line, column) = (point.line + piece.line, point.column + piece.column);
        let offset = point.offset + piece.offset;
        let stride = self.strides[3];
        if self.is_inside(line, column) && self.is_inside(line, point.column + piece.last_column) {
            // SAFETY: the piece lies within the image.
            return unsafe { (self.access.read)(self.at(offset), stride, to) };
        }
        let mut done = 0;
        let mut tap = 0;
        while done < piece.len {
            let len = (self.channels - (piece.channel + done) % self.channels).min(piece.len - done);
            let to = &mut to[done..done + len];
            if self.is_inside(line, column + tap) {
                // SAFETY: this tap lies within the image.
                unsafe { (self.access.read)(self.at(offset + done as isize * stride), stride, to) };
            } else {
                to.fill(T::default());
            }
            done += len;
            tap += 1;
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

/// The patches as an operand whose lanes are points: a convolution's input, or the gradient of its output.
pub(crate) struct ByPoint<'a, T: 'static>(pub &'a Patches<T>);

impl<T: Real> Operand<T> for ByPoint<'_, T> {
    fn pack(&self, batch: usize, lanes: Range<usize>, depth: Range<usize>, width: usize, panel: &mut [T]) {
        let n_lanes = lanes.len();
        let mut points = [Point::default(); MAX_WIDTH];
        self.0.points(lanes).zip(&mut points).for_each(|(point, to)| *to = point);
        let points = &points[..n_lanes];
        if self.0.in_place() && self.0.channels >= MANY_CHANNELS {
            self.pack_in_place(batch, points, depth, width, panel);
        } else {
            self.pack_staged(batch, points, depth, width, panel);
        }
    }
}

impl<T: Real> ByPoint<'_, T> {
    /// Transposes piece after piece, straight from the image.
    fn pack_in_place(
        &self,
        batch: usize,
        points: &[Point],
        depth: Range<usize>,
        width: usize,
        panel: &mut [T],
    ) {
        let zeros = [T::default(); STRETCH];
        let mut rows = [std::ptr::null(); MAX_WIDTH];
        let mut done = 0;
        for piece in self.0.pieces(batch, depth, false) {
            for (point, row) in points.iter().zip(&mut rows) {
                *row = self.0.address(*point, piece).map_or(zeros.as_ptr(), |from| from.cast());
            }
            let panel = &mut panel[done * width..][..piece.len * width];
            // SAFETY: each row has as many numbers as the piece, and this stretch of the panel as many groups.
            unsafe { (self.0.kernels.transpose)(&rows[..points.len()], width, panel) };
            done += piece.len;
        }
    }

    /// Brings a stretch of each point's patch together, then transposes it.
    fn pack_staged(
        &self,
        batch: usize,
        points: &[Point],
        depth: Range<usize>,
        width: usize,
        panel: &mut [T],
    ) {
        let mut staging = Staging::<T, MAX_WIDTH, STRETCH>::new();
        for (first, panel) in depth.clone().step_by(STRETCH).zip(panel.chunks_mut(STRETCH * width)) {
            let stretch = first..depth.end.min(first + STRETCH);
            let mut rests: [&mut [T]; MAX_WIDTH] = Default::default();
            let mut rows = [std::ptr::null(); MAX_WIDTH];
            let staged = staging.rows(points.len(), stretch.len());
            for ((staged, rest), row) in staged.zip(&mut rests).zip(&mut rows) {
                *row = staged.as_ptr();
                *rest = staged;
            }
            for piece in self.0.pieces(batch, stretch, self.0.lines_are_whole()) {
                for (point, rest) in points.iter().zip(&mut rests) {
                    let to = rest.split_off_mut(..piece.len).unwrap_or_default();
                    self.0.read(*point, piece, to);
                }
            }
            // SAFETY: each row has as many numbers as this stretch of the panel has groups.
            unsafe { (self.0.kernels.transpose)(&rows[..points.len()], width, panel) };
        }
    }
}

/// The patches as an operand whose depths are points: a convolution's input, when its weights' gradient is formed.
pub(crate) struct ByTap<'a, T: 'static>(pub &'a Patches<T>);

impl<T: Real> Operand<T> for ByTap<'_, T> {
    fn pack(&self, batch: usize, lanes: Range<usize>, depth: Range<usize>, width: usize, panel: &mut [T]) {
        let n_lanes = lanes.len();
        let mut pieces = [Piece::default(); MAX_WIDTH];
        let mut n_pieces = 0;
        for piece in self.0.pieces(batch, lanes, self.0.lines_are_whole()) {
            pieces[n_pieces] = piece;
            n_pieces += 1;
        }
        for (point, group) in self.0.points(depth).zip(panel.chunks_exact_mut(width)) {
            let (used, unused) = group.split_at_mut(n_lanes);
            let mut done = 0;
            for piece in &pieces[..n_pieces] {
                self.0.read(point, *piece, &mut used[done..done + piece.len]);
                done += piece.len;
            }
            unused.fill(T::default());
        }
    }
}
