//! The course of a step: what is decided about its values before it runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plimsoll_memory::OffsetPlan;
use plimsoll_plan::Decisions;
use smallvec::SmallVec;

/// What is decided about a step before it runs.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// What becomes of the values that backward will read. Without decisions they are kept, and the guard steps in where
    /// memory is short; with decisions these are followed for as long as the step's ops are those that they were made for.
    pub decisions: Option<Arc<Decisions>>,
    /// Where its blocks lie, followed for as long as they are asked for as planned.
    pub offsets: Option<OffsetPlan>,
}

/// Values by position.
type Places = HashMap<u32, SmallVec<[u32; 2]>>;

fn places<'a>(planned: impl IntoIterator<Item = &'a (u32, u32)>) -> Places {
    let mut places = Places::new();
    for &(position, number) in planned {
        places.entry(position).or_default().push(number);
    }
    places
}

/// Values by position, in an order that does not depend on a hash: blocks go back to the pool in it.
fn ordered_places(planned: &HashSet<(u32, u32)>) -> Places {
    let mut places = places(planned);
    places.values_mut().for_each(|numbers| numbers.sort_unstable());
    places
}

/// What a plan says at the beginning of an op.
#[derive(Default)]
pub(super) struct Due {
    /// The values to let go.
    pub released: SmallVec<[u32; 2]>,
    /// The values to bring back.
    pub prefetched: SmallVec<[u32; 2]>,
    /// Whether the step leaves the plan here.
    pub leaves_plan: bool,
}

/// Decisions that are being followed.
pub(super) struct Following {
    decisions: Arc<Decisions>,
    /// The values to let go when the op at a position begins.
    before: Places,
    /// Those to let go when it has ended.
    after: Places,
    /// Those that begin to come back when it begins.
    prefetched: Places,
    /// Whether every op so far was as planned.
    on_plan: bool,
}

impl Following {
    pub fn new(decisions: Arc<Decisions>) -> Following {
        let before = ordered_places(&decisions.released_before);
        let after = ordered_places(&decisions.released_after);
        let prefetched = places(&decisions.prefetched);
        Following { decisions, before, after, prefetched, on_plan: true }
    }

    /// The op at a position begins; returns what is to be done first.
    pub fn begin(&mut self, position: u32, fingerprint: u64) -> Due {
        let was_on_plan = self.on_plan;
        self.on_plan &= self.decisions.fingerprints.get(position as usize) == Some(&fingerprint);
        match self.on_plan {
            true => Due {
                released: self.before.remove(&position).unwrap_or_default(),
                prefetched: self.prefetched.remove(&position).unwrap_or_default(),
                leaves_plan: false,
            },
            false => Due { leaves_plan: was_on_plan, ..Due::default() },
        }
    }

    /// The op at a position has ended; returns the values to let go now.
    pub fn end(&mut self, position: u32) -> SmallVec<[u32; 2]> {
        match self.on_plan {
            true => self.after.remove(&position).unwrap_or_default(),
            false => SmallVec::new(),
        }
    }

    /// Whether forward lets a value go.
    pub fn drops(&self, number: u32) -> bool {
        self.on_plan && self.decisions.dropped.get(number as usize).is_some_and(|&dropped| dropped)
    }

    /// Whether a value is moved when it goes.
    pub fn moves(&self, number: u32) -> bool {
        self.on_plan && self.decisions.offloaded.get(number as usize).is_some_and(|&offloaded| offloaded)
    }

    /// Whether a value that came back before the op at a position stays for later readers; nothing if the plan has
    /// no say any more.
    pub fn retains(&self, position: u32, number: u32) -> Option<bool> {
        self.on_plan.then(|| self.decisions.retained.contains(&(position, number)))
    }
}
