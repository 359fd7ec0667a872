//! Elementwise functions of one tensor: one file per op, one line here.
//!
//! An op's file states its formula, its derivative, what backward reads, the derivative in plain ops for higher derivatives,
//! and a range for the tests. This module makes the forward op, the fused backward op and the registry's entry of it.

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{
    Gradient, Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, SavedRef, SavedRefs, Tensors, one,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{computed, for_computed_floats};
use crate::ops::registry::{OpInfo, Sample, within};

/// Declares the ops of the family; each has a file, and a unit struct or a struct of attributes in it.
macro_rules! family {
    ($($module:ident :: $op:ident),* $(,)?) => {
        $(pub(crate) mod $module;)*
        /// The family's part of the registry.
        pub const INFOS: &[&OpInfo] = &[$(&info::<$module::$op>(), &backward_info::<$module::$op>()),*];
    };
}

family! {
    abs::Abs,
    acos::Acos,
    asin::Asin,
    atan::Atan,
    cos::Cos,
    cosh::Cosh,
    elu::Elu,
    erf::Erf,
    exp::Exp,
    exp_m1::ExpM1,
    gelu::Gelu,
    gelu_tanh::GeluTanh,
    hard_sigmoid::HardSigmoid,
    hard_swish::HardSwish,
    leaky_relu::LeakyRelu,
    ln::Ln,
    ln_1p::Ln1p,
    log10::Log10,
    log2::Log2,
    log_sigmoid::LogSigmoid,
    mish::Mish,
    powf::Powf,
    recip::Recip,
    relu::Relu,
    relu6::Relu6,
    rsqrt::Rsqrt,
    selu::Selu,
    sigmoid::Sigmoid,
    silu::Silu,
    sin::Sin,
    sinh::Sinh,
    softplus::Softplus,
    sqrt::Sqrt,
    square::Square,
    tan::Tan,
    tanh::Tanh,
}

/// What the derivative is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The input.
    Input,
    /// The output.
    Output,
}

/// An elementwise function of one float tensor.
pub trait Unary: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// The names of the op and of its backward op.
    const NAMES: [&'static str; 2];
    /// One sentence for the documents.
    const DOC: &'static str;
    /// What the derivative is computed from.
    const READS: Reads;
    /// The range that tests draw inputs from; inside it the function is smooth.
    const RANGE: (f64, f64) = (-2.0, 2.0);
    /// PyTorch's expression over `x0`.
    const TORCH: &'static str;
    /// The arguments of the method in the docs' example: those of [`Unary::sample`].
    const ARGUMENTS: &'static str = "";
    /// The function over `x0` and its derivative over `v`, in CUDA C; `C` is the type that is computed in, `NUMBER(i)` one
    /// of [`Unary::numbers`].
    const CUDA: [&'static str; 2];

    /// An op with typical attributes, for the tests.
    fn sample() -> Self;
    /// The attributes, and numbers made from them, that [`Unary::CUDA`] reads.
    fn numbers(self) -> [f64; 2] {
        [0.0; 2]
    }
    /// The function.
    fn value<T: Real>(self, x: T) -> T;
    /// Its derivative, from what [`Unary::READS`] names: the inside of the fused kernel of backward.
    fn backward_kernel<T: Real>(self, v: T) -> T;
    /// The same derivative in plain ops, so that it can be differentiated again.
    ///
    /// # Errors
    /// Memory that is full.
    fn backward_composite(self, v: &Tensor) -> Result<Tensor>;
    /// The function by the standard library, for the tests.
    fn reference(self, x: f64) -> f64;
}

/// Applies an op of the family.
#[track_caller]
pub(crate) fn unary<U: Unary>(op: U, x: &Tensor) -> Result<Tensor> {
    let _line = context::at_callers_line();
    call(OpRef::shipped(Forward(op)), &[x])
}

/// The gradient times the derivative of an op of the family, from what [`Unary::READS`] names; how ops that end in such a
/// function go back through it. Written over the gradient if nobody else holds it.
pub(crate) fn times_local_grad<U: Unary>(op: U, gradient: Tensor, read: Tensor) -> Result<Tensor> {
    call_with(OpRef::shipped(UnaryBackward(op)), smallvec::smallvec![Arg::Given(gradient), Arg::Given(read)])
}

/// Applies an op of the family, written over its input if nobody else holds it.
#[track_caller]
pub(crate) fn into_unary<U: Unary>(op: U, x: Tensor) -> Result<Tensor> {
    let _line = context::at_callers_line();
    call_with(OpRef::shipped(Forward(op)), smallvec::smallvec![Arg::Given(x)])
}

/// An attribute that must not be negative, for ops whose backward tells by the output's sign where the input was.
fn not_negative(op: &'static str, name: &'static str, value: f64) -> Result<f64> {
    match value >= 0.0 {
        true => Ok(value),
        false => Err(Error::argument(op, format!("{name} is {value}; it must be zero or more"))),
    }
}

/// Statements with the op's numbers, if the expression in them reads any.
fn with_numbers<U: Unary>(op: U, expression: &str, body: [&'static str; 3]) -> Pointwise {
    let pointwise = Pointwise::new(body);
    if expression.contains("NUMBER(") { pointwise.numbers(&op.numbers()) } else { pointwise }
}

/// The forward op.
#[derive(Debug)]
struct Forward<U>(U);

impl<U: Unary> Op for Forward<U> {
    fn name(&self) -> &'static str {
        U::NAMES[0]
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        if !dtype.is_float() {
            return Err(Error::dtype(
                U::NAMES[0],
                format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first"),
            ));
        }
        one(*inputs[0].shape(), dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_computed_floats!(x.dtype(), C => run1::<C>(x, y, |x, y| value_tile(self.0, x, y)));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(with_numbers(self.0, U::CUDA[0], ["y0 = ", U::CUDA[0], ";"]))
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        match U::READS {
            Reads::Input => smallvec::smallvec![SavedRef::Input(0)],
            Reads::Output => smallvec::smallvec![SavedRef::Output(0)],
        }
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        let value = match U::READS {
            Reads::Input => backward.input(0)?,
            Reads::Output => backward.output(0)?,
        };
        backward.set_grad(0, times_local_grad(self.0, gradient, value)?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The backward op: the gradient times the derivative.
#[derive(Debug)]
struct UnaryBackward<U>(U);

impl<U: Unary> Op for UnaryBackward<U> {
    fn name(&self) -> &'static str {
        U::NAMES[1]
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [gradient, read] = inputs else {
            return Err(Error::argument(
                U::NAMES[1],
                format!("takes a gradient and a value, not {} inputs", inputs.len()),
            ));
        };
        if gradient.dtype != read.dtype || !gradient.dtype.is_float() {
            return Err(Error::mixed_dtypes(U::NAMES[1], gradient.dtype, read.dtype));
        }
        if gradient.shape() != read.shape() {
            let detail =
                format!("a gradient of shape {} for a value of shape {}", gradient.shape(), read.shape());
            return Err(Error::shape(U::NAMES[1], detail));
        }
        one(*gradient.shape(), gradient.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [gradient, v] = run.inputs else {
            unreachable!("a gradient and what the derivative is computed from")
        };
        for_computed_floats!(gradient.dtype(), C => {
            run2::<C>(gradient, v, &run.outputs[0], |g, v, y| grad_tile(self.0, g, v, y));
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(with_numbers(self.0, U::CUDA[1], ["auto v = x1; y0 = x0 * (", U::CUDA[1], ");"]))
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let product = || inputs[0].mul(&self.0.backward_composite(inputs[1])?);
        Some(product().map(|result| smallvec::smallvec![result]))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

/// The function over one tile; compiled once per op and compute type.
#[inline(never)]
fn value_tile<U: Unary, T: Real>(op: U, x: &[T], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = op.value(x);
            }
        },
    );
}

/// The gradient times the derivative over one tile; compiled once per op and compute type.
#[inline(never)]
fn grad_tile<U: Unary, T: Real>(op: U, gradient: &[T], v: &[T], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &gradient), &v) in y.iter_mut().zip(gradient).zip(v) {
                *y = Number::mul(gradient, op.backward_kernel(v));
            }
        },
    );
}

fn run1<C>(x: &Operand, y: &Operand, tile: impl Fn(&[C], &mut [C]) + Sync) {
    // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input itself.
    unsafe { map::map1(x.shape(), computed(y), computed(x), tile) }
}

fn run2<C>(gradient: &Operand, v: &Operand, y: &Operand, tile: impl Fn(&[C], &[C], &mut [C]) + Sync) {
    // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the gradient itself.
    unsafe { map::map2(gradient.shape(), computed(y), computed(gradient), computed(v), tile) }
}

/// The registry's entry of a forward op.
const fn info<U: Unary>() -> OpInfo {
    OpInfo { name: U::NAMES[0], doc: U::DOC, samples: samples::<U> }
}

/// The registry's entry of a backward op.
const fn backward_info<U: Unary>() -> OpInfo {
    OpInfo {
        name: U::NAMES[1],
        doc: "The gradient times the derivative of the op it belongs to.",
        samples: backward_samples::<U>,
    }
}

fn samples<U: Unary>() -> Vec<Sample> {
    let op = U::sample();
    let (low, high) = U::RANGE;
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![within(shape, low, high)], move |x| unary(op, &x[0]))
            .reference(move |x| x[0].map(|x| op.reference(x)))
            .torch(U::TORCH)
            .example(format!("x0.{}({})", U::NAMES[0], U::ARGUMENTS))
    };
    let wrong = crate::ops::registry::input(&[3], crate::ops::registry::Values::Of(DType::I64, 0.0, 5.0));
    vec![sample("vector", &[7]), sample("cube", &[2, 3, 5]).refuses(vec![wrong], "takes floats")]
}

fn backward_samples<U: Unary>() -> Vec<Sample> {
    let op = U::sample();
    let (low, high) = U::RANGE;
    let inputs = vec![within(&[5], -1.0, 1.0), within(&[5], low, high)];
    let call = move |x: &[Tensor]| call(OpRef::shipped(UnaryBackward(op)), &x.iter().collect::<Vec<_>>());
    vec![Sample::new("vector", inputs, call)]
}
