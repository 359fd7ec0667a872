//! Restoring values: the chain of ops and reloads that leads to one, within the target, and what is retained of it.

use std::collections::HashSet;
use std::ops::Range;

use super::{GreedyPlanner, Since};
use crate::Input;
use crate::chain_memory::{ChainLink, ChainMemory, Retained};
use crate::clock::Wait;
use crate::prefetch::Reload;
use crate::recompute_chain::{self, Link, Maker, Records};

/// What can be read when the op at a position begins.
struct At<'a> {
    planner: &'a GreedyPlanner<'a>,
    position: u32,
}

impl Records for At<'_> {
    fn maker(&self, value: u32) -> Option<Maker> {
        let record = self.planner.trace.values[value as usize].record;
        let made = &self.planner.trace.records[record as usize];
        Some(Maker { record, is_aux: value - made.first_value >= made.n_outputs })
    }

    fn inputs(&self, record: u32) -> impl Iterator<Item = u32> {
        self.planner.trace.records[record as usize].inputs.iter().filter_map(|input| match *input {
            Input::Value(value) => Some(value),
            Input::Persistent | Input::Transient => None,
        })
    }

    fn is_resident(&self, value: u32) -> bool {
        self.planner.is_available(value, self.position)
    }

    fn is_offloaded(&self, value: u32) -> bool {
        self.planner.is_offloaded(value, self.position)
    }

    fn is_recomputable(&self, _record: u32) -> bool {
        // Values that cannot be restored are never evicted.
        true
    }
}

impl GreedyPlanner<'_> {
    /// Recomputes the ops that make a value, and retains those on the way that backward will fetch.
    pub(super) fn restore(&mut self, target: u32, position: u32) -> Option<()> {
        let (chain, reads) = self.chain(target, position);
        let mut retained: Vec<u32> = self.worth_retaining(&chain, target, position);
        let mut memory = self.chain_memory(&chain, &retained, (target, position));
        loop {
            let start = self.trace.records[position as usize].at.start;
            match memory.peak(start - self.evicted_bytes.min(start)) {
                peak if peak <= self.target => break self.expected[position as usize].note_chain(peak),
                // What would be retained for later is given up first; then something that is resident now, but nothing
                // that a chain has read before the same op: that is evicted when the op begins.
                _ if !retained.is_empty() => {
                    let given_up = retained.pop();
                    given_up.iter().for_each(|&number| memory.give_up(number));
                    self.not_retained.extend(given_up);
                }
                _ => {
                    let since = |number: u32| self.since[number as usize];
                    let is_read = |number: &u32| matches!(since(*number), Since::Read(at) if at == position);
                    let earlier = self.read_here.iter().copied().filter(is_read);
                    let in_use: Vec<u32> = reads.iter().copied().chain(earlier).collect();
                    let (number, strategy) = self.cheapest(position, &in_use)?;
                    self.evict(number, strategy, position);
                }
            }
        }
        for number in reads {
            // An eviction from now on takes effect after this read.
            if self.trace.values[number as usize].backward_only_from.is_some_and(|from| from <= position) {
                self.since[number as usize] = Since::Read(position);
                self.read_here.push(number);
            }
        }
        for &link in &chain {
            match link {
                Link::Recompute { record, .. } => {
                    *self.n_recomputes.entry(record).or_default() += 1;
                    self.events.waits.push((position, Wait::Recompute(record)));
                }
                Link::Reload(number) => self.events.waits.push((position, Wait::Reload(number))),
            }
        }
        if chain == [Link::Reload(target)] {
            let evicted_from = self.evicted_from[target as usize];
            self.reloads.push(Reload { position, number: target, evicted_from });
        }
        // What is resident again makes other values cheaper to recompute.
        self.costs.forget();
        for number in retained.into_iter().chain([target]) {
            let value = &self.trace.values[number as usize];
            self.resident[number as usize] = true;
            self.since[number as usize] = Since::Restored(position);
            self.evictable.add_again(number);
            self.evicted_bytes -= value.bytes;
            let is_last = value.fetches.last().is_none_or(|&last| last <= position);
            if self.not_retained.contains(&number) && !is_last {
                self.transient.push(number);
            } else if !is_last {
                self.decisions.retained.insert((position, number));
                self.evictable.add(number);
            }
        }
        Some(())
    }

    /// What restores a value, in order, and the resident values that this reads.
    fn chain(&self, target: u32, position: u32) -> (Vec<Link>, Vec<u32>) {
        let at = At { planner: self, position };
        let chain = recompute_chain::chain(&at, target)
            .unwrap_or_else(|value| unreachable!("value {value} was evicted, so it can be restored"));
        let recomputed = chain.iter().filter_map(|link| match *link {
            Link::Recompute { record, .. } => Some(record),
            Link::Reload(_) => None,
        });
        let read = recomputed.flat_map(|record| at.inputs(record)).filter(|&input| at.is_resident(input));
        let reads = read.collect();
        (chain, reads)
    }

    /// The values that a link of a chain makes.
    fn made_by(&self, link: Link) -> Range<u32> {
        match link {
            Link::Recompute { record, with_aux } => {
                let record = &self.trace.records[record as usize];
                let n = if with_aux { record.n_values } else { record.n_outputs };
                record.first_value..record.first_value + n
            }
            Link::Reload(number) => number..number + 1,
        }
    }

    /// The values on a chain that backward will fetch later; the nearest first.
    fn worth_retaining(&self, chain: &[Link], target: u32, position: u32) -> Vec<u32> {
        let made = chain.iter().flat_map(|&link| self.made_by(link));
        let mut retained: Vec<u32> = made
            .filter(|&number| {
                let value = &self.trace.values[number as usize];
                number != target
                    && !self.resident[number as usize]
                    && !self.not_retained.contains(&number)
                    && value.backward_only_from.is_some_and(|from| from <= position)
                    && value.dead_from > position
                    && value.next_fetch(position).is_some()
            })
            .collect();
        retained.sort_by_key(|&number| (self.trace.values[number as usize].next_fetch(position), number));
        retained.dedup();
        retained
    }

    /// How the bytes in use rise and fall while a chain restores values, of which the target and some others are retained.
    fn chain_memory(&self, chain: &[Link], retain: &[u32], (target, position): (u32, u32)) -> ChainMemory {
        let last_read = recompute_chain::last_reads(&At { planner: self, position }, chain);
        let retain: HashSet<u32> = retain.iter().copied().collect();
        let bytes = |number: u32| self.trace.values[number as usize].bytes;
        let chain_link = |&link: &Link| ChainLink {
            made: self.made_by(link).map(bytes).sum(),
            workspace: self.workspace_of(link),
            freed: 0,
        };
        let mut memory = ChainMemory { links: chain.iter().map(chain_link).collect(), retained: Vec::new() };
        for (at, &link) in chain.iter().enumerate() {
            for number in self.made_by(link).filter(|&number| number != target) {
                let end = last_read.get(&number).map_or(at, |&last| last.max(at));
                match retain.contains(&number) {
                    true => memory.retained.push(Retained { number, bytes: bytes(number), end }),
                    false => memory.links[end].freed += bytes(number),
                }
            }
        }
        memory
    }

    fn workspace_of(&self, link: Link) -> u64 {
        match link {
            Link::Recompute { record, .. } => self.trace.records[record as usize].workspace,
            Link::Reload(_) => 0,
        }
    }
}
