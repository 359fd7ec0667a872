//! When values begin to move back: early enough to be there when they are asked for, as far as there is room.
//!
//! This comes after everything else is decided, and changes nothing of it: a value that is there a few ops before it is
//! asked for takes room that nobody needs there. The way back carries one value at a time, so a value begins early enough
//! to leave the way to the next one in time.

use crate::Trace;
use crate::clock::journey;

/// A value that is moved back when backward asks for it at a position.
#[derive(Clone, Copy)]
pub(crate) struct Bring {
    pub position: u32,
    pub number: u32,
    /// The first position before which it is away.
    pub away_from: u32,
}

/// The most bytes in use at a position.
#[derive(Clone, Copy, Default)]
pub(crate) struct Level {
    /// While its op runs.
    pub op: u64,
    /// While values are brought back before it, and how often that happens.
    chains: u64,
    n_chains: u32,
}

impl Level {
    /// So many bytes are in use while values are brought back.
    pub fn note_chain(&mut self, peak: u64) {
        self.chains = self.chains.max(peak);
        self.n_chains += 1;
    }

    /// The most bytes in use.
    pub fn most(&self) -> u64 {
        self.op.max(self.chains)
    }
}

/// The values (position, number) that begin to move back at an earlier position than that at which they are asked for.
pub(crate) fn prefetched(
    trace: &Trace,
    brought: &[Bring],
    mut expected: Vec<Level>,
    target: u64,
) -> Vec<(u32, u32)> {
    if !trace.depot.is_some_and(|depot| depot.is_beside) {
        return Vec::new();
    }
    let mut prefetched = Vec::new();
    // The time from the present value's position to where the way back is taken by one that is asked for later; signed,
    // because that may lie before it.
    let (mut taken_from, mut later) = (i64::MAX, u32::MAX);
    let time_between = |from: u32, to: u32| -> i64 {
        trace.records[from as usize..to as usize].iter().map(|record| record.time as i64).sum()
    };
    for &Bring { position, number, away_from } in brought.iter().rev() {
        if later != u32::MAX {
            taken_from = taken_from.saturating_add(time_between(position, later));
        }
        later = position;
        let bytes = trace.values[number as usize].bytes;
        let lead = journey(trace, number) as i64 - taken_from.min(0);
        let fits = |most: u64| most + bytes <= target;
        let (mut from, mut time) = (position, 0);
        // Other values that are brought back for the same op would meet it there.
        let here = &expected[position as usize];
        if here.n_chains <= 1 || fits(here.chains) {
            while from > away_from && time < lead && fits(expected[from as usize - 1].most()) {
                from -= 1;
                time += trace.records[from as usize].time as i64;
            }
        }
        taken_from = -time;
        if from < position {
            for level in &mut expected[from as usize..position as usize] {
                level.op += bytes;
                level.chains += bytes;
            }
            expected[position as usize].chains += bytes;
            prefetched.push((from, number));
        }
    }
    // Of those that begin together, the one that is asked for first goes first.
    prefetched.reverse();
    prefetched.sort_by_key(|&(from, _)| from);
    prefetched
}
