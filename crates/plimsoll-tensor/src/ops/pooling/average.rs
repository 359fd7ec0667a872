//! `avg_pool2d` and its gradient, which are each other's gradients.

use std::ops::Range;

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::math::Real;
use plimsoll_cuda::Gpu;

use super::cuda::{Kind, pool};
use super::kernel::{Images, TILE, for_each_row, tiles};
use super::{Pool2d, check_float, check_output};
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// The sum of each window over the number of its pixels, padding included. Nothing is saved.
#[derive(Debug)]
struct Average(Pool2d);

impl Op for Average {
    fn name(&self) -> &'static str {
        "avg_pool2d"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_float("avg_pool2d", inputs[0])?;
        one(self.0.windows("avg_pool2d", inputs[0].shape())?.output, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        let windows = self.0.windows("avg_pool2d", x.shape())?;
        let reach = |row, col| (windows.rows.inside(row), windows.cols.inside(col));
        for_floats!(x.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; windows are
            // cut at the ends of the images.
            unsafe { average::<T>(x, y, self.0.n_taps(), reach) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        let windows = self.0.windows("avg_pool2d", x.shape())?;
        pool(gpu, "avg_pool2d", Kind::Average, &windows, [x, y], None, None)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let op = AverageBackward { pool: self.0, images: *backward.input_shape(0) };
        let gradient = call(OpRef::shipped(op), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }
}

/// For each pixel of the images, the sum of what the windows around it bring, over the number of their pixels.
#[derive(Debug)]
struct AverageBackward {
    pool: Pool2d,
    images: Shape,
}

impl Op for AverageBackward {
    fn name(&self) -> &'static str {
        "avg_pool2d_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let windows = self.pool.windows(self.name(), &self.images)?;
        check_float(self.name(), inputs[0])?;
        check_output(self.name(), &windows, inputs[0])?;
        one(self.images, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (gradient, y) = (&run.inputs[0], &run.outputs[0]);
        let windows = self.pool.windows("avg_pool2d_backward", &self.images)?;
        let reach = |row, col| (windows.rows.around(row), windows.cols.around(col));
        for_floats!(gradient.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; the gradient
            // has one pixel for each window.
            unsafe { average::<T>(gradient, y, self.pool.n_taps(), reach) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (gradient, y) = (&run.inputs[0], &run.outputs[0]);
        let windows = self.pool.windows(self.name(), &self.images)?;
        pool(gpu, self.name(), Kind::AverageBackward, &windows, [gradient, y], None, None)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = call(OpRef::shipped(Average(self.pool)), &[&backward.gradient()?])?;
        backward.set_grad(0, gradient)
    }
}

/// For each pixel of `y`, the sum of the pixels of `x` that it reaches over `n_taps`.
///
/// # Safety
/// The operands are valid for their layouts and of type `T`, `y` is nobody else's, and `reach` names rows and columns of
/// `x`.
unsafe fn average<T: Element<Compute: Real>>(
    x: &Operand,
    y: &Operand,
    n_taps: usize,
    reach: impl Fn(usize, usize) -> (Range<usize>, Range<usize>) + Sync,
) {
    let (from, to) = (Images::<T>::of(x), Images::<T>::of(y));
    let divisor = <T::Compute as Real>::from_f64(n_taps as f64);
    let &[_, _, n_cols, channels] = y.shape().dims() else { unreachable!("images have four axes") };
    for_each_row(
        y.shape(),
        n_taps,
        #[inline(always)]
        |image, row| {
            let mut sums = [<T::Compute as Number>::ZERO; TILE];
            let mut copy = sums;
            for col in 0..n_cols {
                let (rows, cols) = reach(row, col);
                for (channel, len) in tiles(channels) {
                    let sums = &mut sums[..len];
                    sums.fill(Number::ZERO);
                    for (tap_row, tap_col) in
                        rows.clone().flat_map(|row| cols.clone().map(move |col| (row, col)))
                    {
                        // SAFETY: a pixel that is reached is one of `x`.
                        let values =
                            unsafe { from.load([image, tap_row, tap_col], channel, &mut copy[..len]) };
                        for (sum, &value) in sums.iter_mut().zip(values) {
                            *sum = *sum + value;
                        }
                    }
                    for sum in sums.iter_mut() {
                        *sum = *sum / divisor;
                    }
                    // SAFETY: a pixel of the output, whose row no other call has.
                    unsafe { to.store([image, row, col], channel, sums) };
                }
            }
        },
    );
}

impl Tensor {
    /// The mean of each window: `[n, height, width, channels]` becomes `[n, rows, cols, channels]` with one pixel for each
    /// window. Padding counts as zeros.
    ///
    /// # Errors
    /// A tensor that is not of images or not of floats; windows that do not fit; memory that is full.
    #[doc = example!("avg_pool2d")]
    #[doc(alias = "AveragePooling2D")]
    #[track_caller]
    pub fn avg_pool2d(&self, pool: impl Into<Pool2d>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Average(pool.into())), &[self])
    }

    /// The mean of each channel over the whole image: `[n, height, width, channels]` becomes `[n, channels]`.
    ///
    /// # Errors
    /// A tensor that is not of images or not of floats; images without pixels; memory that is full.
    #[doc = example!("global_avg_pool2d")]
    #[doc(alias("adaptive_avg_pool2d", "GlobalAveragePooling2D"))]
    #[track_caller]
    pub fn global_avg_pool2d(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        match *self.shape().dims() {
            [n, height, width, channels] if height * width > 0 => {
                self.avg_pool2d([height, width])?.reshape([n, channels])
            }
            _ => Err(Error::shape(
                "global_avg_pool2d",
                format!("takes images [n, height, width, channels] with pixels, not shape {}", self.shape()),
            )),
        }
    }
}

/// The mean over a window, written as a search through all pixels.
fn reference(pool: Pool2d, x: &Array, out: &[usize]) -> Array {
    let hits = |axis: usize, window: usize, at: usize| {
        let start = (window * pool.stride[axis]) as isize - pool.padding[axis] as isize;
        (start..start + pool.kernel[axis] as isize).contains(&(at as isize))
    };
    Array::build(out, |i| {
        let mut sum = 0.0;
        for row in (0..x.shape[1]).filter(|&row| hits(0, i[1], row)) {
            for col in (0..x.shape[2]).filter(|&col| hits(1, i[2], col)) {
                sum += x.at(&[i[0], row, col, i[3]]);
            }
        }
        sum / (pool.kernel[0] * pool.kernel[1]) as f64
    })
}

pub(super) fn samples() -> Vec<Sample> {
    let sample = |name: &str, images: &[usize], pool: Pool2d, out: &'static [usize], torch: &str| {
        Sample::new(name, vec![floats(images)], move |x| x[0].avg_pool2d(pool))
            .reference(move |x| reference(pool, &x[0], out))
            .torch(format!("F.avg_pool2d(x0.permute(0, 3, 1, 2), {torch}).permute(0, 2, 3, 1)"))
    };
    let overlapping = Pool2d::new([3, 2]).stride([2, 1]).padding([1, 1]);
    vec![
        sample("halves", &[2, 4, 6, 3], Pool2d::from(2), &[2, 2, 3, 3], "2")
            .example("x0.avg_pool2d(2)")
            .refuses(vec![floats(&[4, 6, 3])], "takes images [n, height, width, channels]")
            .refuses(vec![floats(&[2, 1, 6, 3])], "do not fit into images of shape [2, 1, 6, 3]")
            .refuses(vec![input(&[2, 4, 6, 3], Values::Indices(5))], "takes floats"),
        sample("overlapping", &[1, 5, 4, 2], overlapping, &[1, 3, 5, 2], "(3, 2), (2, 1), (1, 1)"),
        Sample::new("global", vec![floats(&[2, 3, 4, 2])], |x| x[0].global_avg_pool2d())
            .reference(|x| {
                let pixel = |i: &[usize], at: usize| x[0].at(&[i[0], at / 4, at % 4, i[1]]);
                Array::build(&[2, 2], |i| (0..12).map(|at| pixel(i, at)).sum::<f64>() / 12.0)
            })
            .torch("x0.mean((1, 2))")
            .example("x0.global_avg_pool2d()")
            .refuses(vec![floats(&[2, 0, 4, 2])], "with pixels, not shape [2, 0, 4, 2]"),
    ]
}

pub(super) fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, gradient: &[usize], pool: Pool2d, images: [usize; 4]| {
        Sample::new(name, vec![floats(gradient)], move |x| {
            call(OpRef::shipped(AverageBackward { pool, images: Shape::new(&images)? }), &[&x[0]])
        })
        .reference(move |g| {
            // The adjoint, one unit image at a time.
            Array::build(&images, |i| {
                let unit = Array::build(&images, |j| f64::from(i == j));
                let seen = reference(pool, &unit, &g[0].shape);
                seen.values.iter().zip(&g[0].values).map(|(seen, g)| seen * g).sum()
            })
        })
    };
    let overlapping = Pool2d::new([3, 2]).stride([2, 1]).padding([1, 1]);
    vec![
        sample("halves", &[1, 2, 2, 2], Pool2d::from(2), [1, 4, 5, 2]),
        sample("overlapping", &[1, 3, 5, 2], overlapping, [1, 5, 4, 2]),
    ]
}
