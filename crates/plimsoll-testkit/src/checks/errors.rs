//! Inputs that an op must refuse.

use plimsoll_tensor::DType;
use plimsoll_tensor::ops::registry::{Array, Input, OpInfo};
use plimsoll_tensor::{Generator, Result, Tensor};

use crate::case::for_each_sample;
use crate::draw::{draw_all, dtype_of, tensor};
use crate::outcome::{Failure, Outcome, guarded};

/// Every input that a sample refuses is an error that says what the sample expects and names the op.
pub fn error_inputs(op: &'static OpInfo) -> Outcome {
    for_each_sample(op, &[DType::F32], |case| {
        for (idx, (inputs, part)) in case.sample.refuses.iter().enumerate() {
            let arrays = draw_all(op, &format!("{}/refuses {idx}", case.sample.name), inputs, case.dtype);
            let refused = || {
                Generator::new(7).make_current();
                (case.sample.call)(&tensors(&arrays, inputs, case.dtype)?)
            };
            guarded(|| explains(op.name, part, refused()))
                .map_err(|failure: Failure| failure.at(format_args!("refused inputs {idx}")))?;
        }
        Ok(())
    })
}

fn explains(op: &str, part: &str, result: Result<Vec<Tensor>>) -> Outcome {
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
    Ok(())
}

fn tensors(arrays: &[Array], inputs: &[Input], dtype: DType) -> Result<Vec<Tensor>> {
    arrays.iter().zip(inputs).map(|(array, input)| tensor(array, dtype_of(input.values, dtype))).collect()
}
