//! The course of a step: what is decided about its values before it runs.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_plan::Decisions;
use smallvec::SmallVec;

use crate::device::Device;

/// What a step does with the values that backward will read.
#[derive(Clone, Debug, Default)]
pub enum Course {
    /// It keeps them, and the guard steps in where memory is short.
    #[default]
    Free,
    /// It follows decisions, for as long as its ops are those that the decisions were made for.
    Planned(Arc<Decisions>),
    /// It keeps them, on this ghost, and notes what a planner needs to know.
    Observed(Device),
}

/// Decisions that are being followed.
pub(super) struct Following {
    decisions: Arc<Decisions>,
    /// The values to let go when the op at a position begins.
    released: HashMap<u32, SmallVec<[u32; 2]>>,
    /// Whether every op so far was as planned.
    on_plan: bool,
}

impl Following {
    pub fn new(decisions: Arc<Decisions>) -> Following {
        let mut released: HashMap<u32, SmallVec<[u32; 2]>> = HashMap::new();
        // A value that is asked for before an op is read by it, and may go when the next one begins.
        for &(position, number) in &decisions.released {
            released.entry(position + 1).or_default().push(number);
        }
        released.values_mut().for_each(|numbers| numbers.sort_unstable());
        Following { decisions, released, on_plan: true }
    }

    /// The op at a position begins; returns the values to let go first, and whether the step leaves the plan here.
    pub fn begin(&mut self, position: u32, fingerprint: u64) -> (SmallVec<[u32; 2]>, bool) {
        let was_on_plan = self.on_plan;
        self.on_plan &= self.decisions.fingerprints.get(position as usize) == Some(&fingerprint);
        match self.on_plan {
            true => (self.released.remove(&position).unwrap_or_default(), false),
            false => (SmallVec::new(), was_on_plan),
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
