//! Elementwise functions of two tensors that broadcast: one file per op, one line here.
//!
//! An op's file states its formula, what backward reads, and the gradients in plain ops. A number may stand for the
//! second operand (see [`Rhs`]); it takes the tensor's dtype.

use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;
use smallvec::SmallVec;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{Arg, Args, call_with};
use crate::eager::op::{AuxOutput, Form, Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::eager::variable::Variable;
use crate::ops::cuda;
use crate::ops::kernel::{computed, stretched};
use crate::ops::registry::Values;
use crate::ops::registry::{Array, OpInfo, Sample, floats, input, within};

/// Declares the ops of the family; each has a file and a unit struct in it.
macro_rules! family {
    ($($module:ident :: $op:ident),* $(,)?) => {
        $(pub(crate) mod $module;)*
        /// The family's part of the registry.
        pub const INFOS: &[&OpInfo] = &[$(&info::<$module::$op>()),*];
    };
}

family! {
    add::Add,
    atan2::Atan2,
    div::Div,
    floor_div::FloorDiv,
    maximum::Maximum,
    minimum::Minimum,
    mul::Mul,
    pow::Pow,
    rem::Rem,
    sub::Sub,
}

/// An elementwise function of two tensors.
pub trait Binary: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The name.
    const NAME: &'static str;
    /// One sentence for the documents.
    const DOC: &'static str;
    /// The range that tests draw the first operand from.
    const LHS_RANGE: (f64, f64) = (-2.0, 2.0);
    /// The range that tests draw the second operand from.
    const RHS_RANGE: (f64, f64) = (-2.0, 2.0);
    /// Whether the op takes floats alone.
    const FLOATS_ONLY: bool = false;
    /// PyTorch's expression over `x0` and `x1`.
    const TORCH: &'static str;
    /// Whether backward reads a mask, as [`SavedRef::Aux`](crate::eager::op::SavedRef::Aux) zero.
    const MASKED: bool = false;
    /// The function in CUDA C, over `x0` and `x1`.
    const CUDA: &'static str;
    /// What [`Binary::mask`] writes, in CUDA C.
    const CUDA_MASK: &'static str = "";
    /// The op itself.
    const OP: &'static dyn Op;

    /// Computes the op with [`zip`], for each dtype that it takes.
    fn run(lhs: &Operand, rhs: &Operand, y: &Operand);
    /// What backward reads.
    fn saved(wanted: &[bool]) -> SavedRefs;
    /// Writes a byte per element for backward, before the output is written; none unless [`Binary::MASKED`].
    fn mask(_lhs: &Operand, _rhs: &Operand, _mask: &Operand) {}
    /// The gradients, in plain ops; [`set_grad_reduced`] takes care of broadcasting.
    ///
    /// # Errors
    /// Memory that is full.
    fn backward(backward: &mut Backward<'_>) -> Result<()>;
    /// The function in f64, for the tests.
    fn reference(lhs: f64, rhs: f64) -> f64;
}

/// The second operand of a binary op: a tensor, a variable, or a number.
pub trait Rhs {
    /// Calls the op that fits.
    ///
    /// # Errors
    /// Those of the op.
    fn apply<R>(&self, tensor: impl FnOnce(&Tensor) -> R, number: impl FnOnce(f64) -> R) -> R;
}

impl Rhs for &Tensor {
    fn apply<R>(&self, tensor: impl FnOnce(&Tensor) -> R, _number: impl FnOnce(f64) -> R) -> R {
        tensor(self)
    }
}

impl Rhs for &Variable {
    fn apply<R>(&self, tensor: impl FnOnce(&Tensor) -> R, _number: impl FnOnce(f64) -> R) -> R {
        tensor(self)
    }
}

macro_rules! number_rhs {
    ($($type:ty),*) => {$(
        impl Rhs for $type {
            fn apply<R>(&self, _tensor: impl FnOnce(&Tensor) -> R, number: impl FnOnce(f64) -> R) -> R {
                number(*self as f64)
            }
        }
    )*};
}

number_rhs!(f64, f32, i64, i32, u8, usize);

/// Applies an op of the family to two tensors.
#[track_caller]
pub(crate) fn binary<B: Binary>(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    binary_with::<B>(Arg::Lent(lhs), Arg::Lent(rhs))
}

/// Applies an op of the family; operands that are given may be overwritten.
#[track_caller]
pub(crate) fn binary_with<B: Binary>(lhs: Arg<'_>, rhs: Arg<'_>) -> Result<Tensor> {
    let _line = context::at_callers_line();
    let mut args = Args::new();
    args.push(lhs);
    args.push(rhs);
    call_with(OpRef::fixed(B::OP), args)
}

/// The op of a family member.
#[derive(Debug)]
pub(crate) struct Elementwise<B>(pub std::marker::PhantomData<B>);

impl<B> Elementwise<B> {
    pub const NEW: Elementwise<B> = Elementwise(std::marker::PhantomData);
}

impl<B: Binary> Op for Elementwise<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let shape = broadcast(B::NAME, inputs)?;
        match inputs[0].dtype {
            DType::Bool => Err(Error::dtype(
                B::NAME,
                "takes numbers, not bool; convert with `cast`, or use a logical op",
            )),
            dtype if B::FLOATS_ONLY && !dtype.is_float() => Err(Error::dtype(
                B::NAME,
                format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first"),
            )),
            dtype => one(shape, dtype),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [lhs, rhs] = run.inputs else { unreachable!("two operands") };
        if let Some(mask) = run.aux_outputs.first() {
            B::mask(lhs, rhs, mask);
        }
        B::run(lhs, rhs, &run.outputs[0]);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let outputs: SmallVec<[&Operand; 2]> = run.outputs.iter().chain(run.aux_outputs).collect();
        let kernel = cuda::elementwise::Elementwise {
            op: B::NAME,
            inputs: &[&run.inputs[0], &run.inputs[1]],
            outputs: &outputs,
            numbers: &[],
            words: &[],
            variant: outputs.len() as u64,
        };
        kernel.run(gpu, || match outputs.len() {
            1 => format!("y0 = {};", B::CUDA),
            _ => format!("y0 = {}; y1 = {};", B::CUDA, B::CUDA_MASK),
        })
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = ", B::CUDA, ";"]))
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        let shape = inputs[0].shape().broadcast(inputs[1].shape()).filter(|_| B::MASKED);
        shape
            .map(|shape| AuxOutput { form: Form::Mask, meta: Meta::fresh(shape, DType::U8) })
            .into_iter()
            .collect()
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        B::saved(wanted)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        B::backward(backward)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0, 1]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The common shape of operands of one dtype.
pub(crate) fn broadcast(op: &'static str, inputs: &[&Meta]) -> Result<Shape> {
    let [lhs, rhs] = inputs else { unreachable!("two operands") };
    if lhs.dtype != rhs.dtype {
        return Err(Error::mixed_dtypes(op, lhs.dtype, rhs.dtype));
    }
    lhs.shape().broadcast(rhs.shape()).ok_or_else(|| Error::not_broadcastable(op, lhs.shape(), rhs.shape()))
}

/// Gives an input its gradient, summed over the axes along which it was repeated.
pub(crate) fn set_grad_reduced(backward: &mut Backward<'_>, input: usize, gradient: Tensor) -> Result<()> {
    let shape = *backward.input_shape(input);
    let gradient = gradient.sum_to(&shape)?;
    backward.set_grad(input, gradient)
}

/// What a mask of [`set_grad_shares`] says of one element: two where all of the gradient is the first operand's, zero where
/// none is, one where the operands share it.
#[inline(always)]
pub(crate) fn share_of_lhs(takes_lhs: bool, is_tie: bool) -> u8 {
    2 * u8::from(takes_lhs) + u8::from(is_tie)
}

/// Gives two operands their shares of the gradient, by the mask that was kept. The shares are none, a half and all, so
/// that what one operand does not get is the other's, to the bit.
pub(crate) fn set_grad_shares(backward: &mut Backward<'_>) -> Result<()> {
    let gradient = backward.gradient()?;
    let share = backward.aux(0)?.cast(gradient.dtype())?.into_affine(0.5, 0.0)?;
    let of_lhs = gradient.mul(&share)?;
    drop(share);
    if backward.wants(1) {
        set_grad_reduced(backward, 1, gradient.into_sub(&of_lhs)?)?;
    }
    match backward.wants(0) {
        true => set_grad_reduced(backward, 0, of_lhs),
        false => Ok(()),
    }
}

/// Computes `y = f(lhs, rhs)`, element by element. `f` is a function of the compute type, marked `#[inline(always)]`, so
/// that the dtypes that compute alike share one loop.
pub(crate) fn zip<C: Copy, O>(
    lhs: &Operand,
    rhs: &Operand,
    y: &Operand,
    f: impl Fn(C, C) -> O + Copy + Sync,
) {
    run2(lhs, rhs, y, |lhs, rhs, y| zip_tile(f, lhs, rhs, y));
}

#[inline(never)]
fn zip_tile<T: Copy, O>(f: impl Fn(T, T) -> O + Copy, lhs: &[T], rhs: &[T], y: &mut [O]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &lhs), &rhs) in y.iter_mut().zip(lhs).zip(rhs) {
                *y = f(lhs, rhs);
            }
        },
    );
}

/// Runs a tile function of the compute types over two broadcast operands.
pub(crate) fn run2<C, O>(
    lhs: &Operand,
    rhs: &Operand,
    y: &Operand,
    tile: impl Fn(&[C], &[C], &mut [O]) + Sync,
) {
    let shape = y.shape();
    let stretch = |operand: &Operand| {
        operand.meta.layout.broadcast_to(shape).unwrap_or_else(|| unreachable!("`infer` checks the shapes"))
    };
    // Layouts are not small, so one is made only where an operand is repeated.
    let (lhs_stretched, rhs_stretched);
    let lhs_layout = match lhs.shape() == shape {
        true => &lhs.meta.layout,
        false => {
            lhs_stretched = stretch(lhs);
            &lhs_stretched
        }
    };
    let rhs_layout = match rhs.shape() == shape {
        true => &rhs.meta.layout,
        false => {
            rhs_stretched = stretch(rhs);
            &rhs_stretched
        }
    };
    let (lhs, rhs) = (stretched(lhs, lhs_layout), stretched(rhs, rhs_layout));
    // SAFETY: `execute` hands out operands that are valid for their layouts, and a stretched layout repeats elements of
    // its operand; the output is fresh, or one of the operands with the same shape.
    unsafe { map::map2(shape, computed(y), lhs, rhs, tile) }
}

/// The registry's entry of an op.
const fn info<B: Binary>() -> OpInfo {
    OpInfo { name: B::NAME, doc: B::DOC, samples: samples::<B> }
}

fn samples<B: Binary>() -> Vec<Sample> {
    let ((low, high), (rhs_low, rhs_high)) = (B::LHS_RANGE, B::RHS_RANGE);
    let call = |x: &[Tensor]| binary::<B>(&x[0], &x[1]);
    let sample = |name: &str, lhs: &[usize], rhs: &[usize], out: &'static [usize]| {
        Sample::new(name, vec![within(lhs, low, high), within(rhs, rhs_low, rhs_high)], call)
            .reference(move |x| Array::build(out, |idx| B::reference(x[0].at(idx), x[1].at(idx))))
            .torch(B::TORCH)
            .example(format!("x0.{}(&x1)", B::NAME))
    };
    vec![
        sample("equal shapes", &[2, 5], &[2, 5], &[2, 5])
            .refuses(vec![floats(&[2, 5]), floats(&[2, 4])], "[2, 5] and [2, 4] do not broadcast")
            .refuses(vec![floats(&[2]), input(&[2], Values::Of(DType::I64, 0.0, 5.0))], "with `cast`"),
        sample("row", &[3, 4], &[4], &[3, 4]),
        sample("column", &[2, 3, 1], &[3, 4], &[2, 3, 4]),
    ]
}
