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

/// Values to let go, by position.
type Releases = HashMap<u32, SmallVec<[u32; 2]>>;

fn releases(planned: &HashSet<(u32, u32)>) -> Releases {
    let mut releases = Releases::new();
    for &(position, number) in planned {
        releases.entry(position).or_default().push(number);
    }
    // Blocks go back to the pool in an order that does not depend on a hash.
    releases.values_mut().for_each(|numbers| numbers.sort_unstable());
    releases
}

/// Decisions that are being followed.
pub(super) struct Following {
    decisions: Arc<Decisions>,
    /// The values to let go when the op at a position begins.
    before: Releases,
    /// Those to let go when it has ended.
    after: Releases,
    /// Whether every op so far was as planned.
    on_plan: bool,
}

impl Following {
    pub fn new(decisions: Arc<Decisions>) -> Following {
        let (before, after) = (releases(&decisions.released_before), releases(&decisions.released_after));
        Following { decisions, before, after, on_plan: true }
    }

    /// The op at a position begins; returns the values to let go first, and whether the step leaves the plan here.
    pub fn begin(&mut self, position: u32, fingerprint: u64) -> (SmallVec<[u32; 2]>, bool) {
        let was_on_plan = self.on_plan;
        self.on_plan &= self.decisions.fingerprints.get(position as usize) == Some(&fingerprint);
        match self.on_plan {
            true => (self.before.remove(&position).unwrap_or_default(), false),
            false => (SmallVec::new(), was_on_plan),
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

    /// Whether a value that was made again before the op at a position stays for later readers; nothing if the plan has
    /// no say any more.
    pub fn retains(&self, position: u32, number: u32) -> Option<bool> {
        self.on_plan.then(|| self.decisions.retained.contains(&(position, number)))
    }
}
