//! `softmax` and `log_softmax` along an axis.
//!
//! Backward reads the output alone. A lane is read once to find its greatest element and the sum of exponentials, and
//! once more to write the results; one that fits a tile takes each exponential only once. Lanes that lie side by side
//! are worked on together (`columns`).

mod columns;

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::lanes::{Lane, Lanes, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;
use plimsoll_cuda::{Gpu, Template};
use smallvec::SmallVec;

use crate::base::axes::Integer;
use crate::base::error::{Error, Result};
use crate::eager::check;
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{
    Gradient, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, TakesMade, Tensors, one,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::lines::{self, Along, LineKernel};
use crate::ops::cuda::{c_name, code};
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{
    Exponentials, LanePtr, MadeLanes, dot, expect_dtype, expect_float, expect_shape, greatest_of,
    made_in_lanes, shift, sum_of,
};
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input, within};

/// y = eˣ / Σ eˣ along an axis, or its logarithm.
#[derive(Clone, Copy, Debug)]
struct Softmax {
    axis: usize,
    is_log: bool,
}

/// From the gradient and the output to the gradient of the input, written over the gradient.
#[derive(Clone, Copy, Debug)]
struct SoftmaxBackward {
    axis: usize,
    is_log: bool,
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.is_log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        if !dtype.is_float() {
            let detail = format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first");
            return Err(Error::dtype(self.name(), detail));
        }
        one(*inputs[0].shape(), dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_floats!(x.dtype(), T => match columns::are_better(self.axis, x) {
            true => columns::forward::<T>(*self, x, y),
            false => forward::<T>(*self, x, y),
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = [&run.inputs[0], &run.outputs[0]];
        run_cuda(self.name(), (self.axis, self.is_log, false), &operands, gpu)
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        made_in_lanes(self.axis, inputs[0], true)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Output(0)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let args = smallvec::smallvec![Arg::Given(backward.gradient()?), Arg::Given(backward.output(0)?)];
        let op = SoftmaxBackward { axis: self.axis, is_log: self.is_log };
        backward.set_grad(0, call_with(OpRef::shipped(op), args)?)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let result = || {
            let log = inputs[0].sub(&inputs[0].logsumexp_keepdims(self.axis)?)?;
            if self.is_log { Ok(log) } else { log.exp() }
        };
        Some(result().map(|result| smallvec::smallvec![result]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

impl Op for SoftmaxBackward {
    fn name(&self) -> &'static str {
        if self.is_log { "log_softmax_backward" } else { "softmax_backward" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [gradient, y] = inputs else { unreachable!("two operands") };
        expect_float(self.name(), gradient)?;
        expect_shape(self.name(), "the output", y, gradient.shape())?;
        expect_dtype(self.name(), "the output", y, gradient.dtype)?;
        check::axis(self.name(), self.axis, gradient.shape())?;
        one(*gradient.shape(), gradient.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [gradient, y] = run.inputs else { unreachable!("two operands") };
        let result = &run.outputs[0];
        for_floats!(y.dtype(), T => match columns::are_better(self.axis, y) {
            true => columns::backward::<T>(*self, gradient, y, result),
            false => backward::<T>(*self, gradient, y, result),
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let operands = [&run.inputs[0], &run.inputs[1], &run.outputs[0]];
        run_cuda(self.name(), (self.axis, self.is_log, true), &operands, gpu)
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        made_in_lanes(self.axis, inputs[0], true)
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let [gradient, y] = *inputs else { unreachable!("two operands") };
        let axis = self.axis;
        let result = || match self.is_log {
            true => gradient.sub(&y.exp()?.mul(&gradient.sum_keepdims(axis)?)?),
            false => y.mul(&gradient.sub(&gradient.mul(y)?.sum_keepdims(axis)?)?),
        };
        Some(result().map(|result| smallvec::smallvec![result]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

static TEMPLATE: Template = Template { name: "softmax", text: include_str!("softmax.cu") };

/// Starts the kernel of either op; the last operand is the result.
fn run_cuda(
    op: &'static str,
    (axis, is_log, is_backward): (usize, bool, bool),
    operands: &[&Operand],
    gpu: &Gpu,
) -> Result<()> {
    let (shape, dtype) = (operands[0].shape(), operands[0].dtype());
    let laned: SmallVec<[Along<'_>; 3]> = operands.iter().map(|operand| Along::Lane(operand)).collect();
    let lanes = lines::Lines::along(axis, shape, &laned);
    let made = Some(operands[0]);
    let kernel = LineKernel { template: &TEMPLATE, op, variant: code(dtype), in_registers: true, made };
    let define = || {
        let (is_log, is_backward) = (u8::from(is_log), u8::from(is_backward));
        format!("typedef {} T;\n#define IS_LOG {is_log}\n#define BACKWARD {is_backward}", c_name(dtype))
    };
    let pointers: SmallVec<[*mut u8; 3]> = operands.iter().map(|operand| operand.ptr()).collect();
    // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, and the kernel was made
    // for this dtype; a result that is written over an operand is written where the same thread has read.
    unsafe { kernel.launch(gpu, &lanes, define, &pointers, &[]) }
}

fn forward<T: Element<Compute: Real>>(op: Softmax, x: &Operand, y: &Operand) {
    let lanes = Lanes::along(op.axis, x.shape(), [x.meta.layout.strides(), y.meta.layout.strides()]);
    let (is_over, made) = (x.ptr() == y.ptr(), MadeLanes::new(x, lanes.len));
    let (x, y) = (LanePtr::<T>::new(x), LanePtr::<T>::new(y));
    made.for_each(&lanes, |lane| {
        let [x_offset, y_offset] = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out; each lane of the output belongs to one task, and where it
        // is the input's memory, pieces of the input are copies.
        let (x, y) = unsafe {
            (x.lane(x_offset, lanes.steps[0], lanes.len), y.lane(y_offset, lanes.steps[1], lanes.len))
        };
        forward_lane(op.is_log, &x.copied(is_over), &y);
    });
}

fn forward_lane<T: Element<Compute: Real>>(is_log: bool, x: &Lane<T>, y: &Lane<T>) {
    let (mut x_room, mut y_room) = (Room::new(), Room::new());
    if !is_log && x.pieces().count() == 1 {
        let Some(all) = x.pieces().next() else { return };
        let values = x.read(all.clone(), &mut x_room);
        let shift = shift(greatest_of(values));
        y.write(all, &mut y_room, |y| {
            exponentials_tile(values, shift, T::Compute::ONE, y);
            let scale = T::Compute::ONE / sum_of(y);
            scale_tile(y, scale);
        });
        return;
    }
    let whole = Exponentials::of(x, &mut x_room);
    let (scale, log) = (T::Compute::ONE / whole.sum, whole.sum.ln());
    for piece in x.pieces() {
        let values = x.read(piece.clone(), &mut x_room);
        y.write(piece, &mut y_room, |y| match is_log {
            true => logarithms_tile(values, whole.shift, log, y),
            false => exponentials_tile(values, whole.shift, scale, y),
        });
    }
}

fn backward<T: Element<Compute: Real>>(
    op: SoftmaxBackward,
    gradient: &Operand,
    y: &Operand,
    result: &Operand,
) {
    let strides = [gradient, y, result].map(|operand| operand.meta.layout.strides());
    let lanes = Lanes::along(op.axis, y.shape(), strides);
    let (is_over, made) = (gradient.ptr() == result.ptr(), MadeLanes::new(gradient, lanes.len));
    let (gradient, y, result) =
        (LanePtr::<T>::new(gradient), LanePtr::<T>::new(y), LanePtr::<T>::new(result));
    made.for_each(&lanes, |lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out; each lane of the result belongs to one task, and where it
        // is the gradient's memory, pieces of the gradient are copies.
        let [gradient, y, result] = unsafe {
            [
                gradient.lane(offsets[0], lanes.steps[0], lanes.len),
                y.lane(offsets[1], lanes.steps[1], lanes.len),
                result.lane(offsets[2], lanes.steps[2], lanes.len),
            ]
        };
        backward_lane(op.is_log, &gradient.copied(is_over), &y, &result);
    });
}

fn backward_lane<T: Element<Compute: Real>>(is_log: bool, gradient: &Lane<T>, y: &Lane<T>, result: &Lane<T>) {
    let mut rooms = [const { Room::new() }; 3];
    let [g_room, y_room, result_room] = &mut rooms;
    let mut total = T::Compute::ZERO;
    for piece in y.pieces() {
        let g = gradient.read(piece.clone(), g_room);
        total = total + if is_log { sum_of(g) } else { dot(g, y.read(piece, y_room)) };
    }
    for piece in y.pieces() {
        let (g, y) = (gradient.read(piece.clone(), g_room), y.read(piece.clone(), y_room));
        result.write(piece, result_room, |result| match is_log {
            true => log_grad_tile(g, y, total, result),
            false => grad_tile(g, y, total, result),
        });
    }
}

/// Declares a tile function: the value of each element of `y` from the elements of the inputs at the same place.
macro_rules! tile {
    ($name:ident, [$($input:ident),+], [$($number:ident),+], $value:expr) => {
        #[inline(never)]
        fn $name<C: Real>($($input: &[C],)+ $($number: C,)+ y: &mut [C]) {
            simd::vectorize(
                #[inline(always)]
                || {
                    let n = y.len();
                    $(let $input = &$input[..n];)+
                    for idx in 0..n {
                        $(let $input = $input[idx];)+
                        y[idx] = $value;
                    }
                },
            );
        }
    };
}

tile!(exponentials_tile, [x], [shift, scale], (x - shift).exp() * scale);
tile!(logarithms_tile, [x], [shift, log], x - shift - log);
tile!(grad_tile, [g, v], [total], v * (g - total));
tile!(log_grad_tile, [g, v], [total], g - v.exp() * total);

#[inline(never)]
fn scale_tile<C: Real>(y: &mut [C], scale: C) {
    simd::vectorize(
        #[inline(always)]
        || y.iter_mut().for_each(|y| *y = *y * scale),
    );
}

impl Tensor {
    /// The exponentials along `axis`, divided by their sum.
    ///
    /// # Errors
    /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
    #[doc = example!("softmax")]
    #[track_caller]
    pub fn softmax(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("softmax", axis)?;
        call(OpRef::shipped(Softmax { axis, is_log: false }), &[self])
    }

    /// The logarithm of the [`softmax`](Tensor::softmax) along `axis`, without taking exponentials apart.
    ///
    /// # Errors
    /// An axis that the tensor does not have, a tensor that is not of floats; memory that is full.
    #[doc = example!("log_softmax")]
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Integer) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let axis = self.shape().axis("log_softmax", axis)?;
        call(OpRef::shipped(Softmax { axis, is_log: true }), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "softmax",
        doc: "The exponentials along an axis, divided by their sum.",
        samples: || samples(false),
    },
    &OpInfo {
        name: "softmax_backward",
        doc: "The gradient of softmax from that of its output.",
        samples: || backward_samples(false),
    },
    &OpInfo {
        name: "log_softmax",
        doc: "The logarithm of the softmax along an axis.",
        samples: || samples(true),
    },
    &OpInfo {
        name: "log_softmax_backward",
        doc: "The gradient of log_softmax from that of its output.",
        samples: || backward_samples(true),
    },
];

fn samples(is_log: bool) -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], axis: isize| {
        let along = axis.rem_euclid(shape.len() as isize) as usize;
        let torch = if is_log { "log_softmax" } else { "softmax" };
        Sample::new(name, vec![floats(shape)], move |x| {
            if is_log { x[0].log_softmax(axis) } else { x[0].softmax(axis) }
        })
        .reference(move |x| {
            Array::build(shape, |idx| {
                let mut other = idx.to_vec();
                let mut sum = 0.0;
                for place in 0..shape[along] {
                    other[along] = place;
                    sum += x[0].at(&other).exp();
                }
                let share = x[0].at(idx).exp() / sum;
                if is_log { share.ln() } else { share }
            })
        })
        .torch(format!("x0.{torch}({axis})"))
        .example(format!("x0.{torch}({axis})"))
    };
    let wrong = input(&[3, 4], Values::Of(crate::base::dtype::DType::I64, 0.0, 5.0));
    vec![
        sample("rows", &[3, 4], -1).refuses(vec![wrong], "takes floats"),
        sample("middle axis", &[2, 5, 3], 1),
        sample("columns", &[2, 3, 2, 9], 1),
        sample("vector", &[7], 0),
    ]
}

fn backward_samples(is_log: bool) -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], axis: usize| {
        let inputs = vec![floats(shape), within(shape, -1.5, -0.2)];
        Sample::new(name, inputs, move |x| {
            call(OpRef::shipped(SoftmaxBackward { axis, is_log }), &[&x[0], &x[1]])
        })
    };
    vec![sample("rows", &[2, 5], 1), sample("columns", &[4, 3], 0), sample("side by side", &[3, 11], 0)]
}
