//! The ops that give variables new values. They write variables and are run by updates alone, so they are not in the
//! registry.

use plimsoll_cuda::Gpu;

use crate::base::error::Result;
use crate::device::fault;
use crate::eager::op::{Gradient, Meta, Op, Outputs, Run, one};
use crate::ops::copy;
use crate::ops::cuda::elementwise::Elementwise;

/// Gives a variable a new value: the second input, whatever the first is.
#[derive(Debug)]
pub(crate) struct Assign;

impl Op for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[1].shape(), inputs[1].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        copy::copy(&run.inputs[1], &run.outputs[0]);
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let assign = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[1]],
            outputs: &[&run.outputs[0]],
            numbers: &[],
            words: &[],
            variant: 0,
        };
        assign.run(gpu, || "y0 = x0;".to_owned())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("assigning is not a function")
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }
}

/// Gives a variable a new value, the second input, if the third is finite and no kernel of the step has refused a value;
/// else it keeps the first.
#[derive(Debug)]
pub(crate) struct AssignIfFinite;

impl Op for AssignIfFinite {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn never_refuses(&self) -> bool {
        true
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[1].shape(), inputs[1].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        // SAFETY: the loss is one f64, as `Step::commit_if_finite` has seen, which nobody writes now.
        let finite_loss = unsafe { *run.inputs[2].ptr().cast::<f64>() };
        let value = &run.inputs[usize::from(finite_loss.is_finite())];
        if value.ptr() != run.outputs[0].ptr() {
            copy::copy(value, &run.outputs[0]);
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let assign = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &run.inputs[1], &run.inputs[2]],
            outputs: &[&run.outputs[0]],
            numbers: &[],
            words: &[fault::cell(run.device) as u64],
            variant: 1,
        };
        assign.run(gpu, || "y0 = m::is_finite(x2) && !is_noted((const Note*)WORD(0)) ? x1 : x0;".to_owned())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("assigning is not a function")
    }
}
