//! Restoring values: the chain of ops and reloads that leads to one, within the target, and what is retained of it.

use std::collections::HashMap;
use std::ops::Range;

use super::{GreedyPlanner, Since};
use crate::Input;
use crate::chain_memory::{ChainLink, ChainMemory, Retained};
use crate::clock::Wait;
use crate::prefetch::Reload;

/// One link of a chain that restores values.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// A record that is recomputed, with its auxiliary outputs or without.
    Recompute { record: u32, with_aux: bool },
    /// A value that is reloaded.
    Reload(u32),
}

impl GreedyPlanner<'_> {
    /// Recomputes the ops that make a value, and retains those on the way that backward will fetch.
    pub(super) fn restore(&mut self, target: u32, position: u32) -> Option<()> {
        let (chain, reads) = self.chain(target, position);
        let mut retained: Vec<u32> = self.worth_retaining(&chain, target, position);
        let mut memory = self.chain_memory(&chain, &retained, target);
        loop {
            let start = self.trace.records[position as usize].at.start;
            match memory.peak(start - self.evicted_bytes.min(start)) {
                peak if peak <= self.target => break self.expected[position as usize].note_chain(peak),
                // What would be retained for later is given up first; then something that is resident now, but nothing
                // that a chain has read before the same op: that is evicted when the op begins.
                _ if !retained.is_empty() => {
                    self.not_retained.extend(retained.pop());
                    memory.retain_only(&retained);
                }
                _ => {
                    let read_here = |since: &Since| matches!(since, Since::Read(at) if *at == position);
                    let earlier = (0u32..).zip(&self.since).filter(|(_, since)| read_here(since));
                    let in_use: Vec<u32> =
                        reads.iter().copied().chain(earlier.map(|(number, _)| number)).collect();
                    let (number, strategy) = self.cheapest(position, &in_use)?;
                    self.evict(number, strategy, position);
                }
            }
        }
        for number in reads {
            // An eviction from now on takes effect after this read.
            if self.trace.values[number as usize].backward_only_from.is_some_and(|from| from <= position) {
                self.since[number as usize] = Since::Read(position);
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
        for number in retained.into_iter().chain([target]) {
            let value = &self.trace.values[number as usize];
            self.resident[number as usize] = true;
            self.since[number as usize] = Since::Restored(position);
            self.evicted_bytes -= value.bytes;
            let is_last = value.fetches.last().is_none_or(|&last| last <= position);
            if self.not_retained.contains(&number) && !is_last {
                self.transient.push(number);
            } else if !is_last {
                self.decisions.retained.insert((position, number));
                if !self.evictable.contains(&number) {
                    self.evictable.push(number);
                }
            }
        }
        Some(())
    }

    /// What restores a value, in order, and the resident values that this reads.
    fn chain(&mut self, target: u32, position: u32) -> (Vec<Link>, Vec<u32>) {
        self.stamp += 1;
        let (mut open, mut links, mut reads) = (vec![target], Vec::<Link>::new(), Vec::new());
        while let Some(number) = open.pop() {
            if self.is_offloaded(number, position) {
                if !links.contains(&Link::Reload(number)) {
                    links.push(Link::Reload(number));
                }
                continue;
            }
            let at = self.trace.values[number as usize].record;
            let record = &self.trace.records[at as usize];
            let is_aux = number - record.first_value >= record.n_outputs;
            if std::mem::replace(&mut self.mark[at as usize], self.stamp) == self.stamp {
                for link in &mut links {
                    if let Link::Recompute { record, with_aux } = link
                        && *record == at
                    {
                        *with_aux |= is_aux;
                    }
                }
                continue;
            }
            links.push(Link::Recompute { record: at, with_aux: is_aux });
            for &input in &record.inputs {
                match input {
                    Input::Value(input) if self.is_available(input, position) => reads.push(input),
                    Input::Value(input) => open.push(input),
                    Input::Persistent | Input::Transient => {}
                }
            }
        }
        links.sort_by_key(|link| match *link {
            Link::Recompute { record, .. } => (record, u32::MAX),
            Link::Reload(number) => (self.trace.values[number as usize].record, number),
        });
        (links, reads)
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
    fn chain_memory(&self, chain: &[Link], retain: &[u32], target: u32) -> ChainMemory {
        let mut last_read: HashMap<u32, usize> = HashMap::new();
        for (at, link) in chain.iter().enumerate() {
            let Link::Recompute { record, .. } = *link else { continue };
            for &input in &self.trace.records[record as usize].inputs {
                if let Input::Value(input) = input {
                    last_read.insert(input, at);
                }
            }
        }
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
