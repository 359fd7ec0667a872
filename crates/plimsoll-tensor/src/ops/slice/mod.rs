//! Slices: parts of a tensor as views, by numpy's rules. They share memory and cost no bytes.
//!
//! One op, `slice`, stands behind `narrow`, `slice`, `select`, `get` and `flip`: every axis is cut by a start, a step and
//! a length. Its gradient is placed into zeros (`slice_backward`), and the gradient of that is the slice again. `split`
//! gives all parts at once, so that its gradient is one concatenation and not a sum of mostly empty tensors.

mod index;
mod place;
mod split;

use smallvec::SmallVec;

pub use self::index::{IntoSlices, Slice};
use crate::base::axes::{Axes, Integer, IntoAxes};
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, view};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// What is seen of one axis: every `step`-th element from `start` on, `len` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The first element; zero if there is none.
    start: usize,
    /// From one element to the next; one if there are fewer than two.
    step: isize,
    /// The number of elements.
    len: usize,
}

/// One cut for each axis.
type Cuts = SmallVec<[Cut; 4]>;

impl Cut {
    fn new(start: usize, step: isize, len: usize) -> Cut {
        Cut { start: if len > 0 { start } else { 0 }, step: if len > 1 { step } else { 1 }, len }
    }
}

/// The cuts that leave a shape whole.
fn whole(shape: &Shape) -> Cuts {
    shape.iter().map(|&extent| Cut::new(0, 1, extent)).collect()
}

/// The part of a layout that the cuts leave.
fn cut_layout(layout: &Layout, cuts: &[Cut]) -> Layout {
    cuts.iter()
        .enumerate()
        .fold(*layout, |layout, (axis, cut)| layout.narrowed(axis, cut.start, cut.step, cut.len))
}

/// A part of a tensor.
#[derive(Debug)]
struct Look {
    cuts: Cuts,
    /// Axes of extent one that the view does not have.
    dropped: Axes,
}

impl Op for Look {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let cut = cut_layout(&inputs[0].layout, &self.cuts);
        let kept: SmallVec<[usize; 4]> =
            (0..self.cuts.len()).filter(|&axis| !self.dropped.contains(axis)).collect();
        view(cut.permuted(&kept))
    }

    fn run(&self, _run: &mut Run<'_>) -> Result<()> {
        Ok(())
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let shape = *backward.input_shape(0);
        let seen = Shape::within_bounds(self.cuts.iter().map(|cut| cut.len));
        let gradient = backward.gradient()?.reshape(seen)?;
        backward.set_grad(0, place::into_zeros(&gradient, shape, &self.cuts)?)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The part of `x` that the cuts leave; `x` itself if that is all of it.
fn look(x: &Tensor, cuts: Cuts, dropped: Axes) -> Result<Tensor> {
    if dropped.is_empty() && cuts == whole(x.shape()) {
        return Ok(x.clone());
    }
    call(OpRef::shipped(Look { cuts, dropped }), &[x])
}

impl Tensor {
    /// `len` elements of `axis` from `start` on, as a view.
    ///
    /// # Errors
    /// An axis that the tensor does not have; a part that reaches beyond its end.
    #[doc = example!("narrow")]
    #[doc(alias = "dynamic_slice")]
    #[track_caller]
    pub fn narrow(&self, axis: impl Integer, start: usize, len: usize) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("narrow", axis)?;
        let extent = self.shape()[axis];
        if start.checked_add(len).is_none_or(|end| end > extent) {
            return Err(Error::argument(
                "narrow",
                format!(
                    "a slice of {len} elements from {start} on reaches beyond axis {axis}, whose extent is {extent}"
                ),
            ));
        }
        let mut cuts = whole(self.shape());
        cuts[axis] = Cut::new(start, 1, len);
        look(self, cuts, Axes::NONE)
    }

    /// A part of the tensor as a view, by numpy's rules: `x.slice((1..3, .., -1))` is `x[1:3, :, -1]`. A single position
    /// drops its axis, ranges are cut at the ends, negative numbers count from the end, axes that are not named stay
    /// whole; [`Slice::step`] gives a range a step, which may be negative.
    ///
    /// # Errors
    /// More slices than axes, a position out of range, a step of zero.
    #[doc = example!("slice")]
    #[doc(alias("strided_slice", "getitem"))]
    #[track_caller]
    pub fn slice(&self, slices: impl IntoSlices) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let slices = slices.into_slices();
        if slices.len() > self.rank() {
            return Err(Error::argument(
                "slice",
                format!("{} slices of shape {}; at most one for each axis", slices.len(), self.shape()),
            ));
        }
        let mut cuts = whole(self.shape());
        let mut single = SmallVec::<[usize; 4]>::new();
        for (axis, slice) in slices.iter().enumerate() {
            cuts[axis] = slice.cut("slice", axis, self.shape()[axis])?;
            if let Slice::At(_) = slice {
                single.push(axis);
            }
        }
        look(self, cuts, Axes::of(single))
    }

    /// What lies at position `index` of `axis`, as a view without that axis; negative numbers count from the end.
    ///
    /// # Errors
    /// An axis that the tensor does not have; a position out of range.
    #[doc = example!("select")]
    #[track_caller]
    pub fn select(&self, axis: impl Integer, index: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("select", axis)?;
        let mut cuts = whole(self.shape());
        cuts[axis] = Slice::At(index.to_isize()).cut("select", axis, self.shape()[axis])?;
        look(self, cuts, Axes::of([axis]))
    }

    /// What lies at position `index` of the first axis, as a view; negative numbers count from the end.
    ///
    /// # Errors
    /// A scalar; a position out of range.
    #[doc = example!("get")]
    #[doc(alias = "getitem")]
    #[track_caller]
    pub fn get(&self, index: impl Integer) -> Result<Tensor> {
        self.select(0, index)
    }

    /// The elements in reverse order along `axes`, as a view: `..` for all, one number, or several.
    ///
    /// # Errors
    /// An axis that the tensor does not have.
    #[doc = example!("flip")]
    #[doc(alias = "reverse")]
    #[track_caller]
    pub fn flip(&self, axes: impl IntoAxes) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let mut cuts = whole(self.shape());
        for axis in axes.into_axes("flip", self.shape())?.iter() {
            let extent = self.shape()[axis];
            cuts[axis] = Cut::new(extent.saturating_sub(1), -1, extent);
        }
        look(self, cuts, Axes::NONE)
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo { name: "slice", doc: "A part of a tensor, as a view.", samples },
    &OpInfo {
        name: "slice_backward",
        doc: "A gradient placed into zeros where the slice was.",
        samples: place::backward_samples,
    },
    &OpInfo { name: "pad", doc: "The elements with a number around them.", samples: place::pad_samples },
    &OpInfo { name: "split", doc: "The parts of a tensor along an axis, as views.", samples: split::samples },
];

fn samples() -> Vec<Sample> {
    vec![
        Sample::new("narrow", vec![floats(&[3, 5])], |x| x[0].narrow(-1, 1, 3))
            .reference(|x| Array::build(&[3, 3], |i| x[0].at(&[i[0], i[1] + 1])))
            .torch("x0.narrow(-1, 1, 3)")
            .example("x0.narrow(-1, 1, 3)")
            .refuses(vec![floats(&[3, 3])], "3 elements from 1 on reaches beyond axis 1, whose extent is 3"),
        Sample::new("ranges", vec![floats(&[4, 2, 7])], |x| x[0].slice((-3.., 1, Slice::from(1..6).step(2))))
            .reference(|x| Array::build(&[3, 3], |i| x[0].at(&[i[0] + 1, 1, 1 + 2 * i[1]])))
            .torch("x0[-3:, 1, 1:6:2]")
            .example("x0.slice((-3.., 1, Slice::from(1..6).step(2)))")
            .refuses(vec![floats(&[4, 1, 7])], "position 1 of axis 1, whose extent is 1")
            .refuses(vec![floats(&[4, 2])], "3 slices of shape [4, 2]"),
        Sample::new("backwards", vec![floats(&[6, 2])], |x| x[0].slice((Slice::from(..).step(-2), ..)))
            .reference(|x| Array::build(&[3, 2], |i| x[0].at(&[5 - 2 * i[0], i[1]])))
            .torch("x0.flip(0)[::2]"),
        Sample::new("select", vec![floats(&[2, 3, 4])], |x| x[0].select(1, -1))
            .reference(|x| Array::build(&[2, 4], |i| x[0].at(&[i[0], 2, i[1]])))
            .torch("x0.select(1, -1)")
            .example("x0.select(1, -1)"),
        Sample::new("get", vec![floats(&[3, 2])], |x| x[0].get(-1))
            .reference(|x| Array::build(&[2], |i| x[0].at(&[2, i[0]])))
            .example("x0.get(-1)"),
        Sample::new("flip", vec![floats(&[2, 3])], |x| x[0].flip(..))
            .reference(|x| Array::build(&[2, 3], |i| x[0].at(&[1 - i[0], 2 - i[1]])))
            .torch("x0.flip(0, 1)")
            .example("x0.flip(..)"),
    ]
}

#[cfg(test)]
mod tests;
