//! A device that is not deterministic: backward may make sums in any order, and nothing else changes.

use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, Device};

use super::ghost::same_trace;
use crate::case::{Case, FLOATS, for_each_sample};
use crate::close::{Tolerance, compare, same_bits};
use crate::device::{device_under_test, is_emulated};
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome};

/// Where sums may have any order, forward has the same bits as ever, gradients are those of sums in one order to the
/// tolerance of their dtype, and a ghost leaves the trace of the real device. Everything has one order on the CPU, where the
/// setting must change nothing.
pub fn any_order(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    // Compiling is what takes long where there is no GPU: the kernels of these are compiled for other checks, too.
    let dtypes = if is_emulated() { &[DType::F32, DType::BF16] } else { &FLOATS[..] };
    for_each_sample(op, dtypes, &[], in_any_order)
}

fn in_any_order(case: &Case<'_>) -> Outcome {
    let (device, inputs, watched) = (Device::current(), case.tensors()?, case.differentiable()?);
    let ordered = case.differentiate(&inputs, &watched)?;
    device.set_deterministic(false);
    let results = case.differentiate(&inputs, &watched)?;
    for (output, expected) in results.outputs.iter().zip(&ordered.outputs) {
        same_bits(output, expected)?;
    }
    let gradients = results.gradients.iter().zip(&ordered.gradients).zip(&watched);
    for ((gradient, expected), input) in gradients {
        let place = |failure: Failure| failure.at(format_args!("the gradient of input {input}"));
        let (gradient, expected) = match (gradient, expected) {
            (Some(gradient), Some(expected)) => (gradient, expected),
            (None, None) => continue,
            _ => return Err(place("there only in one order, or only in any".into())),
        };
        let (values, tolerance) = (expected.to_f64_vec()?, Tolerance::of(expected.dtype()));
        compare(gradient.shape(), &gradient.to_f64_vec()?, expected.shape(), &values, tolerance)
            .map_err(place)?;
    }
    let idle = device_under_test();
    idle.set_deterministic(false);
    same_trace(case, &watched, &idle)
}
