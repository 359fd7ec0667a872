//! Gradients against finite differences, and of one input alone.

use plimsoll_tensor::op::Gradient;
use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, ErrorKind};

use super::forward::native_and_widened;
use crate::case::{Case, for_each_sample};
use crate::close::{Tolerance, compare, same_bits};
use crate::device::is_emulated;
use crate::gradients::Point;
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome};

/// The first derivative is the one that finite differences show; an op that has none says so.
pub fn first_order(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F64], &[Need::Floats], |case| match case.gradient()? {
        Gradient::Backward | Gradient::Composite => at_sample(case, |point| point.check_first_order()),
        Gradient::Zero => stays_unrecorded(case),
        Gradient::None(_) => refuses_to_be_watched(case),
    })
}

/// The second derivative is the one that finite differences of the first show.
///
/// It is made of plain ops on every device, each of which has tests of its own there: on the emulated GPU there would be
/// other shapes of their kernels to compile, and nothing else to see.
pub fn second_order(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    if is_emulated() {
        return Ok(CheckOutcome::Ignored(
            "it is made of plain ops, which have tests of their own on this device",
        ));
    }
    for_each_sample(op, &[DType::F64], &[Need::SecondDerivative], |case| {
        at_sample(case, |point| point.check_second_order())
    })
}

fn at_sample(case: &Case<'_>, check: impl Fn(&Point<'_>) -> Outcome) -> Outcome {
    let watched = case.watched();
    let function = |inputs: &[_]| case.call(inputs);
    check(&Point { function: &function, inputs: &case.tensors()?, watched: &watched })
}

/// An op with a gradient of zero leaves nothing on a tape.
fn stays_unrecorded(case: &Case<'_>) -> Outcome {
    let results = case.differentiate(&case.tensors()?, &case.floats())?;
    match results.gradients.iter().any(Option::is_some) {
        true => Err("a gradient came back, but the op declares that there is none".into()),
        false => Ok(()),
    }
}

/// An op without a gradient is an error where an input is watched.
fn refuses_to_be_watched(case: &Case<'_>) -> Outcome {
    match case.differentiate(&case.tensors()?, &case.floats()) {
        Err(error) if matches!(error.kind(), ErrorKind::NotDifferentiable { .. }) => Ok(()),
        Err(error) => {
            Err(format!("a watched input must be refused as not differentiable, not by: {error}").into())
        }
        Ok(_) => Err("the op declares no gradient, but takes a watched input".into()),
    }
}

/// The gradient of one input has the same bits whether the others are watched or not.
pub fn unwatched_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[Need::TwoGradients], |case| {
        let watched = case.differentiable()?;
        let inputs = case.tensors()?;
        let all = case.differentiate(&inputs, &watched)?;
        for (idx, &input) in watched.iter().enumerate() {
            let alone = case.differentiate(&inputs, &[input])?;
            let place =
                |failure: Failure| failure.at(format_args!("gradient of input {input}, watched alone"));
            match (&alone.gradients[0], &all.gradients[idx]) {
                (Some(alone), Some(among)) => same_bits(alone, among).map_err(place)?,
                (None, None) => {}
                _ => return Err(place("there only alone, or only among others".into())),
            }
        }
        Ok(())
    })
}

/// The gradients in every float dtype are those in f64 on the same inputs, to the tolerance of the dtype: one that f64 has
/// is there in every other, too. The values of a backward op's, a second derivative by many plain ops that round one after
/// the other, are not compared.
///
/// On the emulated GPU one of the two 16-bit dtypes does: their kernels are the same text.
pub fn narrow_gradients(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    let dtypes: &[DType] =
        if is_emulated() { &[DType::F32, DType::BF16] } else { &[DType::F32, DType::F16, DType::BF16] };
    for_each_sample(op, dtypes, &[Need::Gradient], |case| {
        let (has_values, watched) = (case.gradient()? == Gradient::Backward, case.watched());
        let wide = Case::with(case.op, case.sample, DType::F64, case.inputs.clone());
        let expected = wide.differentiate(&wide.tensors()?, &watched)?;
        let actual = case.differentiate(&case.tensors()?, &watched)?;
        for (idx, (actual, expected)) in actual.gradients.iter().zip(&expected.gradients).enumerate() {
            let place = |failure: Failure| failure.at(format_args!("gradient of input {}", watched[idx]));
            let (actual, expected) = match (actual, expected) {
                (Some(actual), Some(expected)) if has_values => (actual, expected),
                (Some(_), Some(_)) | (None, None) => continue,
                (None, Some(_)) => return Err(place("it is lost, and float64 has it".into())),
                (Some(_), None) => return Err(place("it is there, and float64 has none".into())),
            };
            let (values, wanted) = (actual.to_f64_vec()?, expected.to_f64_vec()?);
            compare(actual.shape(), &values, expected.shape(), &wanted, Tolerance::of(case.dtype))
                .map_err(place)?;
        }
        Ok(())
    })
}
