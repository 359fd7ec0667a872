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

/// The values (position, number) that begin to move back at an earlier position than that at which they are asked for.
/// `expected` are the most bytes in use at each position, while its op runs and while chains are repeated before it.
pub(crate) fn prefetched(
    trace: &Trace,
    brought: &[Bring],
    mut expected: Vec<(u64, u64)>,
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
        // Chains that are repeated for the same op would meet it, too.
        if !fits(expected[position as usize].1) {
            continue;
        }
        while from > earliest && time < wanted {
            let (op, chains) = expected[from as usize - 1];
            if !fits(op.max(chains)) {
                break;
            }
            from -= 1;
            time += trace.records[from as usize].time;
        }
        if from < position {
            expected[from as usize..position as usize].iter_mut().for_each(|(op, chains)| {
                *op += value.bytes;
                *chains += value.bytes;
            });
            prefetched.push((from, number));
        }
    }
    prefetched.sort_unstable();
    prefetched
}
