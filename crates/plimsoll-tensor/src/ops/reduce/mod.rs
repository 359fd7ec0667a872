//! Reductions over any axes: one file per op, one line here.
//!
//! An op's file states its fold, what backward reads and the gradient in plain ops. This module makes the op, its two
//! methods (the second one keeps the reduced axes with extent one) and the registry's entry of it. The axes are
//! `..` for all, one number, or several; negative ones count from the end.

use plimsoll_cpu::reduce::{self as kernels, Fold, Source, Stretches};
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Profile};
use smallvec::SmallVec;

use crate::base::axes::{Axes, IntoAxes};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{
    AuxOutput, Gradient, Meta, Op, OpRef, Operand, Outputs, Run, SavedRefs, TakesMade, Tensors, one,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda;
use crate::ops::kernel::{computed, format};
use crate::ops::registry::{Array, Input, OpInfo, Sample, Values, floats, input};

pub(super) use sum::Sum;

mod positions;

/// Declares the ops of the family; each has a file, and a struct in it.
macro_rules! family {
    ($($module:ident :: $($op:ident),+;)*) => {
        $(mod $module;)*
        /// The family's part of the registry.
        pub const INFOS: &[&OpInfo] = &[
            $($(&info::<$module::$op>(),)+)*
            &positions::PICK_INFO,
            &positions::PLACE_INFO,
            &prod::BACKWARD_INFO,
        ];
    };
}

family! {
    arg::ArgMax, ArgMin;
    extreme::Max, Min;
    logsumexp::LogSumExp;
    mean::Mean;
    norm::Norm;
    prod::Prod;
    sum::Sum;
    truth::All, Any;
    var::Std, Var;
}

/// A reduction of many elements to one.
pub trait Reduce: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The name.
    const NAME: &'static str;
    /// One sentence for the documents.
    const DOC: &'static str;
    /// Whether the result of nothing is undefined, so that reducing an axis of extent zero is refused.
    const NEEDS_ELEMENTS: bool = false;
    /// Whether, and how, the op has a gradient.
    const GRADIENT: Gradient = Gradient::Backward;

    /// An op with typical attributes, for the tests.
    fn sample() -> Self;

    /// The dtype of the result.
    ///
    /// # Errors
    /// A dtype that the op does not take.
    fn output(self, input: DType) -> Result<DType> {
        floats_only(Self::NAME, input)
    }

    /// Computes the result of `x` over `axes`; `aux_outputs` is empty when the op is not recorded.
    fn run(self, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]);

    /// The same on a GPU, for inputs of a dtype; a recorded op has its auxiliary outputs as further outputs.
    fn cuda(self, input: DType, is_recorded: bool) -> cuda::reduce::Fold;

    /// What the GPU's fold knows as `NUMBER(0)`.
    fn number(self) -> f64 {
        0.0
    }

    /// What backward reads.
    fn saved(self) -> SavedRefs {
        SavedRefs::new()
    }

    /// Further results that backward reads, of the shape of the result.
    fn aux_outputs(self, _input: DType, _result: Shape) -> SmallVec<[AuxOutput; 2]> {
        SmallVec::new()
    }

    /// The gradient, in plain ops.
    ///
    /// # Errors
    /// Memory that is full.
    fn backward(self, _reduced: &Reduced, _backward: &mut Backward<'_>) -> Result<()> {
        Err(Error::not_differentiable(Self::NAME, "its results are not floats"))
    }

    /// The same function in plain ops, with the reduced axes kept; needed where backward reads auxiliary outputs.
    fn composite(self, _x: &Tensor, _axes: Axes) -> Option<Result<Tensor>> {
        None
    }

    /// The function of some values, for the tests.
    fn reference(self, values: &[f64]) -> f64;

    /// PyTorch's expression over `x0`, given its arguments for the axes; none where it does not take several.
    fn torch(self, dim: &str, several: bool) -> Option<String>;
}

/// The dtype itself, if it is a float.
fn floats_only(op: &'static str, dtype: DType) -> Result<DType> {
    match dtype.is_float() {
        true => Ok(dtype),
        false => {
            Err(Error::dtype(op, format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first")))
        }
    }
}

/// The dtype itself, unless it is bool.
fn numbers_only(op: &'static str, dtype: DType) -> Result<DType> {
    match dtype {
        DType::Bool => Err(Error::dtype(op, "takes numbers, not bool; convert with `cast`")),
        number => Ok(number),
    }
}

/// What was reduced.
#[derive(Clone, Copy, Debug)]
pub struct Reduced {
    axes: Axes,
}

impl Reduced {
    /// The gradient of the result, with the reduced axes of extent one.
    fn gradient(self, backward: &mut Backward<'_>) -> Result<Tensor> {
        let kept = backward.input_shape(0).reduced(self.axes, true);
        backward.gradient()?.reshape(kept)
    }

    /// The result, with the reduced axes of extent one.
    fn output(self, backward: &Backward<'_>) -> Result<Tensor> {
        backward.output(0)?.reshape(backward.input_shape(0).reduced(self.axes, true))
    }

    /// An auxiliary output, with the reduced axes of extent one.
    fn aux(self, backward: &Backward<'_>, aux: usize) -> Result<Tensor> {
        backward.aux(aux)?.reshape(backward.input_shape(0).reduced(self.axes, true))
    }

    /// The number of elements that each result was made from.
    fn n_elems(self, backward: &Backward<'_>) -> usize {
        n_reduced(backward.input_shape(0), self.axes)
    }
}

fn n_reduced(shape: &Shape, axes: Axes) -> usize {
    axes.iter().map(|axis| shape[axis]).product()
}

/// The op of a family member.
#[derive(Debug)]
struct Over<R> {
    reduce: R,
    axes: Axes,
    keep: bool,
}

impl<R: Reduce> Op for Over<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let shape = inputs[0].shape();
        let dtype = self.reduce.output(inputs[0].dtype)?;
        let result = shape.reduced(self.axes, self.keep);
        if R::NEEDS_ELEMENTS && n_reduced(shape, self.axes) == 0 && result.n_elems() > 0 {
            return Err(Error::shape(
                R::NAME,
                format!(
                    "axes {:?} of shape {shape} hold no element, and nothing has no {}",
                    self.axes,
                    R::NAME
                ),
            ));
        }
        one(result, dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        self.reduce.run(&run.inputs[0], self.axes, &run.outputs[0], run.aux_outputs);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let outputs: SmallVec<[&Operand; 2]> = run.outputs.iter().chain(run.aux_outputs).collect();
        let reduction = cuda::reduce::Reduction {
            op: R::NAME,
            inputs: &[&run.inputs[0]],
            axes: self.axes,
            fold: self.reduce.cuda(run.inputs[0].dtype(), !run.aux_outputs.is_empty()),
            outputs: &outputs,
            numbers: &[self.reduce.number()],
            workspace: run.workspace,
        };
        reduction.run(gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        // The folds of recorded ops may know more, and a workspace must not depend on the tape.
        let needs = |is_recorded: bool| {
            let fold = self.reduce.cuda(inputs[0].dtype, is_recorded);
            cuda::reduce::workspace(&inputs[..1], self.axes, &fold)
        };
        needs(false).max(needs(true))
    }

    fn takes_made(&self, _inputs: &[&Meta]) -> Option<TakesMade> {
        Some(TakesMade::Once)
    }

    fn gradient(&self) -> Gradient {
        R::GRADIENT
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        self.reduce.saved()
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        self.reduce.aux_outputs(inputs[0].dtype, inputs[0].shape().reduced(self.axes, self.keep))
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        self.reduce.backward(&Reduced { axes: self.axes }, backward)
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let kept = self.reduce.composite(inputs[0], self.axes)?;
        let shape = inputs[0].shape().reduced(self.axes, self.keep);
        Some(kept.and_then(|kept| kept.reshape(shape)).map(|result| smallvec::smallvec![result]))
    }
}

/// Reduces a tensor by an op of the family.
#[track_caller]
fn reduce<R: Reduce>(reduce: R, x: &Tensor, axes: impl IntoAxes, keep: bool) -> Result<Tensor> {
    let _line = context::at_callers_line();
    let axes = axes.into_axes(R::NAME, x.shape())?;
    call(OpRef::shipped(Over { reduce, axes, keep }), &[x])
}

/// Runs a fold over the axes of an operand into memory of one element per result.
pub(crate) fn fold<F: Fold>(fold: &F, x: &Operand, axes: Axes, y: &Operand) {
    let (is_reduced, to) = (|axis: usize| axes.contains(axis), computed(y));
    match x.source() {
        // SAFETY: `execute` hands out operands that are valid for their layouts; `y` is fresh and of the result's shape.
        None => unsafe { kernels::reduce(fold, x.shape(), is_reduced, computed(x), to) },
        // SAFETY: as above; elements are made as the operand's shape and dtype say.
        Some(source) => unsafe {
            let written = Written { source, memory: SharedPtr::new(x.ptr()), size: x.dtype().size() };
            let source: &dyn Source = if x.ptr().is_null() { source } else { &written };
            kernels::reduce_made(fold, x.shape(), is_reduced, (source, format(x.dtype())), to);
        },
    }
}

/// What makes elements, and writes them to the memory where they belong, too.
struct Written<'a> {
    source: &'a dyn Source,
    memory: SharedPtr<u8>,
    size: usize,
}

impl Source for Written<'_> {
    unsafe fn make(&self, stretches: Stretches, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.source.make(stretches, to) };
        let Stretches { first, n, step, len } = stretches;
        for row in 0..n {
            let (from, at) = (to.wrapping_add(row * len * self.size), (first + row * step) * self.size);
            // SAFETY: elements that have just been made, once, to where no other task makes or reads any.
            unsafe { self.memory.get().wrapping_add(at).copy_from_nonoverlapping(from, len * self.size) };
        }
    }
}

/// Declares the two methods of an op without attributes.
macro_rules! methods {
    ($op:ident, $name:ident, $keepdims:ident, $doc:literal, [$($alias:literal),*] $(, $more:literal)?) => {
        impl Tensor {
            #[doc = concat!($doc, " over `axes`: `..` for all, one number, several, or a range." $(, " ", $more)?)]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a dtype that the op does not take; memory that is full.
            #[doc = example!(stringify!($name))]
            $(#[doc(alias = $alias)])*
            #[track_caller]
            pub fn $name(&self, axes: impl IntoAxes) -> Result<Tensor> {
                super::reduce($op, self, axes, false)
            }

            #[doc = concat!($doc, " over `axes`, which stay with extent one." $(, " ", $more)?)]
            ///
            /// # Errors
            /// An axis that the tensor does not have, a dtype that the op does not take; memory that is full.
            #[doc = example!(stringify!($keepdims))]
            #[track_caller]
            pub fn $keepdims(&self, axes: impl IntoAxes) -> Result<Tensor> {
                super::reduce($op, self, axes, true)
            }
        }
    };
}

use methods;

/// The registry's entry of an op.
const fn info<R: Reduce>() -> OpInfo {
    OpInfo { name: R::NAME, doc: R::DOC, samples: samples::<R> }
}

/// The reference: the values of each result collected by plain loops.
fn reference<R: Reduce>(op: R, x: &Array, axes: &[usize], keep: bool) -> Array {
    let is_reduced = |axis: usize| axes.contains(&axis);
    let kept: Vec<usize> = (0..x.shape.len()).filter(|&axis| !is_reduced(axis)).collect();
    let dims = |axis: usize| if is_reduced(axis) { 1 } else { x.shape[axis] };
    let shape: Vec<usize> = match keep {
        true => (0..x.shape.len()).map(dims).collect(),
        false => kept.iter().map(|&axis| x.shape[axis]).collect(),
    };
    let extents: Vec<usize> = axes.iter().map(|&axis| x.shape[axis]).collect();
    Array::build(&shape, |out| {
        let mut index = vec![0; x.shape.len()];
        for (place, &axis) in kept.iter().enumerate() {
            index[axis] = out[if keep { axis } else { place }];
        }
        let inner = Array::build(&extents, |along| {
            for (&axis, &idx) in axes.iter().zip(along) {
                index[axis] = idx;
            }
            x.at(&index)
        });
        op.reference(&inner.values)
    })
}

fn samples<R: Reduce>() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], axes: &'static [usize], keep: bool| {
        let axes_of = move || Axes::of(axes.iter().copied());
        let dims: Vec<String> = axes.iter().map(usize::to_string).collect();
        let dim = match axes {
            [axis] => format!("dim={axis}"),
            _ => format!("dim=({})", dims.join(", ")),
        };
        let torch =
            R::sample().torch(&format!("{dim}{}", if keep { ", keepdim=True" } else { "" }), axes.len() > 1);
        let input: Input = match R::GRADIENT {
            Gradient::Zero => input(shape, Values::Constants(-2.0, 2.0)),
            _ => floats(shape),
        };
        let sample = Sample::new(name, vec![input], move |x| reduce(R::sample(), &x[0], axes_of(), keep))
            .reference(move |x| reference(R::sample(), &x[0], axes, keep));
        match torch {
            Some(torch) => sample.torch(torch),
            None => sample,
        }
    };
    vec![
        sample("all", &[2, 3, 4], &[0, 1, 2], false),
        sample("rows", &[3, 5], &[1], false).example(format!("x0.{}(1)", R::NAME)),
        sample("columns, kept", &[5, 3], &[0], true).example(format!("x0.{}_keepdims(0)", R::NAME)),
        sample("two axes", &[2, 3, 4], &[0, 2], false),
    ]
}
