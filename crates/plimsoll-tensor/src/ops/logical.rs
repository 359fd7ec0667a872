//! Logical ops on truth values. No gradient flows through them, and none is lost.

use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Pointwise, Run, one};
use crate::eager::tensor::Tensor;
use crate::ops::binary::{broadcast, zip};
use crate::ops::cuda::elementwise;
use crate::ops::kernel::computed;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// A logical op on two tensors.
#[derive(Clone, Copy, Debug)]
enum Logical {
    And,
    Or,
    Xor,
}

impl Op for Logical {
    fn name(&self) -> &'static str {
        match self {
            Logical::And => "logical_and",
            Logical::Or => "logical_or",
            Logical::Xor => "logical_xor",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        inputs.iter().try_for_each(|input| check_bool(self.name(), input))?;
        one(broadcast(self.name(), inputs)?, DType::Bool)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [lhs, rhs] = run.inputs else { unreachable!("two operands") };
        let y = &run.outputs[0];
        match self {
            Logical::And => zip(lhs, rhs, y, <bool as std::ops::BitAnd>::bitand),
            Logical::Or => zip(lhs, rhs, y, <bool as std::ops::BitOr>::bitor),
            Logical::Xor => zip(lhs, rhs, y, <bool as std::ops::BitXor>::bitxor),
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let symbol = match self {
            Logical::And => "&&",
            Logical::Or => "||",
            Logical::Xor => "!=",
        };
        Some(Pointwise::new(["y0 = x0 ", symbol, " x1;"]))
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The opposite of each truth value.
#[derive(Debug)]
struct Not;

impl Op for Not {
    fn name(&self) -> &'static str {
        "logical_not"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        check_bool(self.name(), inputs[0])?;
        one(*inputs[0].shape(), DType::Bool)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        // SAFETY: `execute` hands out operands that are valid for their layouts, and the output is fresh.
        unsafe { map::map1(x.shape(), computed(y), computed(x), not_tile) };
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        Some(Pointwise::new(["y0 = !x0;", "", ""]))
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[inline(never)]
fn not_tile(x: &[bool], y: &mut [bool]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = !x;
            }
        },
    );
}

fn check_bool(op: &'static str, input: &Meta) -> Result<()> {
    match input.dtype {
        DType::Bool => Ok(()),
        dtype => Err(Error::dtype(
            op,
            format!("takes truth values, not {dtype}; compare first, as in `x.ne(0.0)`"),
        )),
    }
}

impl Tensor {
    /// Where both hold.
    ///
    /// # Errors
    /// Tensors that are not bool, shapes that do not broadcast; memory that is full.
    #[doc = example!("logical_and")]
    #[doc(alias = "bitwise_and")]
    #[track_caller]
    pub fn logical_and(&self, rhs: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Logical::And), &[self, rhs])
    }

    /// Where at least one holds.
    ///
    /// # Errors
    /// Tensors that are not bool, shapes that do not broadcast; memory that is full.
    #[doc = example!("logical_or")]
    #[doc(alias = "bitwise_or")]
    #[track_caller]
    pub fn logical_or(&self, rhs: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Logical::Or), &[self, rhs])
    }

    /// Where exactly one holds.
    ///
    /// # Errors
    /// Tensors that are not bool, shapes that do not broadcast; memory that is full.
    #[doc = example!("logical_xor")]
    #[doc(alias = "bitwise_xor")]
    #[track_caller]
    pub fn logical_xor(&self, rhs: &Tensor) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Logical::Xor), &[self, rhs])
    }

    /// Where it does not hold.
    ///
    /// # Errors
    /// A tensor that is not bool; memory that is full.
    #[doc = example!("logical_not")]
    #[doc(alias = "bitwise_not")]
    #[track_caller]
    pub fn logical_not(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::fixed(&Not), &[self])
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "logical_and",
        doc: "Where both truth values hold.",
        samples: || samples(["x0 & x1", "x0.logical_and(&x1)"], |a, b| a * b, |x| x[0].logical_and(&x[1])),
    },
    &OpInfo {
        name: "logical_or",
        doc: "Where at least one truth value holds.",
        samples: || samples(["x0 | x1", "x0.logical_or(&x1)"], f64::max, |x| x[0].logical_or(&x[1])),
    },
    &OpInfo {
        name: "logical_xor",
        doc: "Where exactly one truth value holds.",
        samples: || {
            samples(["x0 ^ x1", "x0.logical_xor(&x1)"], |a, b| (a - b).abs(), |x| x[0].logical_xor(&x[1]))
        },
    },
    &OpInfo { name: "logical_not", doc: "Where a truth value does not hold.", samples: not_samples },
];

fn samples(
    [torch, example]: [&str; 2],
    reference: fn(f64, f64) -> f64,
    call: fn(&[Tensor]) -> Result<Tensor>,
) -> Vec<Sample> {
    let truths = |shape: &[usize]| input(shape, Values::Truths);
    let sample = |name: &str, lhs: &[usize], rhs: &[usize]| {
        Sample::new(name, vec![truths(lhs), truths(rhs)], call)
            .reference(move |x| Array::build(&[3, 4], |i| reference(x[0].at(i), x[1].at(i))))
            .torch(torch)
            .example(example)
            .refuses(vec![floats(&[2]), floats(&[2])], "takes truth values")
            .refuses(vec![truths(&[2]), truths(&[3])], "do not broadcast")
    };
    vec![sample("equal shapes", &[3, 4], &[3, 4]), sample("column and row", &[3, 1], &[4])]
}

fn not_samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![input(shape, Values::Truths)], |x| x[0].logical_not())
            .reference(|x| x[0].map(|x| 1.0 - x))
            .torch("~x0")
            .example("x0.logical_not()")
            .refuses(vec![floats(&[2])], "takes truth values")
    };
    vec![sample("vector", &[9]), sample("square", &[3, 4])]
}
