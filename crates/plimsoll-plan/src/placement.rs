//! What a pool recorded of one step, as a plan for the next one.
//!
//! The trace is that of a step which the pool placed by best fit, on ghosts or in earnest. The plan has an entry
//! for each of its acquisitions in the step region. A block that is not released in the trace outlives the step:
//! it gets no offset, because it would be in the way of the steps that follow.

use std::collections::HashMap;

use plimsoll_memory::{LongList, OffsetPlan, Planned, Region, TraceEvent};

use crate::offsets::{Life, Offsets, assign};

/// The offsets of a step, and how good they are.
#[derive(Clone, Debug)]
pub struct StepOffsets {
    /// What a pool follows.
    pub plan: OffsetPlan,
    /// The bytes that the plan needs.
    pub bytes: u64,
    /// The most bytes that are alive at one moment: no plan needs less.
    pub lower_bound: u64,
}

/// Plans the offsets of a step from its trace, which ends where the step ends.
pub fn plan_offsets(trace: &LongList<TraceEvent>) -> StepOffsets {
    let mut lives: Vec<Life> = Vec::new();
    let mut alive = HashMap::new();
    for (moment, event) in (0..).zip(trace.iter()) {
        match *event {
            TraceEvent::Acquire { serial, region: Region::Step, bytes, .. } => {
                alive.insert(serial, lives.len());
                lives.push(Life { bytes, born: moment, dies: u32::MAX });
            }
            TraceEvent::Release { serial } => {
                if let Some(position) = alive.remove(&serial) {
                    lives[position].dies = moment;
                }
            }
            _ => {}
        }
    }
    let ends = |life: &Life| life.dies != u32::MAX;
    let passing: Vec<Life> = lives.iter().copied().filter(ends).collect();
    let Offsets { offsets, bytes, lower_bound } = assign(&passing);
    let mut offsets = offsets.into_iter();
    let entry =
        |life: &Life| Planned { bytes: life.bytes, offset: if ends(life) { offsets.next() } else { None } };
    let plan = OffsetPlan::new(lives.iter().map(entry).collect());
    StepOffsets { plan: plan.expect("offsets of blocks that a pool has placed"), bytes, lower_bound }
}
