//! `cross_entropy`: against labels that are numbers for every class.

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::lanes::{Lane, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_cuda::{Gpu, Template};
use smallvec::{SmallVec, smallvec};

use super::{log_sum_exp_aux, logits_gradient, losses};
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{
    AuxOutput, Gradient, Meta, Op, OpRef, Operand, Outputs, Run, SavedRef, SavedRefs, TakesMade, Tensors,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::lines::{Along, LineKernel, Lines};
use crate::ops::cuda::{c_name, code};
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{
    Exponentials, LanePtr, MadeLanes, expect_dtype, expect_shape, last_axis, made_in_lanes, per_lane, sum_of,
};
use crate::ops::registry::{Array, OpInfo, Sample, floats};

/// The loss of each row of logits against labels of the same shape.
#[derive(Debug)]
struct CrossEntropy;

/// From logits, labels, the gradient of the losses and the log-sum-exps to the gradient of the logits.
#[derive(Debug)]
struct CrossEntropyBackward;

/// The losses in plain ops.
pub(super) fn composite(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    labels.mul(&logits.logsumexp_keepdims(-1)?.sub(logits)?)?.sum(-1)
}

/// The gradient of the logits in plain ops.
pub(super) fn composite_backward(logits: &Tensor, labels: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let probabilities = logits.sub(&logits.logsumexp_keepdims(-1)?)?.exp()?;
    let difference = probabilities.mul(&labels.sum_keepdims(-1)?)?.sub(labels)?;
    difference.mul(&gradient.unsqueeze(-1)?)
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [logits, labels] = inputs else { unreachable!("two operands") };
        if logits.dtype != labels.dtype {
            return Err(Error::dtype(
                "cross_entropy",
                format!(
                    "logits are {} and labels {}; convert with `cast`, or use `sparse_cross_entropy` for class indices",
                    logits.dtype, labels.dtype
                ),
            ));
        }
        if logits.shape() != labels.shape() {
            return Err(Error::shape(
                "cross_entropy",
                format!(
                    "logits are {} and labels {}; dense labels have the shape of the logits",
                    logits.shape(),
                    labels.shape()
                ),
            ));
        }
        losses("cross_entropy", logits)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [logits, labels] = run.inputs else { unreachable!("two operands") };
        for_floats!(logits.dtype(), T => forward::<T>(logits, labels, &run.outputs[0], run.aux_outputs.first()));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let [logits, labels] = run.inputs else { unreachable!("two operands") };
        let saved = run.aux_outputs.first().map_or(std::ptr::null_mut(), Operand::ptr);
        let operands = [logits, labels].map(Along::Lane);
        let lines = Lines::along(logits.shape().rank() - 1, logits.shape(), &operands);
        let pointers = [logits.ptr(), labels.ptr(), run.outputs[0].ptr(), saved];
        // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, loss and auxiliary
        // output have one element per lane, and the kernel was made for this dtype.
        unsafe {
            cuda_kernel(self.name(), logits).launch(
                gpu,
                &lines,
                || define_cuda(logits, false),
                &pointers,
                &[],
            )
        }
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        made_in_lanes(inputs[0].shape().rank().checked_sub(1)?, inputs[0], false)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        match wanted[0] {
            true => smallvec![SavedRef::Input(0), SavedRef::Input(1), SavedRef::Aux(0)],
            false => smallvec![SavedRef::Input(0), SavedRef::Aux(0)],
        }
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        log_sum_exp_aux("cross_entropy", inputs[0])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let (gradient, log_sum_exp) = (backward.gradient()?, backward.aux(0)?);
        if backward.wants(1) {
            let logits = backward.input(0)?;
            let distance = log_sum_exp.cast(logits.dtype())?.unsqueeze(-1)?.sub(&logits)?;
            backward.set_grad(1, distance.into_mul(&gradient.unsqueeze(-1)?)?)?;
        }
        if backward.wants(0) {
            let labels = backward.input(1)?;
            let logits = backward.take_input(0)?;
            let args = smallvec![
                Arg::Given(logits),
                Arg::Lent(&labels),
                Arg::Lent(&gradient),
                Arg::Lent(&log_sum_exp)
            ];
            let gradient = call_with(OpRef::fixed(&CrossEntropyBackward), args)?;
            backward.set_grad(0, gradient)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite(inputs[0], inputs[1]).map(|losses| smallvec![losses]))
    }
}

impl Op for CrossEntropyBackward {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        expect_shape(self.name(), "the labels", inputs[1], inputs[0].shape())?;
        expect_dtype(self.name(), "the labels", inputs[1], inputs[0].dtype)?;
        logits_gradient(self.name(), inputs)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.outputs[0].dtype(), T => backward::<T>(run.inputs, &run.outputs[0]));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let ([x, labels, gradient, saved], result) = (run.inputs, &run.outputs[0]) else {
            unreachable!("four operands")
        };
        let operands = [
            Along::Lane(x),
            Along::Lane(labels),
            Along::Number(gradient),
            Along::Number(saved),
            Along::Lane(result),
        ];
        let lines = Lines::along(x.shape().rank() - 1, x.shape(), &operands);
        let pointers = [x, labels, gradient, saved, result].map(Operand::ptr);
        // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, and the kernel was
        // made for this dtype; where the result is the logits' memory, each thread writes what it alone has read.
        unsafe { cuda_kernel(self.name(), x).launch(gpu, &lines, || define_cuda(x, true), &pointers, &[]) }
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite_backward(inputs[0], inputs[1], inputs[2]).map(|gradient| smallvec![gradient]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

static TEMPLATE: Template = Template { name: "cross_entropy", text: include_str!("dense.cu") };

fn cuda_kernel<'a>(op: &'static str, logits: &'a Operand<'a>) -> LineKernel<'a> {
    let made = Some(logits);
    LineKernel { template: &TEMPLATE, op, variant: code(logits.dtype()), in_registers: true, made }
}

fn define_cuda(logits: &Operand, is_backward: bool) -> String {
    format!("typedef {} T;\n#define BACKWARD {}", c_name(logits.dtype()), u8::from(is_backward))
}

fn forward<T: Element<Compute: Real>>(
    logits: &Operand,
    labels: &Operand,
    loss: &Operand,
    saved: Option<&Operand>,
) {
    let layouts = [&logits.meta.layout, &labels.meta.layout, &per_lane(loss)];
    let lanes = last_axis(logits.shape(), layouts);
    let made = MadeLanes::new(logits, lanes.len);
    let (logits, labels, loss) =
        (LanePtr::<T>::new(logits), LanePtr::<T>::new(labels), LanePtr::<T>::new(loss));
    let saved = saved.map(LanePtr::<T::Compute>::new);
    made.for_each(&lanes, |lane| {
        let [x_offset, label_offset, loss_offset] = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out and nobody writes now.
        let (x, label) = unsafe {
            (
                logits.lane(x_offset, lanes.steps[0], lanes.len),
                labels.lane(label_offset, lanes.steps[1], lanes.len),
            )
        };
        let (mut x_room, mut label_room) = (Room::new(), Room::new());
        let log_sum_exp = Exponentials::of(&x, &mut x_room).log();
        let mut sum = T::Compute::ZERO;
        for piece in x.pieces() {
            let values = x.read(piece.clone(), &mut x_room);
            sum = sum + loss_of(values, label.read(piece, &mut label_room), log_sum_exp);
        }
        // SAFETY: this lane's elements of the fresh outputs; the saved one is contiguous.
        unsafe {
            loss.set(loss_offset, T::narrow(sum));
            if let Some(saved) = &saved {
                saved.set(lane as isize, log_sum_exp);
            }
        }
    });
}

#[inline(never)]
fn loss_of<C: Real>(x: &[C], labels: &[C], log_sum_exp: C) -> C {
    let labels = &labels[..x.len()];
    simd::vectorize(
        #[inline(always)]
        || {
            in_lanes(
                x,
                C::ZERO,
                #[inline(always)]
                |x, idx| labels[idx] * (log_sum_exp - x),
                |a, b| a + b,
            )
        },
    )
}

fn backward<T: Element<Compute: Real>>(inputs: &[Operand], result: &Operand) {
    let [x, labels, gradient, saved] = inputs else { unreachable!("four operands") };
    let (per_gradient, per_saved) = (per_lane(gradient), per_lane(saved));
    let layouts = [&x.meta.layout, &labels.meta.layout, &per_gradient, &per_saved, &result.meta.layout];
    let lanes = last_axis(x.shape(), layouts);
    let is_over = x.ptr() == result.ptr();
    let (x, labels, gradient) =
        (LanePtr::<T>::new(x), LanePtr::<T>::new(labels), LanePtr::<T>::new(gradient));
    let (saved, result) = (LanePtr::<T::Compute>::new(saved), LanePtr::<T>::new(result));
    lanes.for_each(|lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes and elements of operands that `execute` hands out; each lane of the result belongs to one task,
        // and where it is the logits' memory, pieces of the logits are copies.
        unsafe {
            let x = x.lane(offsets[0], lanes.steps[0], lanes.len).copied(is_over);
            let labels = labels.lane(offsets[1], lanes.steps[1], lanes.len);
            let result = result.lane(offsets[4], lanes.steps[4], lanes.len);
            backward_lane(&x, &labels, gradient.get(offsets[2]).widen(), saved.get(offsets[3]), &result);
        }
    });
}

fn backward_lane<T: Element<Compute: Real>>(
    x: &Lane<T>,
    labels: &Lane<T>,
    gradient: T::Compute,
    log_sum_exp: T::Compute,
    result: &Lane<T>,
) {
    let mut rooms = [const { Room::new() }; 3];
    let [x_room, label_room, result_room] = &mut rooms;
    let mut total = T::Compute::ZERO;
    for piece in labels.pieces() {
        total = total + sum_of(labels.read(piece, label_room));
    }
    for piece in x.pieces() {
        let (x, labels) = (x.read(piece.clone(), x_room), labels.read(piece.clone(), label_room));
        result.write(piece, result_room, |y| grad_tile(x, labels, [log_sum_exp, total, gradient], y));
    }
}

#[inline(never)]
fn grad_tile<C: Real>(x: &[C], labels: &[C], [log_sum_exp, total, gradient]: [C; 3], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &x), &label) in y.iter_mut().zip(x).zip(labels) {
                *y = ((x - log_sum_exp).exp() * total - label) * gradient;
            }
        },
    );
}

impl Tensor {
    /// The cross entropy of logits `[.., classes]` and labels of the same shape, one loss per row: `[..]`. The labels
    /// may be any numbers; probabilities are the usual ones. `.mean(..)` makes one loss of them.
    ///
    /// # Errors
    /// Labels of another shape or dtype, logits that are not floats; memory that is full.
    #[doc = example!("cross_entropy")]
    #[doc(alias("softmax_cross_entropy_with_logits", "categorical_crossentropy"))]
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&CrossEntropy), &[self, labels])
    }
}

/// The registry's entry of the op.
pub(super) const INFO: OpInfo =
    OpInfo { name: "cross_entropy", doc: "Cross entropy of logits and dense labels, row by row.", samples };

/// The registry's entry of its backward op.
pub(super) const BACKWARD_INFO: OpInfo = OpInfo {
    name: "cross_entropy_backward",
    doc: "The gradient of the logits from that of the losses.",
    samples: backward_samples,
};

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], torch: &str| {
        let (n_classes, rows) = shape.split_last().unwrap_or((&0, &[]));
        Sample::new(name, vec![floats(shape), floats(shape)], |x| x[0].cross_entropy(&x[1]))
            .reference(move |x| {
                Array::build(rows, |row| {
                    let at = |class: usize| [row, &[class]].concat();
                    let sum: f64 = (0..*n_classes).map(|class| x[0].at(&at(class)).exp()).sum();
                    (0..*n_classes).map(|c| x[1].at(&at(c)) * (sum.ln() - x[0].at(&at(c)))).sum()
                })
            })
            .torch(torch)
            .example("x0.cross_entropy(&x1)")
    };
    vec![
        sample("rows", &[3, 4], "F.cross_entropy(x0, x1, reduction='none')")
            .refuses(vec![floats(&[3, 4]), floats(&[3, 5])], "dense labels have the shape of the logits")
            .refuses(vec![floats(&[]), floats(&[])], "last axis of classes"),
        sample("sequences", &[2, 3, 5], "-(x1 * F.log_softmax(x0, -1)).sum(-1)"),
    ]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        let inputs = vec![floats(shape), floats(shape), floats(&shape[..shape.len() - 1])];
        Sample::new(name, inputs, |x| {
            let saved = x[0].logsumexp(-1)?.cast(x[0].dtype().accumulator())?;
            call(OpRef::fixed(&CrossEntropyBackward), &[&x[0], &x[1], &x[2], &saved])
        })
    };
    vec![sample("rows", &[3, 4]), sample("sequences", &[2, 2, 3])]
}
