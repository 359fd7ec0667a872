//! Elementwise functions of two tensors that broadcast: one file per op, one line here.
//!
//! An op's file states its formula, what backward reads, and the gradients in plain ops. A number may stand for the
//! second operand (see [`Rhs`]); it takes the tensor's dtype.

use plimsoll_cpu::element::{Element as Stored, Number};
use plimsoll_cpu::{map, simd};

use crate::context;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::execute::{Arg, Args, call_with};
use crate::op::{Keeps, Meta, Op, OpRef, Operand, Outputs, Run, one};
use crate::ops::kernel::{dst, for_numbers};
use crate::ops::registry::Values;
use crate::ops::registry::{Array, OpInfo, Sample, floats, input, within};
use crate::shape::Shape;
use crate::tape::Backward;
use crate::tensor::Tensor;
use crate::variable::Variable;

/// Declares the ops of the family; each has a file and a unit struct in it.
macro_rules! family {
    ($($module:ident :: $op:ident),* $(,)?) => {
        $(pub(crate) mod $module;)*
        /// The family's part of the registry.
        pub static INFOS: &[&OpInfo] = &[$(&info::<$module::$op>()),*];
    };
}

family! {
    add::Add,
    div::Div,
    mul::Mul,
    sub::Sub,
}

/// An elementwise function of two tensors.
pub trait Binary: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The name.
    const NAME: &'static str;
    /// One sentence for the documents.
    const DOC: &'static str;
    /// The range that tests draw the second operand from.
    const RHS_RANGE: (f64, f64) = (-2.0, 2.0);
    /// PyTorch's expression over `x0` and `x1`.
    const TORCH: &'static str;
    /// The op itself.
    const OP: &'static dyn Op;

    /// The function.
    fn value<T: Number>(lhs: T, rhs: T) -> T;
    /// What backward reads.
    fn keeps(wanted: &[bool]) -> Keeps;
    /// The gradients, in plain ops; [`give_reduced`] takes care of broadcasting.
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
    call_with(OpRef::Static(B::OP), args)
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

    fn infer(&self, inputs: &[Meta]) -> Result<Outputs> {
        let shape = broadcast(B::NAME, inputs)?;
        if inputs[0].dtype == DType::Bool {
            return Err(Error::dtype(
                B::NAME,
                "takes numbers, not bool; convert with `cast`, or use a logical op",
            ));
        }
        one(shape, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [lhs, rhs] = run.inputs else { unreachable!("two operands") };
        for_numbers!(lhs.dtype(), T => run2::<T, T>(lhs, rhs, &run.outputs[0], value_tile::<B, _>));
        Ok(())
    }

    fn keeps(&self, wanted: &[bool]) -> Keeps {
        B::keeps(wanted)
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
pub(crate) fn broadcast(op: &'static str, inputs: &[Meta]) -> Result<Shape> {
    let [lhs, rhs] = inputs else { unreachable!("two operands") };
    if lhs.dtype != rhs.dtype {
        return Err(Error::mixed_dtypes(op, lhs.dtype, rhs.dtype));
    }
    lhs.shape().broadcast(rhs.shape()).ok_or_else(|| Error::not_broadcastable(op, lhs.shape(), rhs.shape()))
}

/// Gives an input its gradient, summed over the axes along which it was repeated.
pub(crate) fn give_reduced(backward: &mut Backward<'_>, input: usize, gradient: Tensor) -> Result<()> {
    let shape = *backward.input_shape(input);
    let gradient = gradient.sum_to(&shape)?;
    backward.give(input, gradient)
}

#[inline(never)]
fn value_tile<B: Binary, T: Number>(lhs: &[T], rhs: &[T], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &lhs), &rhs) in y.iter_mut().zip(lhs).zip(rhs) {
                *y = B::value(lhs, rhs);
            }
        },
    );
}

/// Runs a tile function over two broadcast operands.
pub(crate) fn run2<T: Stored, O: Stored>(
    lhs: &Operand,
    rhs: &Operand,
    y: &Operand,
    tile: impl Fn(&[T::Compute], &[T::Compute], &mut [O::Compute]) + Sync,
) {
    let shape = y.shape();
    let stretch = |operand: &Operand| {
        operand.meta.layout.broadcast_to(shape).unwrap_or_else(|| unreachable!("`infer` checks the shapes"))
    };
    let (lhs_layout, rhs_layout) = (stretch(lhs), stretch(rhs));
    let lhs = map::Src { ptr: lhs.ptr().cast_const().cast::<T>(), strides: lhs_layout.strides() };
    let rhs = map::Src { ptr: rhs.ptr().cast_const().cast::<T>(), strides: rhs_layout.strides() };
    // SAFETY: `execute` hands out operands that are valid for their layouts, and a stretched layout repeats elements of
    // its operand; the output is fresh, or one of the operands with the same shape.
    unsafe { map::map2::<T, T, O>(shape, dst(y), lhs, rhs, tile) }
}

/// The registry's entry of an op.
const fn info<B: Binary>() -> OpInfo {
    OpInfo { name: B::NAME, doc: B::DOC, samples: samples::<B> }
}

fn samples<B: Binary>() -> Vec<Sample> {
    let (low, high) = B::RHS_RANGE;
    let call = |x: &[Tensor]| binary::<B>(&x[0], &x[1]);
    let sample = |name: &str, lhs: &[usize], rhs: &[usize], out: &'static [usize]| {
        Sample::new(name, vec![floats(lhs), within(rhs, low, high)], call)
            .reference(move |x| Array::build(out, |idx| B::reference(x[0].at(idx), x[1].at(idx))))
            .torch(B::TORCH)
    };
    vec![
        sample("equal shapes", &[2, 5], &[2, 5], &[2, 5])
            .refuses(vec![floats(&[2, 5]), floats(&[2, 4])], "[2, 5] and [2, 4] do not broadcast")
            .refuses(vec![floats(&[2]), input(&[2], Values::Of(DType::I64, 0.0, 5.0))], "with `cast`"),
        sample("row", &[3, 4], &[4], &[3, 4]),
        sample("column", &[2, 3, 1], &[3, 4], &[2, 3, 4]),
    ]
}
