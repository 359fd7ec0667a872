//! Memory that runs out at the worst moment.

use plimsoll_memory::testing::Fail;
use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, Device, Generator, Result, Step, Tensor};

use super::replay::bits_of;
use crate::case::{Case, Results, for_each_sample};
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome, guarded};

/// Each single acquisition of forward and backward failing in turn is an out-of-memory error, leaves nothing behind, and
/// the same call then gives the same bits.
pub fn failed_acquisitions(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[], |case| {
        let device = Device::current();
        let (inputs, watched) = (case.tensors()?, case.differentiable()?);
        each_in_turn(case, &device, &inputs, &watched)
    })
}

fn each_in_turn(case: &Case<'_>, device: &Device, inputs: &[Tensor], watched: &[usize]) -> Outcome {
    let before = device.stats();
    let expected = bits_of(&step(case, device, inputs, watched)?)?;
    let n_acquisitions = acquisitions(case, device, inputs, watched)?;
    if n_acquisitions == 0 {
        return Err("the call and its backward ask for no memory, so that nothing can fail".into());
    }
    for k in 1..=n_acquisitions {
        let place = |failure: Failure| failure.at(format_args!("acquisition {k} of {n_acquisitions} fails"));
        let generator = Generator::new(k);
        generator.make_current();
        device.pool().fail_acquisition(k);
        let failed = guarded(|| Ok(step(case, device, inputs, watched).map(drop)));
        device.pool().fail_acquisitions(Fail::Never);
        match failed.map_err(place)? {
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(place(format!("another error than out of memory: {error}").into())),
            Ok(()) => return Err(place("the call succeeded".into())),
        }
        if Generator::current() != generator {
            return Err(place("the step failed, but the generator is not as before".into()));
        }
        let live = device.stats().n_live;
        if live != before.n_live {
            return Err(place(format!("{live} blocks are live, before it were {}", before.n_live).into()));
        }
        device.pool().verify().map_err(|error| place(error.into()))?;
        if bits_of(&step(case, device, inputs, watched)?)? != expected {
            return Err(place("the same call then gives other bits".into()));
        }
    }
    Ok(())
}

/// How often a step asks for memory.
fn acquisitions(case: &Case<'_>, device: &Device, inputs: &[Tensor], watched: &[usize]) -> Result<u64> {
    let before = device.stats().n_acquired;
    step(case, device, inputs, watched)?;
    Ok(device.stats().n_acquired - before)
}

fn step(case: &Case<'_>, device: &Device, inputs: &[Tensor], watched: &[usize]) -> Result<Results> {
    Step::run(device, || case.differentiate(inputs, watched))
}
