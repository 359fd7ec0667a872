//! One kernel of what several ops say of themselves.
//!
//! Each op's statements stand in a block of their own, in which its inputs have the names that they expect. What a block makes is
//! rounded to its dtype, as if it had been stored and read again. Numbers are parameters, so one kernel serves all of them.

use std::fmt::Write;

use plimsoll_cuda::Gpu;
use smallvec::SmallVec;

use super::{Fused, FusedInput};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::op::{Operand, Pointwise, Run};
use crate::ops::cuda::c_name;
use crate::ops::cuda::elementwise::Elementwise;

/// What the ops say of themselves, and their attributes together.
pub(super) struct Attributes {
    steps: SmallVec<[Pointwise; 8]>,
    pub numbers: SmallVec<[f64; 8]>,
    pub words: SmallVec<[u64; 4]>,
}

impl Attributes {
    pub fn of(fused: &Fused) -> Attributes {
        let steps: SmallVec<[Pointwise; 8]> =
            fused.steps.iter().filter_map(|step| step.op.pointwise()).collect();
        // The words of the op that draws come first, where the kernel looks for them.
        let drawing = steps.iter().filter(|pointwise| pointwise.draws);
        let others = steps.iter().filter(|pointwise| !pointwise.draws);
        let numbers = steps.iter().flat_map(|step| step.numbers.iter().copied()).collect();
        let words = drawing.chain(others).flat_map(|step| step.words.iter().copied()).collect();
        Attributes { steps, numbers, words }
    }
}

pub(super) fn run(fused: &Fused, run: &Run<'_>, gpu: &Gpu) -> Result<()> {
    let attributes = Attributes::of(fused);
    let inputs: SmallVec<[&Operand<'_>; 4]> = run.inputs.iter().collect();
    let outputs: SmallVec<[&Operand<'_>; 4]> = run.outputs.iter().collect();
    let kernel = Elementwise {
        op: "fused",
        inputs: &inputs,
        outputs: &outputs,
        numbers: &attributes.numbers,
        words: &attributes.words,
        variant: 0,
    };
    kernel.run_fused(gpu, &fused.generated, || body(fused, &attributes, &inputs))
}

/// The statements of all ops.
pub(super) fn body(fused: &Fused, attributes: &Attributes, inputs: &[&Operand<'_>]) -> String {
    let steps = &attributes.steps;
    let mut text = String::new();
    // Writing to a string cannot fail.
    for input in 0..inputs.len() {
        let _ = write!(text, "auto a{input} = x{input}; ");
    }
    let dtype_of = |input: &FusedInput| -> DType {
        match *input {
            FusedInput::Outer(input) => inputs[usize::from(input)].dtype(),
            FusedInput::Step(step) => fused.steps[usize::from(step)].dtype,
        }
    };
    let n_drawing: usize = steps.iter().filter(|step| step.draws).map(|step| step.words.len()).sum();
    let (mut first_number, mut first_word) = (0, n_drawing);
    for (number, (step, pointwise)) in fused.steps.iter().zip(steps).enumerate() {
        let made = c_name(step.dtype);
        let compute = step.inputs.first().map_or(step.dtype, dtype_of);
        let _ = write!(text, "Compute<{made}> s{number}; {{ typedef Compute<{}> C; ", c_name(compute));
        for (idx, input) in step.inputs.iter().enumerate() {
            let _ = match *input {
                FusedInput::Outer(input) => write!(text, "auto x{idx} = a{input}; "),
                FusedInput::Step(step) => write!(text, "auto x{idx} = s{step}; "),
            };
        }
        let words = if pointwise.draws { 0 } else { first_word };
        let statements = pointwise.body.concat();
        let statements = statements.replace("NUMBER(", &format!("NUMBER({first_number} + "));
        let statements = statements.replace("WORD(", &format!("WORD({words} + "));
        let _ = write!(text, "Compute<{made}> y0; {statements} s{number} = widen(narrow<{made}>(y0)); }} ");
        first_number += pointwise.numbers.len();
        first_word += if pointwise.draws { 0 } else { pointwise.words.len() };
    }
    for (output, step) in fused.outputs.iter().enumerate() {
        let _ = write!(text, "y{output} = s{step}; ");
    }
    text
}
