//! `sparse_cross_entropy`: against class indices.

use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_cpu::element::{CastTo, Element, Number};
use plimsoll_cpu::lanes::{Lane, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;
use plimsoll_cuda::{Gpu, Template};
use smallvec::{SmallVec, smallvec};

use super::{dense, log_sum_exp_aux, logits_gradient, losses, rows_of};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{
    AuxOutput, Gradient, Meta, Op, OpRef, Operand, Outputs, Refusal, Refused, Run, SavedRef, SavedRefs,
    TakesMade, Tensors,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::lines::{Along, LineKernel, Lines};
use crate::ops::cuda::{CODE_BITS, c_name, code};
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{Exponentials, LanePtr, MadeLanes, last_axis, made_in_lanes, per_lane};
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// The loss of each row of logits against the index of its class; rows labelled `ignored` count nothing.
#[derive(Clone, Copy, Debug)]
struct SparseCrossEntropy {
    ignored: Option<i64>,
}

/// From logits, labels, the gradient of the losses and the log-sum-exps to the gradient of the logits.
#[derive(Clone, Copy, Debug)]
struct SparseCrossEntropyBackward {
    ignored: Option<i64>,
}

/// The class indices as dense labels, in plain ops; rows that are ignored are zero.
fn as_dense(labels: &Tensor, logits: &Tensor, ignored: Option<i64>) -> Result<Tensor> {
    let _here = logits.device().enter();
    let n_classes = logits.shape()[logits.rank() - 1];
    let labels = labels.cast(DType::I64)?.unsqueeze(-1)?;
    let classes = Tensor::arange_of(0.0, n_classes as f64, 1.0, DType::I64)?;
    let dense = labels.eq(&classes)?.cast(logits.dtype())?;
    match ignored {
        Some(ignored) => dense.mul(&labels.ne(ignored)?.cast(logits.dtype())?),
        None => Ok(dense),
    }
}

/// Refuses labels that are no class indices, or not one per row.
pub(super) fn check_labels(op: &'static str, logits: &Meta, labels: &Meta) -> Result<()> {
    if !matches!(labels.dtype, DType::I64 | DType::I32) {
        return Err(Error::dtype(
            op,
            format!(
                "labels are class indices of int64 or int32, not {}; use `cross_entropy` for dense labels",
                labels.dtype
            ),
        ));
    }
    let rows = rows_of(op, logits)?;
    if rows != *labels.shape() {
        return Err(Error::shape(
            op,
            format!(
                "logits {} have one label for each of {rows}, but labels are {}",
                logits.shape(),
                labels.shape()
            ),
        ));
    }
    Ok(())
}

impl Op for SparseCrossEntropy {
    fn name(&self) -> &'static str {
        "sparse_cross_entropy"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [logits, labels] = inputs else { unreachable!("two operands") };
        check_labels(self.name(), logits, labels)?;
        losses(self.name(), logits)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [logits, labels] = run.inputs else { unreachable!("two operands") };
        let (loss, saved) = (&run.outputs[0], run.aux_outputs.first());
        for_floats!(logits.dtype(), T => match labels.dtype() {
            DType::I64 => forward::<T, i64>(*self, logits, labels, loss, saved),
            _ => forward::<T, i32>(*self, logits, labels, loss, saved),
        })
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let [logits, labels] = run.inputs else { unreachable!("two operands") };
        let saved = run.aux_outputs.first().map_or(std::ptr::null_mut(), Operand::ptr);
        let axis = logits.shape().rank() - 1;
        let (cell, call) = run.may_refuse(self.name(), refusal(labels.shape(), logits.shape()[axis]))?;
        let operands = [Along::Lane(logits), Along::Number(labels)];
        let lines = Lines::along(axis, logits.shape(), &operands);
        let pointers = [logits.ptr(), labels.ptr(), run.outputs[0].ptr(), saved];
        let (ignored, has_ignored) = ignored_params(self.ignored);
        // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, loss and auxiliary
        // output have one element per lane, and the kernel was made for these dtypes.
        unsafe {
            cuda_kernel(self.name(), logits, labels).launch(
                gpu,
                &lines,
                || define_cuda(logits, labels, false),
                &pointers,
                &[&ignored, &has_ignored, &cell, &call],
            )
        }
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        made_in_lanes(inputs[0].shape().rank().checked_sub(1)?, inputs[0], false)
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Input(1), SavedRef::Aux(0)]
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        log_sum_exp_aux(self.name(), inputs[0])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let (gradient, labels, log_sum_exp) = (backward.gradient()?, backward.input(1)?, backward.aux(0)?);
        let logits = backward.take_input(0)?;
        let args =
            smallvec![Arg::Given(logits), Arg::Lent(&labels), Arg::Lent(&gradient), Arg::Lent(&log_sum_exp)];
        let op = SparseCrossEntropyBackward { ignored: self.ignored };
        let gradient = call_with(OpRef::shipped(op), args)?;
        backward.set_grad(0, gradient)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let losses = as_dense(inputs[1], inputs[0], self.ignored)
            .and_then(|labels| dense::composite(inputs[0], &labels));
        Some(losses.map(|losses| smallvec![losses]))
    }
}

impl Op for SparseCrossEntropyBackward {
    fn name(&self) -> &'static str {
        "sparse_cross_entropy_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_labels(self.name(), inputs[0], inputs[1])?;
        logits_gradient(self.name(), inputs)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (labels, result) = (&run.inputs[1], &run.outputs[0]);
        for_floats!(result.dtype(), T => match labels.dtype() {
            DType::I64 => backward::<T, i64>(*self, run.inputs, result),
            _ => backward::<T, i32>(*self, run.inputs, result),
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let ([x, labels, gradient, saved], result) = (run.inputs, &run.outputs[0]) else {
            unreachable!("four operands")
        };
        let operands = [
            Along::Lane(x),
            Along::Number(labels),
            Along::Number(gradient),
            Along::Number(saved),
            Along::Lane(result),
        ];
        let lines = Lines::along(x.shape().rank() - 1, x.shape(), &operands);
        let pointers = [x, labels, gradient, saved, result].map(Operand::ptr);
        let (ignored, has_ignored) = ignored_params(self.ignored);
        // SAFETY: `execute` hands out operands that are valid for their layouts, the lanes are theirs, and the kernel was
        // made for these dtypes; where the result is the logits' memory, each thread writes what it alone has read.
        unsafe {
            cuda_kernel(self.name(), x, labels).launch(
                gpu,
                &lines,
                || define_cuda(x, labels, true),
                &pointers,
                &[&ignored, &has_ignored],
            )
        }
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let gradient = as_dense(inputs[1], inputs[0], self.ignored)
            .and_then(|labels| dense::composite_backward(inputs[0], &labels, inputs[2]));
        Some(gradient.map(|gradient| smallvec![gradient]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

static TEMPLATE: Template = Template { name: "sparse_cross_entropy", text: include_str!("sparse.cu") };

fn cuda_kernel<'a>(op: &'static str, logits: &'a Operand<'a>, labels: &Operand<'_>) -> LineKernel<'a> {
    let made = Some(logits);
    let variant = (code(logits.dtype()) << CODE_BITS) | code(labels.dtype());
    LineKernel { template: &TEMPLATE, op, variant, in_registers: false, made }
}

fn define_cuda(logits: &Operand, labels: &Operand, is_backward: bool) -> String {
    let (logit, label) = (c_name(logits.dtype()), c_name(labels.dtype()));
    format!("typedef {logit} T;\ntypedef {label} L;\n#define BACKWARD {}", u8::from(is_backward))
}

/// The label that is ignored, and whether there is one.
fn ignored_params(ignored: Option<i64>) -> (i64, u32) {
    (ignored.unwrap_or(0), u32::from(ignored.is_some()))
}

fn forward<T, L>(
    op: SparseCrossEntropy,
    logits: &Operand,
    labels: &Operand,
    loss: &Operand,
    saved: Option<&Operand>,
) -> Result<()>
where
    T: Element<Compute: Real>,
    L: Element<Compute: CastTo<i64>>,
{
    let layouts = [&logits.meta.layout, &per_lane(labels), &per_lane(loss)];
    let lanes = last_axis(logits.shape(), layouts);
    let (label_shape, made) = (*labels.shape(), MadeLanes::new(logits, lanes.len));
    let (logits, labels, loss) =
        (LanePtr::<T>::new(logits), LanePtr::<L>::new(labels), LanePtr::<T>::new(loss));
    let saved = saved.map(LanePtr::<T::Compute>::new);
    let first_wrong = AtomicUsize::new(usize::MAX);
    // SAFETY: the offset is that of a lane, and nobody writes the labels now.
    let label_of = |lane: usize| -> i64 { unsafe { labels.get(lanes.offsets(lane)[1]) }.widen().cast() };
    made.for_each(&lanes, |lane| {
        let [x_offset, _, loss_offset] = lanes.offsets(lane);
        let label = label_of(lane);
        // SAFETY: a lane of an operand that `execute` hands out and nobody writes now.
        let x = unsafe { logits.lane(x_offset, lanes.steps[0], lanes.len) };
        let log_sum_exp = Exponentials::of(&x, &mut Room::new()).log();
        let value = match usize::try_from(label) {
            _ if op.ignored == Some(label) => T::Compute::ZERO,
            Ok(class) if class < lanes.len => {
                // SAFETY: an element of that lane.
                let logit = unsafe { logits.get(x_offset + class as isize * lanes.steps[0]) };
                log_sum_exp - logit.widen()
            }
            _ => {
                first_wrong.fetch_min(lane, Ordering::Relaxed);
                T::Compute::ZERO
            }
        };
        // SAFETY: this lane's elements of the fresh outputs; the saved one is contiguous.
        unsafe {
            loss.set(loss_offset, T::narrow(value));
            if let Some(saved) = &saved {
                saved.set(lane as isize, log_sum_exp);
            }
        }
    });
    match first_wrong.into_inner() {
        usize::MAX => Ok(()),
        lane => Err(refusal(&label_shape, lanes.len).error("sparse_cross_entropy", lane, label_of(lane))),
    }
}

/// What is refused of labels of that shape: those that are no classes.
pub(super) fn refusal(labels: &Shape, n_classes: usize) -> Refusal {
    let text = |refused: &Refused<'_>| {
        let Refused { value, place, bound, .. } = refused;
        let classes = match bound {
            0 => "there are none".to_owned(),
            n => format!("they go from 0 to {}", n - 1),
        };
        format!("label {value} at {place:?} is not one of the {bound} classes; {classes}")
    };
    Refusal { of: *labels, axis: 0, bound: n_classes, text }
}

fn backward<T, L>(op: SparseCrossEntropyBackward, inputs: &[Operand], result: &Operand)
where
    T: Element<Compute: Real>,
    L: Element<Compute: CastTo<i64>>,
{
    let [x, labels, gradient, saved] = inputs else { unreachable!("four operands") };
    let (per_label, per_gradient, per_saved) = (per_lane(labels), per_lane(gradient), per_lane(saved));
    let layouts = [&x.meta.layout, &per_label, &per_gradient, &per_saved, &result.meta.layout];
    let lanes = last_axis(x.shape(), layouts);
    let is_over = x.ptr() == result.ptr();
    let (x, labels, gradient) =
        (LanePtr::<T>::new(x), LanePtr::<L>::new(labels), LanePtr::<T>::new(gradient));
    let (saved, result) = (LanePtr::<T::Compute>::new(saved), LanePtr::<T>::new(result));
    lanes.for_each(|lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes and elements of operands that `execute` hands out; each lane of the result belongs to one task,
        // and where it is the logits' memory, pieces of the logits are copies.
        unsafe {
            let x = x.lane(offsets[0], lanes.steps[0], lanes.len).copied(is_over);
            let result = result.lane(offsets[4], lanes.steps[4], lanes.len);
            let label: i64 = labels.get(offsets[1]).widen().cast();
            let gradient = match op.ignored == Some(label) {
                true => T::Compute::ZERO,
                false => gradient.get(offsets[2]).widen(),
            };
            backward_lane(&x, label as usize, gradient, saved.get(offsets[3]), &result);
        }
    });
}

pub(super) fn backward_lane<T: Element<Compute: Real>>(
    x: &Lane<T>,
    label: usize,
    gradient: T::Compute,
    log_sum_exp: T::Compute,
    result: &Lane<T>,
) {
    let (mut x_room, mut result_room) = (Room::new(), Room::new());
    for piece in x.pieces() {
        let values = x.read(piece.clone(), &mut x_room);
        result.write(piece.clone(), &mut result_room, |y| {
            grad_tile(values, log_sum_exp, gradient, y);
            if piece.contains(&label) {
                y[label - piece.start] = y[label - piece.start] - gradient;
            }
        });
    }
}

#[inline(never)]
fn grad_tile<C: Real>(x: &[C], log_sum_exp: C, gradient: C, y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - log_sum_exp).exp() * gradient;
            }
        },
    );
}

impl Tensor {
    /// The cross entropy of logits `[.., classes]` and class indices `[..]` of int64 or int32, one loss per row: `[..]`.
    /// `.mean(..)` makes one loss of them.
    ///
    /// # Errors
    /// Labels of another shape, labels that are no class, logits that are not floats; memory that is full.
    #[doc = example!("sparse_cross_entropy")]
    #[doc(alias("sparse_softmax_cross_entropy_with_logits", "nll_loss", "cross_entropy"))]
    #[track_caller]
    pub fn sparse_cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&SparseCrossEntropy { ignored: None }), &[self, labels])
    }

    /// Like [`sparse_cross_entropy`](Tensor::sparse_cross_entropy); rows whose label is `ignored`, which need not be a
    /// class, have a loss and a gradient of zero.
    ///
    /// # Errors
    /// Labels of another shape, other labels that are no class, logits that are not floats; memory that is full.
    #[doc = example!("sparse_cross_entropy_ignoring")]
    #[doc(alias("ignore_index", "cross_entropy"))]
    #[track_caller]
    pub fn sparse_cross_entropy_ignoring(&self, labels: &Tensor, ignored: i64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(SparseCrossEntropy { ignored: Some(ignored) }), &[self, labels])
    }

    /// The mean of [`sparse_cross_entropy_ignoring`](Tensor::sparse_cross_entropy_ignoring) over the rows that are not
    /// ignored; NaN where all are.
    ///
    /// # Errors
    /// Labels of another shape, other labels that are no class, logits that are not floats; memory that is full.
    #[doc(alias = "ignore_index")]
    #[track_caller]
    pub fn mean_sparse_cross_entropy_ignoring(&self, labels: &Tensor, ignored: i64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let losses = self.sparse_cross_entropy_ignoring(labels, ignored)?;
        let counted = labels.cast(DType::I64)?.ne(ignored)?.cast(DType::I64)?.sum(..)?;
        losses.sum(..)?.div(&counted.cast(self.dtype())?)
    }
}

/// The registry's entry of the op.
pub(super) const INFO: OpInfo = OpInfo {
    name: "sparse_cross_entropy",
    doc: "Cross entropy of logits and class indices, row by row.",
    samples,
};

/// The registry's entry of its backward op.
pub(super) const BACKWARD_INFO: OpInfo = OpInfo {
    name: "sparse_cross_entropy_backward",
    doc: "The gradient of the logits from that of the losses.",
    samples: backward_samples,
};

fn reference(x: &[Array], rows: &'static [usize], n_classes: usize, ignored: Option<i64>) -> Array {
    Array::build(rows, |row| {
        let at = |class: usize| x[0].at(&[row, &[class]].concat());
        let label = x[1].at(row);
        let sum: f64 = (0..n_classes).map(|class| at(class).exp()).sum();
        if ignored.is_some_and(|ignored| ignored as f64 == label) {
            0.0
        } else {
            sum.ln() - at(label as usize)
        }
    })
}

fn samples() -> Vec<Sample> {
    let labels = |shape: &[usize]| input(shape, Values::Indices(4));
    let wrong = |low: f64, high: f64| vec![floats(&[3, 4]), input(&[3], Values::Of(DType::I64, low, high))];
    vec![
        Sample::new("rows", vec![floats(&[3, 4]), labels(&[3])], |x| x[0].sparse_cross_entropy(&x[1]))
            .reference(|x| reference(x, &[3], 4, None))
            .torch("F.cross_entropy(x0, x1, reduction='none')")
            .example("x0.sparse_cross_entropy(&x1)")
            .refuses(wrong(4.0, 9.0), "is not one of the 4 classes; they go from 0 to 3")
            .refuses(wrong(-3.0, 0.0), "is not one of the 4 classes")
            .refuses(vec![floats(&[3, 4]), labels(&[4])], "but labels are [4]")
            .refuses(vec![floats(&[3, 4]), floats(&[3])], "class indices of int64 or int32"),
        Sample::new("sequences, one class ignored", vec![floats(&[2, 3, 4]), labels(&[2, 3])], |x| {
            x[0].sparse_cross_entropy_ignoring(&x[1], 1)
        })
        .reference(|x| reference(x, &[2, 3], 4, Some(1)))
        .torch("F.cross_entropy(x0.movedim(-1, 1), x1, reduction='none', ignore_index=1)")
        .example("x0.sparse_cross_entropy_ignoring(&x1, 1)"),
        Sample::new(
            "labels of int32",
            vec![floats(&[5, 4]), input(&[5], Values::Of(DType::I32, 0.0, 4.0))],
            |x| x[0].sparse_cross_entropy(&x[1]),
        )
        .reference(|x| reference(x, &[5], 4, None))
        .torch("F.cross_entropy(x0, x1.long(), reduction='none')"),
    ]
}

fn backward_samples() -> Vec<Sample> {
    let sample = |name: &str, ignored: Option<i64>| {
        let inputs = vec![floats(&[3, 4]), input(&[3], Values::Indices(4)), floats(&[3])];
        Sample::new(name, inputs, move |x| {
            let saved = x[0].logsumexp(-1)?.cast(x[0].dtype().accumulator())?;
            call(OpRef::shipped(SparseCrossEntropyBackward { ignored }), &[&x[0], &x[1], &x[2], &saved])
        })
    };
    vec![sample("rows", None), sample("one class ignored", Some(2))]
}
