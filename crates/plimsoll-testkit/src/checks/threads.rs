//! The number of threads is not seen in the bits, nor is the order in which a GPU's blocks run.

use plimsoll_cpu::threads::with_threads;
use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{DType, Device, Tensor};

use super::replay::bits_of;
use crate::case::{Case, for_each_sample};
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome};

/// How many elements the largest input has when threads are to start: more than two tasks of any kernel take.
const MANY_ELEMENTS: usize = 70_000;

/// How often a GPU, which orders its work as it likes, computes the same.
const N_REPEATS: usize = 20;

/// One, two and seven threads give the same bits, forward and backward, on the sample and on a version of it that is
/// large enough for threads to start. A GPU gives the same bits each time.
pub fn thread_counts(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, &[DType::F32], &[], |case| {
        let watched = case.differentiable()?;
        counts_agree(case, &watched)?;
        match case.enlarged(MANY_ELEMENTS) {
            Some(large) => counts_agree(&large, &watched)
                .map_err(|failure: Failure| failure.at(format_args!("enlarged to {:?}", large.shapes()))),
            None => Ok(()),
        }
    })
}

fn counts_agree(case: &Case<'_>, watched: &[usize]) -> Outcome {
    let inputs = case.tensors()?;
    if !Device::current().is_host() {
        return repeats_agree(case, &inputs, watched);
    }
    let with = |n: usize| with_threads(n, || bits_of(&case.differentiate(&inputs, watched)?));
    let one = with(1)?;
    for n in [2, 7] {
        if with(n)? != one {
            return Err(format!("{n} threads give other bits than one").into());
        }
    }
    Ok(())
}

fn repeats_agree(case: &Case<'_>, inputs: &[Tensor], watched: &[usize]) -> Outcome {
    let once = || bits_of(&case.differentiate(inputs, watched)?);
    let first = once()?;
    // The emulated GPU has one order only.
    let n = if Device::current().name() == "emulated" { 2 } else { N_REPEATS };
    for repeat in 1..n {
        if once()? != first {
            return Err(format!("run {repeat} gives other bits than the first").into());
        }
    }
    Ok(())
}
