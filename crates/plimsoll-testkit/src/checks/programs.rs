//! Programs give eager's bits, with passes and without.

use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{Function, Generator, GradientTape, Result, Tensor, Unconnected};

use super::forward::native_and_widened;
use crate::case::{Case, for_each_sample};
use crate::close::bits;
use crate::needs::CheckOutcome;
use crate::outcome::Outcome;

/// A call with its backward, made twice so that there are equal calls, gives the same bits eagerly, from its program, and from
/// its program after all passes.
pub fn programs(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[], |case| {
        let (inputs, watched) = (case.tensors()?, case.differentiable()?);
        let eager = from_one_draw(|| twice(case, &watched, &inputs))?;
        for passes in [false, true] {
            let function = Function::new(|inputs: Vec<Tensor>| twice(case, &watched, &inputs)).passes(passes);
            // The second call runs from the program of the first.
            for _ in 0..2 {
                if from_one_draw(|| function.call(inputs.clone()))? != eager {
                    return Err(format!("its program gives other bits (passes: {passes})").into());
                }
            }
            if let Some(reason) = function.eager_reason() {
                return Err(format!("its program was given up: {reason}").into());
            }
        }
        Ok(())
    })
}

/// The results of two calls and of their backward; the generator goes on from one to the other, as in a user's function.
fn twice(case: &Case<'_>, watched: &[usize], inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for _ in 0..2 {
        let tape = GradientTape::new();
        let sources: Vec<&Tensor> = watched.iter().map(|&idx| &inputs[idx]).collect();
        sources.iter().try_for_each(|source| tape.watch(source))?;
        let outputs = tape.record(|| (case.sample.call)(inputs))?;
        let targets: Vec<&Tensor> = outputs.iter().filter(|output| output.dtype().is_float()).collect();
        let gradients = tape.gradients(&targets, None, &sources, Unconnected::None)?;
        all.extend(outputs);
        all.extend(gradients.into_iter().flatten());
    }
    Ok(all)
}

/// The bits of what `f` gives, with the generator always at the same draw.
fn from_one_draw(f: impl FnOnce() -> Result<Vec<Tensor>>) -> Outcome<Vec<Vec<u64>>> {
    Generator::new(17).make_current();
    f()?.iter().map(bits).collect()
}
