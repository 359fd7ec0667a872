//! Strips: a few lines of an image with zeros around them, as numbers, in which patches are multiplied where they lie.
//!
//! Copying an image into strips costs a small part of what packing its patches would, since each number is copied about
//! once and not once per tap, and it does all that makes an image awkward: padding, strides, narrow elements, groups.
//! Within a strip the taps of a line lie side by side, and points that are neighbours on the grid lie equally far apart.

use std::ops::Range;

use crate::count::{padded, product};
use crate::element::Real;
use crate::patches::Patches;
use crate::tile::MAX_WIDTH;

/// The least points of a line that a strip has, if it has not all of them.
const LEAST_POINTS: usize = 64;

/// Strips that there should be at least, so that threads have something to share.
const LEAST_STRIPS: usize = 8;

/// How an image is cut into strips; by its shape alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Points of the grid over one picture.
    grid: [usize; 2],
    /// Places of the image from one point to the next, and of a point's patch, from its first tap to its last.
    step: [usize; 2],
    reach: [usize; 2],
    /// Lines of points of a strip, and points of a line; more than one line only if it has all points of each.
    pub lines: usize,
    pub points: usize,
    /// Strips below and beside each other, and pictures.
    n: [usize; 2],
    batch: usize,
    channels: usize,
}

/// One strip: its picture, lines and points.
#[derive(Clone, Debug)]
pub(crate) struct Strip {
    picture: usize,
    lines: Range<usize>,
    points: Range<usize>,
    /// The number of its first point among those of all pictures.
    pub first: usize,
}

impl Strip {
    /// Points of the strip.
    pub fn n_points(&self) -> usize {
        self.lines.len() * self.points.len()
    }

    /// Lines of points, and points of a line.
    pub fn size(&self) -> [usize; 2] {
        [self.lines.len(), self.points.len()]
    }
}

impl Cut {
    /// How the image under these patches is cut, into strips of about that many bytes.
    pub fn new<T: Real>(patches: &Patches<T>, batch: usize, strip_bytes: usize) -> Self {
        let step = patches.step.map(|step| step as usize);
        let reach = [0, 1].map(|axis| {
            patches.taps[axis].saturating_sub(1) * patches.tap_step[axis] as usize + patches.taps[axis].min(1)
        });
        let [height, width] = patches.grid;
        let place = (patches.channels * size_of::<T>()).max(1);
        let points = match (strip_bytes / product([place, step[1], reach[0].max(1)])).max(LEAST_POINTS) {
            most if most < width => share(width, most),
            _ => width,
        };
        let places = product([points.saturating_sub(1), step[1]]).saturating_add(reach[1]).max(1);
        let most = (strip_bytes / product([place, places])).saturating_sub(reach[0]) / step[0] + 1;
        let lines = match points < width {
            true => 1,
            false => share(height, most.min((batch * height).div_ceil(LEAST_STRIPS))),
        };
        let n = [height.div_ceil(lines.max(1)), width.div_ceil(points.max(1))];
        Self { grid: patches.grid, step, reach, lines, points, n, batch, channels: patches.channels }
    }

    /// Strips of all pictures.
    pub fn n_strips(&self) -> usize {
        product([self.batch, self.n[0], self.n[1]])
    }

    /// A strip by its number.
    pub fn strip(&self, idx: usize) -> Strip {
        let [height, width] = self.grid;
        let (picture, idx) = (idx / (self.n[0] * self.n[1]), idx % (self.n[0] * self.n[1]));
        let (line, point) = (idx / self.n[1] * self.lines, idx % self.n[1] * self.points);
        Strip {
            picture,
            lines: line..height.min(line + self.lines),
            points: point..width.min(point + self.points),
            first: (picture * height + line) * width + point,
        }
    }

    /// Places of the image that so many points in a row take along an axis.
    fn extent(&self, axis: usize, n_points: usize) -> usize {
        product([n_points.saturating_sub(1), self.step[axis]]).saturating_add(self.reach[axis])
    }

    /// Numbers of a line of a strip.
    pub fn line_len(&self) -> usize {
        product([self.extent(1, self.points), self.channels])
    }

    /// Numbers that a strip takes, with room for a vector to reach beyond its end.
    pub fn len(&self) -> usize {
        padded(product([self.extent(0, self.lines), self.line_len()]).saturating_add(MAX_WIDTH), MAX_WIDTH)
    }

    /// Numbers from a point of a strip to the next, and from one line of points to the next.
    pub fn steps(&self) -> [isize; 2] {
        [self.step[0] * self.line_len(), self.step[1] * self.channels].map(|step| step as isize)
    }

    /// Copies the channels of one product into a strip.
    ///
    /// # Safety
    /// The image must be readable, and `to` must have room for [`Cut::len`] numbers that nobody else uses.
    pub unsafe fn fill<T: Real>(&self, patches: &Patches<T>, strip: &Strip, batch: usize, to: *mut T) {
        let (line_len, channels) = (self.line_len(), self.channels);
        if line_len == 0 {
            // There may be any number of lines without numbers.
            return;
        }
        let extents = [self.extent(0, strip.lines.len()), self.extent(1, strip.points.len())];
        let begin = [0, 1].map(|axis| {
            let first = if axis == 0 { strip.lines.start } else { strip.points.start };
            patches.start[axis] + (first * self.step[axis]) as isize
        });
        // The columns of the strip that lie within the image; none if all of it is padding, on either side.
        let (width, n_columns) = (patches.size[1] as isize, extents[1] as isize);
        let left = (-begin[1]).clamp(0, n_columns);
        let right = (width - begin[1]).clamp(left, n_columns);
        let (left, right) = (left as usize, right as usize);
        for line in 0..extents[0] {
            // SAFETY: the caller promises room for every line.
            let to =
                unsafe { std::slice::from_raw_parts_mut(to.add(line * line_len), extents[1] * channels) };
            let at = begin[0] + line as isize;
            if at < 0 || at >= patches.size[0] as isize || left == right {
                to.fill(T::default());
                continue;
            }
            to[..left * channels].fill(T::default());
            to[right * channels..].fill(T::default());
            let from = strip.picture as isize * patches.strides[0]
                + at * patches.strides[1]
                + (begin[1] + left as isize) * patches.strides[2]
                + (batch * channels) as isize * patches.strides[3];
            // SAFETY: these lines and columns lie within the image.
            unsafe { patches.read_line(from, &mut to[left * channels..right * channels]) };
        }
    }
}

/// The size of nearly equal shares of `len`, each at most `most` but at least one.
fn share(len: usize, most: usize) -> usize {
    let len = len.max(1);
    len.div_ceil(len.div_ceil(most.max(1)))
}
