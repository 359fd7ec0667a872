//! `where_`: elements of one tensor where a condition holds, else of another.

use plimsoll_cpu::element::Element as Stored;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, SavedRef, SavedRefs, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::binary::set_grad_reduced;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::stretched;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// f(c, a, b) = a where c, else b. The gradient goes the same way, so the condition is saved, and no operand.
#[derive(Debug)]
struct Where;

impl Op for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let [condition, lhs, rhs] = inputs else { unreachable!("a condition and two operands") };
        if condition.dtype != DType::Bool {
            return Err(Error::dtype(
                "where",
                format!("the condition is {}, not bool; compare it, as in `x.gt(0.0)`", condition.dtype),
            ));
        }
        if lhs.dtype != rhs.dtype {
            return Err(Error::mixed_dtypes("where", lhs.dtype, rhs.dtype));
        }
        let joined =
            |a: &Shape, b: &Shape| a.broadcast(b).ok_or_else(|| Error::not_broadcastable("where", a, b));
        one(joined(condition.shape(), &joined(lhs.shape(), rhs.shape())?)?, lhs.dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [condition, lhs, rhs] = run.inputs else { unreachable!("a condition and two operands") };
        let y = &run.outputs[0];
        // Values are moved and never computed with, so types of one size share their code.
        match y.dtype().size() {
            8 => select::<i64>(condition, lhs, rhs, y),
            4 => select::<i32>(condition, lhs, rhs, y),
            2 => select::<u16>(condition, lhs, rhs, y),
            _ => select::<u8>(condition, lhs, rhs, y),
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = x0 ? x1 : x2;", "", ""]))
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        smallvec::smallvec![SavedRef::Input(0)]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let (gradient, condition) = (backward.gradient()?, backward.input(0)?);
        let zero = Tensor::full_like_scalar(&gradient, 0.0)?;
        if backward.wants(1) {
            set_grad_reduced(backward, 1, condition.where_(&gradient, &zero)?)?;
        }
        if backward.wants(2) {
            set_grad_reduced(backward, 2, condition.where_(&zero, &gradient)?)?;
        }
        Ok(())
    }

    fn overwrites(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

fn select<T: Bits>(condition: &Operand, lhs: &Operand, rhs: &Operand, y: &Operand) {
    let shape = y.shape();
    let stretch = |operand: &Operand| {
        operand.meta.layout.broadcast_to(shape).unwrap_or_else(|| unreachable!("`infer` checks the shapes"))
    };
    let layouts = [stretch(condition), stretch(lhs), stretch(rhs)];
    let condition = stretched(condition, &layouts[0]);
    let [lhs, rhs] = [(lhs, 1), (rhs, 2)]
        .map(|(operand, idx)| map::Operand::new(operand.ptr().cast::<T>(), layouts[idx].strides()));
    let y = map::Operand::new(y.ptr().cast::<T>(), y.meta.layout.strides());
    // SAFETY: `execute` hands out operands that are valid for their layouts, and a stretched layout repeats elements of
    // its operand; elements are read as bits of their size. The output is fresh, or an operand with the same shape.
    unsafe { map::map3(shape, y, [condition, lhs, rhs], select_tile::<T>) }
}

/// Elements as bits of one size.
trait Bits: Stored<Compute = Self> {
    /// One of the two, by masks: from a plain choice the compiler makes a choice of addresses, element by element.
    fn choose(condition: bool, lhs: Self, rhs: Self) -> Self;
}

macro_rules! bits {
    ($($type:ident),*) => {$(
        impl Bits for $type {
            #[inline(always)]
            fn choose(condition: bool, lhs: $type, rhs: $type) -> $type {
                let mask = $type::from(condition).wrapping_neg();
                rhs ^ ((lhs ^ rhs) & mask)
            }
        }
    )*};
}

bits!(i64, i32, u16, u8);

#[inline(never)]
fn select_tile<T: Bits>(condition: &[bool], lhs: &[T], rhs: &[T], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (((y, &condition), &lhs), &rhs) in y.iter_mut().zip(condition).zip(lhs).zip(rhs) {
                *y = T::choose(condition, lhs, rhs);
            }
        },
    );
}

impl Tensor {
    /// Elements of `lhs` where this tensor of truth values holds, else of `rhs`; all three broadcast.
    ///
    /// # Errors
    /// A condition that is not bool, shapes that do not broadcast, different dtypes; memory that is full.
    #[doc = example!("where_")]
    #[doc(alias("where", "select"))]
    #[track_caller]
    pub fn where_(&self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Where), &[self, lhs, rhs])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[&OpInfo {
    name: "where",
    doc: "Elements of one tensor where a condition holds, else of another.",
    samples,
}];

fn samples() -> Vec<Sample> {
    let truths = |shape: &[usize]| input(shape, Values::Truths);
    let sample = |name: &str, inputs: Vec<crate::ops::registry::Input>| {
        Sample::new(name, inputs, |x| x[0].where_(&x[1], &x[2]))
            .reference(|x| Array::build(&[2, 5], |i| if x[0].at(i) != 0.0 { x[1].at(i) } else { x[2].at(i) }))
            .torch("torch.where(x0, x1, x2)")
            .example("x0.where_(&x1, &x2)")
    };
    let whole = |shape: &[usize]| input(shape, Values::Of(DType::I64, -5.0, 5.0));
    vec![
        sample("equal shapes", vec![truths(&[2, 5]), floats(&[2, 5]), floats(&[2, 5])])
            .refuses(vec![floats(&[2]), floats(&[2]), floats(&[2])], "not bool")
            .refuses(vec![truths(&[2]), floats(&[3]), floats(&[3])], "do not broadcast")
            .refuses(vec![truths(&[2]), floats(&[2]), whole(&[2])], "with `cast`"),
        sample("broadcast", vec![truths(&[2, 1]), floats(&[5]), floats(&[2, 5])]),
        sample("whole numbers", vec![truths(&[5]), whole(&[2, 5]), whole(&[])]),
    ]
}
