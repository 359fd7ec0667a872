//! `max_pool2d`, its gradient, and the gradient of that.
//!
//! Which element of a window is the greatest is saved as its position, one byte. With the positions given, bringing
//! gradients to them (`max_pool2d_backward`) and picking elements at them (`max_pool2d_pick`) are linear, and each is the
//! other's gradient; so derivatives of any order need nothing else.

use smallvec::SmallVec;

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cuda::Gpu;

use super::cuda::{Kind, pool};
use super::kernel::{Images, TILE, for_each_row, tiles};
use super::{Pool2d, Windows, check_float, check_output};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{AuxOutput, Form, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::expect_dtype;
use crate::ops::registry::{Array, Sample, Values, floats, input};

/// The most pixels of a window: their positions fit a byte.
const MOST_TAPS: usize = 256;

/// The greatest element of each window; NaN where there is one, the first where several are equal.
#[derive(Debug)]
struct Max(Pool2d);

impl Op for Max {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_float("max_pool2d", inputs[0])?;
        if self.0.n_taps() > MOST_TAPS {
            return Err(Error::argument(
                "max_pool2d",
                format!(
                    "windows {:?} have more than {MOST_TAPS} pixels; use `max` for whole images",
                    self.0.kernel
                ),
            ));
        }
        one(self.0.windows("max_pool2d", inputs[0].shape())?.output, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y, positions) = (&run.inputs[0], &run.outputs[0], run.aux_outputs.first());
        let windows = self.0.windows("max_pool2d", x.shape())?;
        for_floats!(x.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the outputs are fresh.
            unsafe { greatest::<T>(&windows, x, y, positions) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (x, y, places) = (&run.inputs[0], &run.outputs[0], run.aux_outputs.first());
        let windows = self.0.windows("max_pool2d", x.shape())?;
        pool(gpu, "max_pool2d", Kind::Max, &windows, [x, y], None, places)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Aux(0)]
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        let windows = self.0.windows("max_pool2d", inputs[0].shape());
        let meta = |windows: Windows| Meta::fresh(windows.output, DType::U8);
        windows.into_iter().map(|windows| AuxOutput { form: Form::Indices, meta: meta(windows) }).collect()
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let op = MaxBackward { pool: self.0, images: *backward.input_shape(0) };
        let gradient = call(OpRef::shipped(op), &[&backward.gradient()?, &backward.aux(0)?])?;
        backward.set_grad(0, gradient)
    }
}

/// Each gradient brought to its position: a pixel gets the sum over the windows around it that name it.
#[derive(Debug)]
struct MaxBackward {
    pool: Pool2d,
    images: Shape,
}

impl Op for MaxBackward {
    fn name(&self) -> &'static str {
        "max_pool2d_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let windows = self.pool.windows(self.name(), &self.images)?;
        check_float(self.name(), inputs[0])?;
        check_output(self.name(), &windows, inputs[0])?;
        check_output(self.name(), &windows, inputs[1])?;
        expect_dtype(self.name(), "the list of positions", inputs[1], DType::U8)?;
        one(self.images, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let windows = self.pool.windows("max_pool2d_backward", &self.images)?;
        let [gradient, positions] = run.inputs else { unreachable!("gradients and positions") };
        for_floats!(gradient.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; gradients and
            // positions have one pixel for each window.
            unsafe { bring_back::<T>(&windows, gradient, positions, &run.outputs[0]) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let windows = self.pool.windows(self.name(), &self.images)?;
        let [gradient, positions] = run.inputs else { unreachable!("gradients and positions") };
        let operands = [gradient, &run.outputs[0]];
        pool(gpu, self.name(), Kind::MaxBackward, &windows, operands, Some(positions), None)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let op = OpRef::shipped(MaxPick { pool: self.pool });
        let gradient = call(op, &[&backward.gradient()?, &backward.input(1)?])?;
        backward.set_grad(0, gradient)
    }
}

/// For each window, the element at its position.
#[derive(Debug)]
struct MaxPick {
    pool: Pool2d,
}

impl Op for MaxPick {
    fn name(&self) -> &'static str {
        "max_pool2d_pick"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let windows = self.pool.windows(self.name(), inputs[0].shape())?;
        check_float(self.name(), inputs[0])?;
        check_output(self.name(), &windows, inputs[1])?;
        expect_dtype(self.name(), "the list of positions", inputs[1], DType::U8)?;
        one(windows.output, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, positions] = run.inputs else { unreachable!("images and positions") };
        let windows = self.pool.windows("max_pool2d_pick", x.shape())?;
        for_floats!(x.dtype(), T => {
            // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh; there is one
            // position for each window.
            unsafe { pick::<T>(&windows, x, positions, &run.outputs[0]) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let [x, positions] = run.inputs else { unreachable!("images and positions") };
        let windows = self.pool.windows(self.name(), x.shape())?;
        pool(gpu, self.name(), Kind::Pick, &windows, [x, &run.outputs[0]], Some(positions), None)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(1)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let op = MaxBackward { pool: self.pool, images: *backward.input_shape(0) };
        let gradient = call(OpRef::shipped(op), &[&backward.gradient()?, &backward.input(1)?])?;
        backward.set_grad(0, gradient)
    }
}

/// # Safety
/// The operands are valid for their layouts and of type `T`; `y` and `positions`, of bytes, have one pixel for each window
/// and are nobody else's.
unsafe fn greatest<T: Element<Compute: Number>>(
    windows: &Windows,
    x: &Operand,
    y: &Operand,
    positions: Option<&Operand>,
) {
    let (from, to) = (Images::<T>::of(x), Images::<T>::of(y));
    let positions = positions.map(Images::<u8>::of);
    let Windows { rows, cols, channels, .. } = *windows;
    for_each_row(
        y.shape(),
        rows.kernel * cols.kernel,
        #[inline(always)]
        |image, row| {
            let mut best = [<T::Compute as Number>::LEAST; TILE];
            let (mut copy, mut taps) = (best, [0u8; TILE]);
            for (col, (channel, len)) in
                (0..cols.n_windows).flat_map(|col| tiles(channels).map(move |tile| (col, tile)))
            {
                let (best, taps) = (&mut best[..len], &mut taps[..len]);
                let (in_rows, in_cols) = (rows.inside(row), cols.inside(col));
                let corner = rows.tap(row, in_rows.start) * cols.kernel + cols.tap(col, in_cols.start);
                best.fill(Number::LEAST);
                taps.fill(corner as u8);
                for (tap_row, tap_col) in in_rows.flat_map(|row| in_cols.clone().map(move |col| (row, col))) {
                    let tap = (rows.tap(row, tap_row) * cols.kernel + cols.tap(col, tap_col)) as u8;
                    // SAFETY: a pixel of the images.
                    let values = unsafe { from.load([image, tap_row, tap_col], channel, &mut copy[..len]) };
                    for ((best, place), &value) in best.iter_mut().zip(taps.iter_mut()).zip(values) {
                        let is_better = value > *best || value.is_nan();
                        *best = if is_better { value } else { *best };
                        *place = if is_better { tap } else { *place };
                    }
                }
                // SAFETY: a pixel of the outputs, whose row no other call has.
                unsafe {
                    to.store([image, row, col], channel, best);
                    if let Some(positions) = &positions {
                        positions.store([image, row, col], channel, taps);
                    }
                }
            }
        },
    );
}

/// # Safety
/// The operands are valid for their layouts; gradients of type `T` and positions, bytes, have one pixel for each window,
/// and `y` is nobody else's.
unsafe fn bring_back<T: Element<Compute: Number>>(
    windows: &Windows,
    gradient: &Operand,
    positions: &Operand,
    y: &Operand,
) {
    let (from, to) = (Images::<T>::of(gradient), Images::<T>::of(y));
    let positions = Images::<u8>::of(positions);
    let Windows { rows, cols, channels, .. } = *windows;
    for_each_row(
        y.shape(),
        rows.kernel * cols.kernel,
        #[inline(always)]
        |image, row| {
            let mut sums = [<T::Compute as Number>::ZERO; TILE];
            let (mut copy, mut taps) = (sums, [0u8; TILE]);
            for (col, (channel, len)) in
                (0..cols.extent).flat_map(|col| tiles(channels).map(move |tile| (col, tile)))
            {
                let sums = &mut sums[..len];
                sums.fill(Number::ZERO);
                let around = cols.around(col);
                for (by_row, by_col) in
                    rows.around(row).flat_map(|row| around.clone().map(move |col| (row, col)))
                {
                    let tap = (rows.tap(by_row, row) * cols.kernel + cols.tap(by_col, col)) as u8;
                    let window = [image, by_row, by_col];
                    // SAFETY: there is a gradient and a position for each window.
                    let (values, places) = unsafe {
                        (
                            from.load(window, channel, &mut copy[..len]),
                            positions.load(window, channel, &mut taps[..len]),
                        )
                    };
                    for ((sum, &value), &place) in sums.iter_mut().zip(values).zip(places) {
                        let part = if place == tap { value } else { Number::ZERO };
                        *sum = Number::add(*sum, part);
                    }
                }
                // SAFETY: a pixel of the output, whose row no other call has.
                unsafe { to.store([image, row, col], channel, sums) };
            }
        },
    );
}

/// # Safety
/// The operands are valid for their layouts and of type `T`; positions, bytes, have one pixel for each window, and `y` is
/// nobody else's.
unsafe fn pick<T: Element<Compute: Number>>(
    windows: &Windows,
    x: &Operand,
    positions: &Operand,
    y: &Operand,
) {
    let (from, to, positions) = (Images::<T>::of(x), Images::<T>::of(y), Images::<u8>::of(positions));
    let Windows { rows, cols, channels, .. } = *windows;
    for_each_row(y.shape(), 1, |image, row| {
        for (col, channel) in (0..cols.n_windows).flat_map(|col| (0..channels).map(move |c| (col, c))) {
            // SAFETY: there is a position for each window.
            let tap = usize::from(unsafe { *positions.at([image, row, col], channel) });
            let tap_row = (row * rows.stride + tap / cols.kernel).wrapping_sub(rows.padding);
            let tap_col = (col * cols.stride + tap % cols.kernel).wrapping_sub(cols.padding);
            let is_inside = tap_row < rows.extent && tap_col < cols.extent;
            let value = match is_inside {
                // SAFETY: a pixel of the images.
                true => unsafe { *from.at([image, tap_row, tap_col], channel) }.widen(),
                false => Number::ZERO,
            };
            // SAFETY: an element of the output, whose row no other call has.
            unsafe { to.store([image, row, col], channel, &[value]) };
        }
    });
}

impl Tensor {
    /// The greatest element of each window: `[n, height, width, channels]` becomes `[n, rows, cols, channels]` with one
    /// pixel for each window. Where several pixels of a window are equally great, the first of them gets the whole gradient.
    ///
    /// # Errors
    /// A tensor that is not of images or not of floats; windows that do not fit or have more than 256 pixels; memory that
    /// is full.
    #[doc = example!("max_pool2d")]
    #[doc(alias("MaxPooling2D", "MaxPool2d"))]
    #[track_caller]
    pub fn max_pool2d(&self, pool: impl Into<Pool2d>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(Max(pool.into())), &[self])
    }
}

/// The pixel that a position of a window means, if it is inside the images.
fn pixel(pool: Pool2d, x: &[usize], window: &[usize], tap: usize) -> Option<[usize; 2]> {
    let row = (window[1] * pool.stride[0] + tap / pool.kernel[1]).checked_sub(pool.padding[0])?;
    let col = (window[2] * pool.stride[1] + tap % pool.kernel[1]).checked_sub(pool.padding[1])?;
    (row < x[1] && col < x[2]).then_some([row, col])
}

pub(super) fn samples() -> Vec<Sample> {
    let sample = |name: &str, images: &[usize], pool: Pool2d, out: &'static [usize], torch: &str| {
        Sample::new(name, vec![floats(images)], move |x| x[0].max_pool2d(pool))
            .reference(move |x| {
                let element = |i: &[usize], tap: usize| {
                    let [row, col] = pixel(pool, &x[0].shape, i, tap)?;
                    Some(x[0].at(&[i[0], row, col, i[3]]))
                };
                let n_taps = pool.kernel[0] * pool.kernel[1];
                Array::build(out, |i| {
                    (0..n_taps).filter_map(|tap| element(i, tap)).fold(f64::NEG_INFINITY, f64::max)
                })
            })
            .torch(format!("F.max_pool2d(x0.permute(0, 3, 1, 2), {torch}).permute(0, 2, 3, 1)"))
    };
    let overlapping = Pool2d::new([3, 2]).stride([2, 1]).padding([1, 1]);
    vec![
        sample("halves", &[2, 4, 5, 3], Pool2d::from(2), &[2, 2, 2, 3], "2")
            .example("x0.max_pool2d(2)")
            .refuses(vec![floats(&[4, 6, 3])], "takes images [n, height, width, channels]")
            .refuses(vec![floats(&[2, 1, 6, 3])], "do not fit into images of shape [2, 1, 6, 3]")
            .refuses(vec![input(&[2, 4, 6, 3], Values::Indices(5))], "takes floats"),
        sample("overlapping", &[1, 5, 4, 2], overlapping, &[1, 3, 5, 2], "(3, 2), (2, 1), (1, 1)"),
    ]
}

/// Positions inside windows of four pixels.
fn positions(shape: &[usize]) -> crate::ops::registry::Input {
    input(shape, Values::Of(DType::U8, 0.0, 4.0))
}

pub(super) fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, gradient: &[usize], pool: Pool2d, images: [usize; 4]| {
        Sample::new(name, vec![floats(gradient), positions(gradient)], move |x| {
            call(OpRef::shipped(MaxBackward { pool, images: Shape::new(&images)? }), &[&x[0], &x[1]])
        })
        .reference(move |x| {
            let mut y = Array::build(&images, |_| 0.0);
            Array::build(&x[0].shape, |i| {
                if let Some([row, col]) = pixel(pool, &images, i, x[1].at(i) as usize) {
                    y.values[((i[0] * images[1] + row) * images[2] + col) * images[3] + i[3]] += x[0].at(i);
                }
                0.0
            });
            y
        })
    };
    vec![
        sample("halves", &[2, 2, 1, 3], Pool2d::from(2), [2, 4, 3, 3]),
        sample("overlapping", &[1, 3, 4, 2], Pool2d::from(2).stride([1, 1]).padding([0, 1]), [1, 4, 3, 2]),
    ]
}

pub(super) fn pick_samples() -> Vec<Sample> {
    let sample = |name: &str, images: &[usize], pool: Pool2d, out: &'static [usize]| {
        Sample::new(name, vec![floats(images), positions(out)], move |x| {
            call(OpRef::shipped(MaxPick { pool }), &[&x[0], &x[1]])
        })
        .reference(move |x| {
            Array::build(out, |i| match pixel(pool, &x[0].shape, i, x[1].at(i) as usize) {
                Some([row, col]) => x[0].at(&[i[0], row, col, i[3]]),
                None => 0.0,
            })
        })
    };
    vec![
        sample("halves", &[2, 4, 3, 3], Pool2d::from(2), &[2, 2, 1, 3]),
        sample("overlapping", &[1, 4, 3, 2], Pool2d::from(2).stride([1, 1]).padding([0, 1]), &[1, 3, 4, 2]),
    ]
}
