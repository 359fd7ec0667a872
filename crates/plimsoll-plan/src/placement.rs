//! From the trace that a pool recorded of one step to an offset plan for the next one.
//!
//! The traced step was placed by best fit, on a ghost or on the device. The plan has an entry for each of its acquisitions
//! in the step region. A block that is not released in the trace outlives the step: it gets no offset, because it would
//! occupy addresses that the following steps need.

use std::collections::HashMap;

use plimsoll_memory::{LongList, OffsetPlan, Planned, Region, TraceEvent};

use crate::offsets::{Lifetime, Offsets, assign};

/// The offsets of a step, and how good they are.
#[derive(Clone, Debug)]
pub struct StepOffsets {
    /// What a pool follows.
    pub plan: OffsetPlan,
    /// The bytes that the plan takes.
    pub bytes: u64,
    /// The most bytes that are alive at one moment: no plan needs less.
    pub lower_bound: u64,
}

/// Plans the offsets of a step from its trace, which ends where the step ends.
pub fn plan_offsets(trace: &LongList<TraceEvent>) -> StepOffsets {
    let mut lifetimes: Vec<Lifetime> = Vec::new();
    let mut alive = HashMap::new();
    for (moment, event) in (0..).zip(trace.iter()) {
        match *event {
            TraceEvent::Acquire { serial, region: Region::Step, bytes, .. } => {
                alive.insert(serial, lifetimes.len());
                lifetimes.push(Lifetime { bytes, allocated: moment, freed: u32::MAX });
            }
            TraceEvent::Release { serial } => {
                if let Some(position) = alive.remove(&serial) {
                    lifetimes[position].freed = moment;
                }
            }
            _ => {}
        }
    }
    let ends = |lifetime: &Lifetime| lifetime.freed != u32::MAX;
    let transient: Vec<Lifetime> = lifetimes.iter().copied().filter(ends).collect();
    let Offsets { offsets, bytes, lower_bound } = assign(&transient);
    let mut offsets = offsets.into_iter();
    let entry = |lifetime: &Lifetime| Planned {
        bytes: lifetime.bytes,
        offset: if ends(lifetime) { offsets.next() } else { None },
    };
    let plan = OffsetPlan::new(lifetimes.iter().map(entry).collect());
    StepOffsets { plan: plan.expect("offsets of blocks that a pool has placed"), bytes, lower_bound }
}
