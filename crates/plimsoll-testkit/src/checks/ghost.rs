//! The ghost asks its pool for what the real device asks for, and both give everything back.

use plimsoll_memory::TraceEvent;
use plimsoll_tensor::ops::registry::OpInfo;
use plimsoll_tensor::{Device, Result};

use super::forward::native_and_widened;
use crate::case::{Case, for_each_sample, nothing_left};
use crate::device::device_under_test;
use crate::needs::CheckOutcome;
use crate::outcome::{Failure, Outcome};

/// How many elements the largest input has for kernels that need scratch memory only when there is much to do.
const MANY_ELEMENTS: usize = 20_000;

/// Forward and backward leave the same trace on a ghost and on a real device: sizes, order, labels and offsets.
/// Afterwards no block is left in either pool.
pub fn ghost_trace(op: &'static OpInfo) -> Outcome<CheckOutcome> {
    for_each_sample(op, native_and_widened(), &[], |case| {
        let watched = case.differentiable()?;
        same_trace(case, &watched, &device_under_test())?;
        match case.enlarged(MANY_ELEMENTS) {
            Some(large) => same_trace(&large, &watched, &device_under_test())
                .map_err(|failure: Failure| failure.at(format_args!("enlarged to {:?}", large.shapes()))),
            None => Ok(()),
        }
    })
}

/// The same of one case, on an idle device and its ghost.
pub(super) fn same_trace(case: &Case<'_>, watched: &[usize], real: &Device) -> Outcome {
    let ghost = real.ghost();
    let expected = traced(case, real, watched)?;
    let actual = traced(case, &ghost, watched)?;
    compare(&actual, &expected)?;
    nothing_left(real)?;
    nothing_left(&ghost)
}

/// What a whole life of the case asks the device's pool for, inputs included.
fn traced(case: &Case<'_>, device: &Device, watched: &[usize]) -> Result<Vec<TraceEvent>> {
    let _there = device.enter();
    device.pool().start_trace();
    let results = case.tensors().and_then(|inputs| case.differentiate(&inputs, watched));
    let done = results.map(drop);
    let trace = device.pool().take_trace().into_iter().filter(TraceEvent::is_request).collect();
    done.map(|()| trace)
}

fn compare(actual: &[TraceEvent], expected: &[TraceEvent]) -> Outcome {
    let n_events = actual.len().max(expected.len());
    let Some(first) = (0..n_events).find(|&at| actual.get(at) != expected.get(at)) else { return Ok(()) };
    let show = |event: Option<&TraceEvent>| event.map_or("nothing".to_owned(), |event| format!("{event:?}"));
    Err(format!(
        "event {first} of the ghost's trace is {}, but that of the real run is {}",
        show(actual.get(first)),
        show(expected.get(first))
    )
    .into())
}
