//! Comparisons: truth values, element by element. No gradient flows through them, and none is lost.

use std::fmt;

use plimsoll_cpu::element::Number;
use plimsoll_cpu::simd;
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Pointwise, Run, one};
use crate::eager::tensor::Tensor;
use crate::ops::binary::{Rhs, broadcast, run2};
use crate::ops::cuda::elementwise;
use crate::ops::kernel::for_computed_numbers;
use crate::ops::registry::Values;
use crate::ops::registry::{Array, OpInfo, Sample, floats, input};

/// Which comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Relation {
    #[inline(always)]
    fn holds<T: PartialOrd>(self, lhs: T, rhs: T) -> bool {
        match self {
            Relation::Equal => lhs == rhs,
            Relation::NotEqual => lhs != rhs,
            Relation::Less => lhs < rhs,
            Relation::LessEqual => lhs <= rhs,
            Relation::Greater => lhs > rhs,
            Relation::GreaterEqual => lhs >= rhs,
        }
    }

    /// The same in CUDA C.
    fn symbol(self) -> &'static str {
        match self {
            Relation::Equal => "==",
            Relation::NotEqual => "!=",
            Relation::Less => "<",
            Relation::LessEqual => "<=",
            Relation::Greater => ">",
            Relation::GreaterEqual => ">=",
        }
    }
}

/// A comparison of two tensors.
struct Compare(Relation);

impl fmt::Debug for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Op for Compare {
    fn name(&self) -> &'static str {
        match self.0 {
            Relation::Equal => "eq",
            Relation::NotEqual => "ne",
            Relation::Less => "lt",
            Relation::LessEqual => "le",
            Relation::Greater => "gt",
            Relation::GreaterEqual => "ge",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        if inputs[0].dtype == DType::Bool {
            return Err(Error::dtype(self.name(), "takes numbers, not bool; use a logical op"));
        }
        one(broadcast(self.name(), inputs)?, DType::Bool)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [lhs, rhs] = run.inputs else { unreachable!("two operands") };
        for_computed_numbers!(lhs.dtype(), C => {
            run2(lhs, rhs, &run.outputs[0], |lhs: &[C], rhs, y| tile(self.0, lhs, rhs, y));
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = x0 ", self.0.symbol(), " x1;"]))
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[inline(never)]
fn tile<T: Number>(relation: Relation, lhs: &[T], rhs: &[T], y: &mut [bool]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &lhs), &rhs) in y.iter_mut().zip(lhs).zip(rhs) {
                *y = relation.holds(lhs, rhs);
            }
        },
    );
}

#[track_caller]
fn compare(op: &'static Compare, lhs: &Tensor, rhs: &impl Rhs) -> Result<Tensor> {
    let _line = context::at_callers_line();
    rhs.apply(
        |rhs| call(OpRef::fixed(op), &[lhs, rhs]),
        |number| call(OpRef::fixed(op), &[lhs, &Tensor::full_like_scalar(lhs, number)?]),
    )
}

macro_rules! comparisons {
    ($($name:ident, $alias:literal, $relation:ident, $doc:literal, $torch:literal;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            ///
            /// # Errors
            /// Shapes that do not broadcast, different dtypes; memory that is full.
            #[doc = example!(stringify!($name))]
            #[doc(alias = $alias)]
            #[track_caller]
            pub fn $name(&self, rhs: impl Rhs) -> Result<Tensor> {
                compare(&Compare(Relation::$relation), self, &rhs)
            }
        )*}

        /// The registry's entries.
        pub const INFOS: &[&OpInfo] = &[$(&OpInfo {
            name: stringify!($name),
            doc: $doc,
            samples: || samples(Relation::$relation, [$torch, concat!("x0.", stringify!($name), "(&x1)")], |lhs, rhs| lhs.$name(rhs)),
        }),*];
    };
}

comparisons! {
    eq, "equal", Equal, "Where the elements are equal.", "x0 == x1";
    ne, "not_equal", NotEqual, "Where the elements differ.", "x0 != x1";
    lt, "less", Less, "Where the first is less.", "x0 < x1";
    le, "less_equal", LessEqual, "Where the first is not greater.", "x0 <= x1";
    gt, "greater", Greater, "Where the first is greater.", "x0 > x1";
    ge, "greater_equal", GreaterEqual, "Where the first is not less.", "x0 >= x1";
}

fn samples(
    relation: Relation,
    [torch, example]: [&str; 2],
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Vec<Sample> {
    let reference =
        move |x: &[Array]| Array::build(&[2, 6], |idx| f64::from(relation.holds(x[0].at(idx), x[1].at(idx))));
    let whole = |shape: &[usize]| input(shape, Values::Of(DType::I32, 0.0, 3.0));
    vec![
        Sample::new("floats", vec![floats(&[2, 6]), floats(&[2, 6])], move |x| call(&x[0], &x[1]))
            .reference(reference)
            .torch(torch)
            .example(example)
            .refuses(vec![floats(&[2]), floats(&[3])], "do not broadcast"),
        Sample::new("whole numbers", vec![whole(&[2, 6]), whole(&[6])], move |x| call(&x[0], &x[1]))
            .reference(reference)
            .torch(torch),
    ]
}
