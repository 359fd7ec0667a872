//! `pad` and `slice_backward`: the elements at their places in a larger tensor that is one number elsewhere.

use plimsoll_cpu::copy;
use plimsoll_cuda::Gpu;

use super::{Cut, Cuts, cut_layout, look};
use crate::base::axes::Axes;
use crate::base::dtype::Element;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::copy::copy;
use crate::ops::cuda::elementwise::fill;
use crate::ops::cuda::moves::{self, Move};
use crate::ops::kernel::{dst, for_all};
use crate::ops::registry::{Array, Sample, floats};

/// The elements at the places that the cuts name, one number elsewhere. The gradient is what arrives at those places.
#[derive(Debug)]
struct Place {
    name: &'static str,
    shape: Shape,
    cuts: Cuts,
    value: f64,
}

impl Op for Place {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let seen = Shape::within_bounds(self.cuts.iter().map(|cut| cut.len));
        if *inputs[0].shape() != seen {
            return Err(Error::shape(
                self.name,
                format!(
                    "elements of shape {} for places of shape {seen}; they must agree",
                    inputs[0].shape()
                ),
            ));
        }
        one(self.shape, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        self.surround(y);
        copy(x, &y.viewed(&y.meta.with_layout(cut_layout(&y.meta.layout, &self.cuts))));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        fill(self.name, gpu, y, self.value)?;
        let places = y.meta.with_layout(cut_layout(&y.meta.layout, &self.cuts));
        moves::start(self.name, gpu, &[Move::new(x, &y.viewed(&places))])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = look(&backward.gradient()?, self.cuts.clone(), Axes::NONE)?;
        backward.set_grad(0, gradient)
    }
}

impl Place {
    /// Writes the number everywhere but at the places, if they lie densely; else everywhere.
    fn surround(&self, y: &Operand) {
        let Some(covered) = self.cuts.iter().map(covered).collect::<Option<Vec<_>>>() else {
            return fill_with(y, self.value);
        };
        // Axis by axis: what lies before and after, inside what earlier axes cover.
        let mut inside = y.meta.layout;
        for (axis, &(low, high)) in covered.iter().enumerate() {
            fill_with(&y.viewed(&y.meta.with_layout(inside.narrowed(axis, 0, 1, low))), self.value);
            let above = inside.narrowed(axis, high, 1, self.shape[axis] - high);
            fill_with(&y.viewed(&y.meta.with_layout(above)), self.value);
            inside = inside.narrowed(axis, low, 1, high - low);
        }
    }
}

/// The range of places that a cut covers, if it has no gaps.
fn covered(cut: &Cut) -> Option<(usize, usize)> {
    match cut.step {
        1 => Some((cut.start, cut.start + cut.len)),
        -1 => Some((cut.start + 1 - cut.len, cut.start + 1)),
        _ => None,
    }
}

fn fill_with(y: &Operand, value: f64) {
    for_all!(y.dtype(), T => {
        // SAFETY: `execute` hands out operands that are valid for their layouts, and a part of one is; the output is
        // nobody else's.
        unsafe { copy::fill::<T>(y.shape(), dst(y), T::from_f64(value)) }
    });
}

/// A gradient placed into zeros of `shape`.
pub(super) fn into_zeros(gradient: &Tensor, shape: Shape, cuts: &[Cut]) -> Result<Tensor> {
    call(OpRef::shipped(Place { name: "slice_backward", shape, cuts: cuts.into(), value: 0.0 }), &[gradient])
}

impl Tensor {
    /// The elements with `value` around them: `(before, after)` many along each axis.
    ///
    /// # Errors
    /// Not one pair for each axis; more elements than can be counted; memory that is full.
    #[doc = example!("pad")]
    #[track_caller]
    pub fn pad(&self, widths: &[(usize, usize)], value: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        if widths.len() != self.rank() {
            return Err(Error::argument(
                "pad",
                format!(
                    "{} widths for shape {}; give a pair (before, after) for each axis",
                    widths.len(),
                    self.shape()
                ),
            ));
        }
        if widths.iter().all(|&width| width == (0, 0)) {
            return Ok(self.clone());
        }
        let wide = |(&extent, &(before, after)): (&usize, &(usize, usize))| {
            extent.saturating_add(before).saturating_add(after)
        };
        let shape = Shape::new(&self.shape().iter().zip(widths).map(wide).collect::<Vec<_>>())?;
        let cut = |(&extent, &(before, _)): (&usize, &(usize, usize))| Cut::new(before, 1, extent);
        let cuts = self.shape().iter().zip(widths).map(cut).collect();
        call(OpRef::shipped(Place { name: "pad", shape, cuts, value }), &[self])
    }
}

pub(super) fn pad_samples() -> Vec<Sample> {
    /// The element at `i` of `x` moved by `by`, or the number outside.
    fn moved(x: &Array, i: &[usize], by: &[usize], outside: f64) -> f64 {
        let at: Option<Vec<usize>> = i.iter().zip(by).map(|(i, by)| i.checked_sub(*by)).collect();
        at.filter(|at| at.iter().zip(&x.shape).all(|(at, n)| at < n)).map_or(outside, |at| x.at(&at))
    }
    vec![
        Sample::new("one axis", vec![floats(&[2, 3])], |x| x[0].pad(&[(0, 0), (1, 2)], 0.0))
            .reference(|x| Array::build(&[2, 6], |i| moved(&x[0], i, &[0, 1], 0.0)))
            .torch("F.pad(x0, (1, 2))")
            .example("x0.pad(&[(0, 0), (1, 2)], 0.0)")
            .refuses(vec![floats(&[2, 3, 4])], "2 widths for shape [2, 3, 4]"),
        Sample::new("image", vec![floats(&[2, 2, 3, 2])], |x| {
            x[0].pad(&[(0, 0), (1, 1), (2, 0), (0, 0)], -1.5)
        })
        .reference(|x| Array::build(&[2, 4, 5, 2], |i| moved(&x[0], i, &[0, 1, 2, 0], -1.5)))
        .torch("F.pad(x0, (0, 0, 2, 0, 1, 1), value=-1.5)"),
    ]
}

pub(super) fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], from: [usize; 2], cuts: [Cut; 2]| {
        let place = move |i: usize, cut: &Cut| {
            (0..cut.len).position(|k| cut.start as isize + k as isize * cut.step == i as isize)
        };
        Sample::new(name, vec![floats(shape)], move |x| into_zeros(&x[0], Shape::new(&from)?, &cuts))
            .reference(move |x| {
                Array::build(&from, |i| match (place(i[0], &cuts[0]), place(i[1], &cuts[1])) {
                    (Some(row), Some(col)) => x[0].at(&[row, col]),
                    _ => 0.0,
                })
            })
    };
    vec![
        sample("dense", &[2, 3], [3, 5], [Cut::new(1, 1, 2), Cut::new(3, -1, 3)]),
        sample("with gaps", &[2, 3], [4, 7], [Cut::new(3, -2, 2), Cut::new(0, 3, 3)]),
    ]
}
