//! A fused op and its definition in plain ops are the same function.

use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, GradientTape, Result, Tensor};

use super::layouts::close;
use crate::case::{Case, Results, for_each_sample};
use crate::needs::{CheckOutcome, Need};
use crate::outcome::{Failure, Outcome};

/// Values and gradients are the same without a tape, under one, and under two, where fused ops become composites.
pub fn fused_equals_composite(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F64, DType::F32], &[Need::Gradient], |case| {
        let watched = case.differentiable()?;
        let inputs = case.tensors()?;
        let plain = case.call(&inputs)?;
        let once = case.differentiate(&inputs, &watched)?;
        let twice = under_two_tapes(case, &inputs, &watched)?;
        for (idx, plain) in plain.iter().enumerate() {
            for (results, tapes) in [(&once, "one tape"), (&twice, "two tapes")] {
                let place = |failure: Failure| failure.at(format_args!("output {idx} under {tapes}"));
                close(case, &results.outputs[idx], plain).map_err(place)?;
            }
        }
        for (idx, (once, twice)) in once.gradients.iter().zip(&twice.gradients).enumerate() {
            let place = |failure: Failure| failure.at(format_args!("gradient of input {}", watched[idx]));
            match (once, twice) {
                (Some(once), Some(twice)) => close(case, twice, once).map_err(place)?,
                (None, None) => {}
                _ => return Err(place("there only under one tape, or only under two".into())),
            }
        }
        Ok(())
    })
}

/// The results of the inner of two tapes that watch the same inputs.
fn under_two_tapes(case: &Case<'_>, inputs: &[Tensor], watched: &[usize]) -> Result<Results> {
    let outer = GradientTape::new();
    for &input in watched {
        outer.watch(&inputs[input])?;
    }
    outer.record(|| case.differentiate(inputs, watched))
}
