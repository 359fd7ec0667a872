//! Bringing values back: the chain of ops and journeys that leads to one, inside the target, and what stays of it.

use std::collections::HashMap;
use std::ops::Range;

use super::{Since, Walk};
use crate::Input;
use crate::clock::Wait;
use crate::passage::{Part, Passage, Staying};
use crate::prefetch::Bring;

/// One part of a chain that brings values back.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// A record that is repeated, with its extras or without.
    Repeat { record: u32, with_extras: bool },
    /// A value that is moved back.
    Move(u32),
}

impl Walk<'_> {
    /// Repeats the ops that make a value, with those on the way kept that backward will ask for.
    pub(super) fn bring_back(&mut self, target: u32, position: u32) -> Option<()> {
        let (chain, reads) = self.chain(target, position);
        let mut stay: Vec<u32> = self.worth_keeping(&chain, target, position);
        let mut passage = self.passage(&chain, &stay, target);
        loop {
            let start = self.trace.records[position as usize].at.start;
            match passage.peak(start - self.absent.min(start)) {
                peak if peak <= self.target => break self.expected[position as usize].note_chain(peak),
                // What would stay for later is given up first; then something that is there now, but nothing that a
                // chain has read before the same op: it goes when that op begins.
                _ if !stay.is_empty() => {
                    self.given_up.extend(stay.pop());
                    passage.give_up(&stay);
                }
                _ => {
                    let read_here = |since: &Since| matches!(since, Since::Read(at) if *at == position);
                    let earlier = (0u32..).zip(&self.since).filter(|(_, since)| read_here(since));
                    let in_use: Vec<u32> =
                        reads.iter().copied().chain(earlier.map(|(number, _)| number)).collect();
                    let (number, way) = self.cheapest(position, &in_use)?;
                    self.let_go(number, way, position);
                }
            }
        }
        for number in reads {
            // Whoever lets it go from now on can no longer say that it was never needed here.
            if self.trace.values[number as usize].alone_from.is_some_and(|from| from <= position) {
                self.since[number as usize] = Since::Read(position);
            }
        }
        for &link in &chain {
            match link {
                Link::Repeat { record, .. } => {
                    *self.n_repeats.entry(record).or_default() += 1;
                    self.happenings.waits.push((position, Wait::Repeat(record)));
                }
                Link::Move(number) => self.happenings.waits.push((position, Wait::Bring(number))),
            }
        }
        if chain == [Link::Move(target)] {
            let away_from = self.away_from[target as usize];
            self.brought.push(Bring { position, number: target, away_from });
        }
        for number in stay.into_iter().chain([target]) {
            let value = &self.trace.values[number as usize];
            self.here[number as usize] = true;
            self.since[number as usize] = Since::Repeated(position);
            self.absent -= value.bytes;
            let is_last = value.fetches.last().is_none_or(|&last| last <= position);
            if self.given_up.contains(&number) && !is_last {
                self.passing.push(number);
            } else if !is_last {
                self.decisions.retained.insert((position, number));
                if !self.held.contains(&number) {
                    self.held.push(number);
                }
            }
        }
        Some(())
    }

    /// What brings a value back, in order, and the values that this reads and that are there.
    fn chain(&mut self, target: u32, position: u32) -> (Vec<Link>, Vec<u32>) {
        self.stamp += 1;
        let (mut open, mut links, mut reads) = (vec![target], Vec::<Link>::new(), Vec::new());
        while let Some(number) = open.pop() {
            if self.is_moved(number, position) {
                if !links.contains(&Link::Move(number)) {
                    links.push(Link::Move(number));
                }
                continue;
            }
            let at = self.trace.values[number as usize].record;
            let record = &self.trace.records[at as usize];
            let is_extra = number - record.first_value >= record.n_outputs;
            if std::mem::replace(&mut self.mark[at as usize], self.stamp) == self.stamp {
                for link in &mut links {
                    if let Link::Repeat { record, with_extras } = link
                        && *record == at
                    {
                        *with_extras |= is_extra;
                    }
                }
                continue;
            }
            links.push(Link::Repeat { record: at, with_extras: is_extra });
            for &input in &record.inputs {
                match input {
                    Input::Value(input) if self.is_available(input, position) => reads.push(input),
                    Input::Value(input) => open.push(input),
                    Input::Lasting | Input::Passing => {}
                }
            }
        }
        links.sort_by_key(|link| match *link {
            Link::Repeat { record, .. } => (record, u32::MAX),
            Link::Move(number) => (self.trace.values[number as usize].record, number),
        });
        (links, reads)
    }

    /// The values that a part of a chain makes.
    fn made_by(&self, link: Link) -> Range<u32> {
        match link {
            Link::Repeat { record, with_extras } => {
                let record = &self.trace.records[record as usize];
                let n = if with_extras { record.n_values } else { record.n_outputs };
                record.first_value..record.first_value + n
            }
            Link::Move(number) => number..number + 1,
        }
    }

    /// The values on a chain that backward will ask for later; the nearest first.
    fn worth_keeping(&self, chain: &[Link], target: u32, position: u32) -> Vec<u32> {
        let made = chain.iter().flat_map(|&link| self.made_by(link));
        let mut stay: Vec<u32> = made
            .filter(|&number| {
                let value = &self.trace.values[number as usize];
                number != target
                    && !self.here[number as usize]
                    && !self.given_up.contains(&number)
                    && value.alone_from.is_some_and(|from| from <= position)
                    && value.gone_from > position
                    && value.next_fetch(position).is_some()
            })
            .collect();
        stay.sort_by_key(|&number| (self.trace.values[number as usize].next_fetch(position), number));
        stay.dedup();
        stay
    }

    /// How the bytes in use rise and fall while a chain brings values back, of which the target and some others stay.
    fn passage(&self, chain: &[Link], stay: &[u32], target: u32) -> Passage {
        let mut last_read: HashMap<u32, usize> = HashMap::new();
        for (at, link) in chain.iter().enumerate() {
            let Link::Repeat { record, .. } = *link else { continue };
            for &input in &self.trace.records[record as usize].inputs {
                if let Input::Value(input) = input {
                    last_read.insert(input, at);
                }
            }
        }
        let bytes = |number: u32| self.trace.values[number as usize].bytes;
        let part = |&link: &Link| Part {
            made: self.made_by(link).map(bytes).sum(),
            workspace: self.workspace_of(link),
            gone: 0,
        };
        let mut passage = Passage { parts: chain.iter().map(part).collect(), staying: Vec::new() };
        for (at, &link) in chain.iter().enumerate() {
            for number in self.made_by(link).filter(|&number| number != target) {
                let end = last_read.get(&number).map_or(at, |&last| last.max(at));
                match stay.contains(&number) {
                    true => passage.staying.push(Staying { number, bytes: bytes(number), end }),
                    false => passage.parts[end].gone += bytes(number),
                }
            }
        }
        passage
    }

    fn workspace_of(&self, link: Link) -> u64 {
        match link {
            Link::Repeat { record, .. } => self.trace.records[record as usize].workspace,
            Link::Move(_) => 0,
        }
    }
}
