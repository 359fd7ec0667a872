//! The number of threads is not seen in the bits.

use plimsoll_cpu::threads::with_threads;
use plimsoll_tensor::ops::registry::{Input, OpInfo};

use super::forward::NATIVE_AND_WIDENED;
use super::replay::bits_of;
use crate::case::{Case, draw_all, for_each_sample};
use crate::outcome::{Failure, Outcome};

/// How many elements the largest input has when threads are to start: a few times what one task takes.
const MANY_ELEMENTS: usize = 100_000;

/// One, two and seven threads give the same bits, forward and backward, on the sample and on a version of it that is
/// large enough for threads to start.
pub fn thread_counts(op: &'static OpInfo) -> Outcome {
    for_each_sample(op, &NATIVE_AND_WIDENED, |case| {
        let watched = case.differentiable()?;
        counts_agree(case, &watched)?;
        match enlarged(case) {
            Some(large) => counts_agree(&large, &watched)
                .map_err(|failure: Failure| failure.at(format_args!("enlarged to {:?}", shapes(&large)))),
            None => Ok(()),
        }
    })
}

fn counts_agree(case: &Case<'_>, watched: &[usize]) -> Outcome {
    let inputs = case.tensors()?;
    let with = |n: usize| with_threads(n, || bits_of(&case.differentiate(&inputs, watched)?));
    let one = with(1)?;
    for n in [2, 7] {
        if with(n)? != one {
            return Err(format!("{n} threads give other bits than one").into());
        }
    }
    Ok(())
}

/// The sample with more rows, or longer ones, if its call takes them.
fn enlarged<'a>(case: &Case<'a>) -> Option<Case<'a>> {
    let inputs = &case.sample.inputs;
    let rank = inputs.iter().map(|input| input.shape.len()).max()?;
    let largest = inputs.iter().map(|input| input.shape.iter().product::<usize>()).max()?.max(1);
    let factor = MANY_ELEMENTS.div_ceil(largest);
    let grown = |axis: &dyn Fn(usize, &Input) -> Option<usize>| {
        let mut inputs = inputs.clone();
        for (idx, input) in inputs.iter_mut().enumerate() {
            if let Some(at) = axis(idx, input).filter(|&at| at < input.shape.len() && input.shape[at] > 1) {
                input.shape[at] *= factor;
            }
        }
        inputs
    };
    let candidates = [
        grown(&|_, input| (input.shape.len() == rank).then_some(0)),
        grown(&|idx, _| (idx == 0).then_some(0)),
        grown(&|_, input| input.shape.len().checked_sub(1)),
    ];
    candidates.into_iter().find_map(|inputs| {
        let arrays = draw_all(case.op, &case.sample.name, &inputs, case.dtype);
        let large = Case::with(case.op, case.sample, case.dtype, arrays);
        let taken = large.tensors().is_ok_and(|inputs| large.call(&inputs).is_ok());
        (shapes(&large) != shapes(case) && taken).then_some(large)
    })
}

fn shapes<'c>(case: &'c Case<'_>) -> Vec<&'c [usize]> {
    case.inputs.iter().map(|input| input.shape.as_slice()).collect()
}
