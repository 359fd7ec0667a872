//! When reloads begin: early enough that values are back when backward fetches them, as far as there is room.
//!
//! This comes after everything else is decided and changes none of it: a value that is back a few ops before it is fetched
//! takes memory that nothing else needs there. The link carries one value at a time, so a reload begins early enough to
//! leave the link to the next one in time.

use crate::Trace;
use crate::clock::transfer_time;

/// A value that is reloaded when backward fetches it at a position.
#[derive(Clone, Copy)]
pub(crate) struct Reload {
    pub position: u32,
    pub number: u32,
    /// The first position before which it is evicted.
    pub evicted_from: u32,
}

/// The most bytes in use at a position.
#[derive(Clone, Copy, Default)]
pub(crate) struct Level {
    /// While its op runs.
    pub op: u64,
    /// While values are restored before it, and how often that happens.
    chains: u64,
    n_chains: u32,
}

impl Level {
    /// So many bytes are in use while values are restored.
    pub fn note_chain(&mut self, peak: u64) {
        self.chains = self.chains.max(peak);
        self.n_chains += 1;
    }

    /// The most bytes in use.
    pub fn most(&self) -> u64 {
        self.op.max(self.chains)
    }
}

/// The values (position, number) whose reload begins at an earlier position than that of the fetch.
pub(crate) fn prefetched(
    trace: &Trace,
    reloads: &[Reload],
    mut expected: Vec<Level>,
    target: u64,
) -> Vec<(u32, u32)> {
    if !trace.offload_store.is_some_and(|store| store.overlaps) {
        return Vec::new();
    }
    let mut prefetched = Vec::new();
    // The time from the present value's position to where the link is busy with a reload that is needed later; signed,
    // because that may lie before it.
    let (mut busy_from, mut later) = (i64::MAX, u32::MAX);
    let time_between = |from: u32, to: u32| -> i64 {
        trace.records[from as usize..to as usize].iter().map(|record| record.time as i64).sum()
    };
    for &Reload { position, number, evicted_from } in reloads.iter().rev() {
        if later != u32::MAX {
            busy_from = busy_from.saturating_add(time_between(position, later));
        }
        later = position;
        let bytes = trace.values[number as usize].bytes;
        let lead = transfer_time(trace, number) as i64 - busy_from.min(0);
        let fits = |most: u64| most + bytes <= target;
        let (mut from, mut time) = (position, 0);
        // Other values that are restored for the same op would coexist with it there.
        let here = &expected[position as usize];
        if here.n_chains <= 1 || fits(here.chains) {
            while from > evicted_from && time < lead && fits(expected[from as usize - 1].most()) {
                from -= 1;
                time += trace.records[from as usize].time as i64;
            }
        }
        busy_from = -time;
        if from < position {
            for level in &mut expected[from as usize..position as usize] {
                level.op += bytes;
                level.chains += bytes;
            }
            expected[position as usize].chains += bytes;
            prefetched.push((from, number));
        }
    }
    // Of reloads that begin together, the one that is needed first goes first.
    prefetched.reverse();
    prefetched.sort_by_key(|&(from, _)| from);
    prefetched
}
