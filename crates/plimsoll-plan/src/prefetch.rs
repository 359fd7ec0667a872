//! When values begin to move back: as early as there is room, and no earlier than the way takes.
//!
//! This comes after everything else is decided, and changes nothing of it: a value that is there a few ops before it is
//! asked for takes room that nobody needs there.

use crate::Trace;

/// A value that is moved back when backward asks for it at a position.
#[derive(Clone, Copy)]
pub(crate) struct Bring {
    pub position: u32,
    pub number: u32,
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
    let Some(depot) = trace.depot.filter(|depot| depot.is_beside) else { return Vec::new() };
    let mut prefetched = Vec::new();
    for &Bring { position, number } in brought {
        let value = &trace.values[number as usize];
        let asked_before =
            value.fetches.iter().rev().find(|&&fetch| fetch < position).map(|&fetch| fetch + 1);
        // It has gone by then.
        let earliest = asked_before.max(value.alone_from).map_or(position, |gone| gone + 1);
        let wanted = value.bytes * 1000 / depot.rate.max(1);
        let (mut from, mut time) = (position, 0);
        let fits = |most: u64| most + value.bytes <= target;
        // Other values that are brought back for the same op would meet it there.
        let here = &expected[position as usize];
        if here.n_chains > 1 && !fits(here.chains) {
            continue;
        }
        while from > earliest && time < wanted && fits(expected[from as usize - 1].most()) {
            from -= 1;
            time += trace.records[from as usize].time;
        }
        if from < position {
            for level in &mut expected[from as usize..position as usize] {
                level.op += value.bytes;
                level.chains += value.bytes;
            }
            expected[position as usize].chains += value.bytes;
            prefetched.push((from, number));
        }
    }
    prefetched.sort_unstable();
    prefetched
}
