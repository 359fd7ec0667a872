//! Pooling over windows of images, channels last: `[n, height, width, channels]`.
//!
//! Every kernel goes over the pixels that it writes and visits the pixels that count for each, channels side by side.
//! Backward is written that way round, too: a pixel of the input asks the windows that contain it. So no two threads
//! write to one place, nothing is filled with zeros first, and the order of every sum is fixed. Max pooling saves one
//! byte for each output, the position inside the window; average pooling saves nothing.

mod average;
mod cuda;
mod kernel;
mod max;

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::shape::{IntoExtents, MAX_ELEMS, Shape};
use crate::eager::op::Meta;
use crate::ops::registry::OpInfo;

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "max_pool2d", doc: "The greatest element of each window.", samples: max::samples },
    &OpInfo {
        name: "max_pool2d_backward",
        doc: "Gradients brought to the positions of the greatest elements.",
        samples: max::backward_samples,
    },
    &OpInfo {
        name: "max_pool2d_pick",
        doc: "The elements at the positions of the greatest ones.",
        samples: max::pick_samples,
    },
    &OpInfo { name: "avg_pool2d", doc: "The mean of each window.", samples: average::samples },
    &OpInfo {
        name: "avg_pool2d_backward",
        doc: "Gradients spread evenly over their windows.",
        samples: average::backward_samples,
    },
];

/// The windows of a pooling, as pairs of height and width. A number or a pair is a window of that size; windows lie side
/// by side unless there is a [`stride`](Pool2d::stride).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Pool2d {
    /// Windows of that height and width, side by side, without padding.
    pub fn new(kernel: impl IntoExtents<2>) -> Pool2d {
        let kernel = kernel.into_extents();
        Pool2d { kernel, stride: kernel, padding: [0, 0] }
    }

    /// With that distance from one window to the next.
    #[must_use]
    pub fn stride(self, stride: impl IntoExtents<2>) -> Pool2d {
        let stride = stride.into_extents();
        Pool2d { stride, ..self }
    }

    /// With that many pixels added at both ends, at most half a window. Max pooling never takes them; average pooling
    /// counts them as zeros.
    #[must_use]
    pub fn padding(self, padding: impl IntoExtents<2>) -> Pool2d {
        let padding = padding.into_extents();
        Pool2d { padding, ..self }
    }

    /// The shape with one pixel for each window over images of that shape.
    ///
    /// # Errors
    /// Images that the windows do not fit into.
    pub fn output_shape(&self, images: &Shape) -> Result<Shape> {
        Ok(self.windows("pool2d", images)?.output)
    }

    /// The number of pixels of a window.
    fn n_taps(&self) -> usize {
        self.kernel[0].saturating_mul(self.kernel[1])
    }

    /// The windows over images of that shape.
    fn windows(&self, op: &'static str, images: &Shape) -> Result<Windows> {
        let &[n, height, width, channels] = images.dims() else {
            return Err(Error::shape(
                op,
                format!("takes images [n, height, width, channels], not shape {images}"),
            ));
        };
        let along = |axis: usize, extent: usize| {
            let (kernel, stride, padding) = (self.kernel[axis], self.stride[axis], self.padding[axis]);
            if kernel == 0 || stride == 0 {
                return Err(Error::argument(
                    op,
                    format!(
                        "windows {:?} at distances {:?}; all must be at least 1",
                        self.kernel, self.stride
                    ),
                ));
            }
            if padding > kernel / 2 {
                return Err(Error::argument(
                    op,
                    format!(
                        "padding {:?} for windows {:?}; it may be half a window at most",
                        self.padding, self.kernel
                    ),
                ));
            }
            if [kernel, stride].into_iter().max() > Some(MAX_ELEMS) {
                return Err(Error::argument(
                    op,
                    format!(
                        "windows {:?} at distances {:?}; no tensor has more than {MAX_ELEMS} places",
                        self.kernel, self.stride
                    ),
                ));
            }
            let padded = extent + 2 * padding;
            if extent == 0 || padded < kernel {
                return Err(Error::shape(
                    op,
                    format!("windows {:?} do not fit into images of shape {images}", self.kernel),
                ));
            }
            Ok(Axis { extent, kernel, stride, padding, n_windows: (padded - kernel) / stride + 1 })
        };
        let (rows, cols) = (along(0, height)?, along(1, width)?);
        let output = Shape::new(&[n, rows.n_windows, cols.n_windows, channels])?;
        Ok(Windows { rows, cols, channels, output })
    }
}

impl From<usize> for Pool2d {
    fn from(kernel: usize) -> Pool2d {
        Pool2d::new([kernel; 2])
    }
}

impl From<[usize; 2]> for Pool2d {
    fn from(kernel: [usize; 2]) -> Pool2d {
        Pool2d::new(kernel)
    }
}

/// Windows over images.
#[derive(Clone, Copy, Debug)]
struct Windows {
    rows: Axis,
    cols: Axis,
    channels: usize,
    /// The shape with one pixel for each window.
    output: Shape,
}

/// Windows along one axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    n_windows: usize,
}

impl Axis {
    /// The positions of a window, cut at the ends.
    #[inline(always)]
    fn inside(&self, window: usize) -> Range<usize> {
        let start = window * self.stride;
        let end = (start + self.kernel).saturating_sub(self.padding);
        start.saturating_sub(self.padding)..end.min(self.extent)
    }

    /// The windows that contain a position.
    #[inline(always)]
    fn around(&self, position: usize) -> Range<usize> {
        let padded = position + self.padding;
        let first = if padded < self.kernel { 0 } else { (padded - self.kernel) / self.stride + 1 };
        first..(padded / self.stride + 1).min(self.n_windows)
    }

    /// The place of a position inside a window that contains it.
    #[inline(always)]
    fn tap(&self, window: usize, position: usize) -> usize {
        position + self.padding - window * self.stride
    }
}

/// Refuses what does not have one pixel for each window.
fn check_output(op: &'static str, windows: &Windows, input: &Meta) -> Result<()> {
    match *input.shape() == windows.output {
        true => Ok(()),
        false => Err(Error::shape(
            op,
            format!("an operand of shape {} for windows of shape {}", input.shape(), windows.output),
        )),
    }
}

/// Refuses what is not of floats.
fn check_float(op: &'static str, input: &Meta) -> Result<()> {
    match input.dtype.is_float() {
        true => Ok(()),
        false => Err(Error::dtype(
            op,
            format!("takes floats, not {}; convert with `cast(DType::F32)` first", input.dtype),
        )),
    }
}

#[cfg(test)]
mod tests;
