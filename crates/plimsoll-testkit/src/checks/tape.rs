//! What a tape may do with an op's values, and what it must leave alone.

use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, GradientTape, Owner, Result, Saving, Tensor, Unconnected, with_saving};

use super::forward::native_and_widened;
use super::layouts::close;
use super::replay::bits_of;
use crate::case::{Case, Results, for_each_sample};
use crate::close::bits;
use crate::draw::weights;
use crate::needs::{CheckOutcome, Need};
use crate::outcome::Outcome;

/// A persistent tape gives the same gradients as often as it is asked, and backward writes over nothing that the user
/// holds: inputs and outputs are as they were.
pub fn persistent_tape(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[Need::Gradient], |case| {
        let (inputs, watched) = (case.tensors()?, case.differentiable()?);
        let held = inputs.iter().map(bits).collect::<Outcome<Vec<_>>>()?;
        let once = bits_of(&case.differentiate(&inputs, &watched)?)?;
        let tape = GradientTape::new().persistent(true);
        let sources: Vec<&Tensor> = watched.iter().map(|&input| &inputs[input]).collect();
        sources.iter().try_for_each(|source| tape.watch(source))?;
        let outputs = tape.record(|| case.call(&inputs))?;
        for time in ["first", "second"] {
            let gradients = weighted(&tape, &outputs, &sources)?;
            if bits_of(&Results { outputs: outputs.clone(), gradients })? != once {
                return Err(format!("outputs or gradients have other bits the {time} time").into());
            }
        }
        match inputs.iter().map(bits).collect::<Outcome<Vec<_>>>()? == held {
            true => Ok(()),
            false => Err("an input has other bits after backward".into()),
        }
    })
}

fn weighted(tape: &GradientTape, outputs: &[Tensor], sources: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let targets: Vec<&Tensor> = outputs.iter().filter(|output| output.dtype().is_float()).collect();
    let weights: Vec<Tensor> = targets.iter().map(|target| weights(target)).collect::<Result<_>>()?;
    tape.gradients(&targets, Some(&weights.iter().collect::<Vec<_>>()), sources, Unconnected::None)
}

/// Enough elements of any float dtype for a tape to find them worth rebuilding.
pub(crate) const WORTH_REBUILDING: usize = 2_100;

/// Inputs that cheap ops made are rebuilt for backward instead of kept; that changes no bit and takes no more bytes.
pub fn derived_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[Need::Gradient, Need::Larger], |case| {
        let watched = case.differentiable()?;
        let case = case.enlarged(WORTH_REBUILDING).ok_or("the call takes no more elements in this dtype")?;
        // A value is rebuilt from what stays anyway, such as parameters.
        let inputs: Vec<Tensor> =
            case.tensors()?.into_iter().map(|input| input.owned_by(Owner::Parameters)).collect();
        let with = |saving: Saving| with_saving(saving, || behind_cheap_ops(&case, &inputs, &watched));
        let ((lean, lean_bytes), (fast, fast_bytes)) = (with(Saving::Lean)?, with(Saving::Fast)?);
        if lean_bytes > fast_bytes {
            return Err(format!("the tape keeps {lean_bytes} B lean, and {fast_bytes} B fast").into());
        }
        match lean == fast {
            true => Ok(()),
            false => Err("outputs or gradients have other bits when inputs are rebuilt for backward".into()),
        }
    })
}

/// The bits of all results, with every watched input passed through a cheap op that does not change it, and what the
/// tape saved for backward when nobody but it held the values between.
fn behind_cheap_ops(
    case: &Case<'_>,
    inputs: &[Tensor],
    watched: &[usize],
) -> Outcome<(Vec<Vec<u64>>, usize)> {
    let tape = GradientTape::new();
    let sources: Vec<&Tensor> = watched.iter().map(|&input| &inputs[input]).collect();
    sources.iter().try_for_each(|source| tape.watch(source))?;
    let outputs = tape.record(|| {
        let mut passed = inputs.to_vec();
        for &input in watched {
            passed[input] = inputs[input].affine(1.0, 0.0)?;
        }
        case.call(&passed)
    })?;
    let bytes = tape.saved().bytes();
    let gradients = weighted(&tape, &outputs, &sources)?;
    Ok((bits_of(&Results { outputs, gradients })?, bytes))
}

/// One tensor in two places has the sum of both gradients.
pub fn shared_inputs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F64], &[Need::TwoAlike], |case| {
        let [first, second] = case.two_alike()?.ok_or("the sample has no two inputs that are alike")?;
        let mut inputs = case.tensors()?;
        inputs[second] = inputs[first].copied()?;
        let apart = case.differentiate(&inputs, &[first, second])?;
        inputs[second] = inputs[first].clone();
        let shared = case.differentiate(&inputs, &[first])?;
        match (&apart.gradients[0], &apart.gradients[1], &shared.gradients[0]) {
            (Some(lhs), Some(rhs), Some(sum)) => close(case, sum, &lhs.add(rhs)?),
            (None, None, None) => Ok(()),
            _ => {
                Err("a gradient is there only when the inputs are shared, or only when they are apart".into())
            }
        }
    })
}
