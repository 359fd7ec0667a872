//! Inputs that an op must refuse.

use plimsoll_tensor::ops::registry::{Array, Input, OpInfo};
use plimsoll_tensor::{DType, Device, Generator, Result, Tensor};

use crate::case::{Case, for_each_sample};
use crate::device::device_under_test;
use crate::draw::{draw_all, dtype_of, tensor};
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome, guarded};

/// Every input that a sample refuses is an error that says what the sample expects and names the op, and says it as on the
/// CPU.
pub fn error_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[Need::Refusals], |case| {
        for (idx, (inputs, part)) in case.sample.refuses.iter().enumerate() {
            let arrays = draw_all(op, &format!("{}/refuses {idx}", case.sample.name), inputs, case.dtype);
            let refused = || -> Result<Vec<Tensor>> {
                Generator::new(7).make_current();
                let outputs = (case.sample.call)(&tensors(&arrays, inputs, case.dtype)?)?;
                // A GPU refuses values when the host waits for it.
                Device::current().synchronize()?;
                Ok(outputs)
            };
            let on_cpu = || {
                let _on = Device::cpu().enter();
                refused().err().map(|error| error.to_string())
            };
            guarded(|| explains(op.name, part, on_cpu(), refused()))
                .map_err(|failure: Failure| failure.at(format_args!("refused inputs {idx}")))?;
        }
        Ok(())
    })
}

fn explains(op: &str, part: &str, on_cpu: Option<String>, result: Result<Vec<Tensor>>) -> Outcome {
    let error = match result {
        Ok(_) => return Err(format!("the call succeeded, but an error with `{part}` was expected").into()),
        Err(error) => error.to_string(),
    };
    if !error.contains(part) {
        return Err(format!("`{part}` was expected in the error `{error}`").into());
    }
    if !error.contains(op) {
        return Err(format!("the error does not name `{op}`: `{error}`").into());
    }
    if on_cpu.as_ref() != Some(&error) {
        return Err(format!("the error is `{error}`, on the CPU {on_cpu:?}").into());
    }
    Ok(())
}

fn tensors(arrays: &[Array], inputs: &[Input], dtype: DType) -> Result<Vec<Tensor>> {
    arrays.iter().zip(inputs).map(|(array, input)| tensor(array, dtype_of(input.values, dtype))).collect()
}

/// An op refuses what its definition in plain ops refuses: with one extent of one input doubled, a fused kernel that
/// took the call would read past the end of the others. Nothing runs, because shapes are checked on ghosts, too.
pub fn mismatched_operands(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[Need::Axes], |case| {
        let watched = case.differentiable()?;
        let ghost = device_under_test().ghost();
        let _there = ghost.enter();
        for input in 0..case.inputs.len() {
            for axis in 0..case.inputs[input].shape.len() {
                let mut arrays = case.inputs.clone();
                let mut shape = arrays[input].shape.clone();
                shape[axis] *= 2;
                arrays[input] = Array::build(&shape, |_| 0.0);
                let other = Case::with(op, case.sample, case.dtype, arrays);
                let inputs = other.tensors()?;
                if other.call(&inputs).is_ok() && !other.is_taken(&inputs, &watched) {
                    let shapes = other.shapes();
                    return Err(format!("it takes {shapes:?}, which its composite refuses").into());
                }
            }
        }
        Ok(())
    })
}
