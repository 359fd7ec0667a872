//! Decisions for one target: the step is gone through in the order of its ops, with everything that lies ahead known.
//!
//! Wherever the bytes in use would pass the target, a value that backward alone holds is let go: the one that costs least
//! to compute again, per byte and per time that it stays away. Where backward asks for a value that is away, its chain of
//! ops is repeated, inside the target as well; values on the way that backward will ask for later stay if there is room.
//! Where there is a depot, a value may be moved there and back instead, whichever is cheaper: that is one more way to be
//! away, and one more way for a chain to begin.
//!
//! Letting a value go in the middle of its wait is the same as never having kept it for that wait, so the decision is
//! moved to where the wait began, which only lowers the bytes in between. A value that moves out beside the work is the
//! exception: its journey begins when it is made, and its block is let go where it is needed, and not before.
//!
//! It is a greedy walk over one fixed order: it needs no structure in the graph, and it never re-orders a step.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::clock::{Happenings, Leave, Wait, journey, step_time};
use crate::outbound::{LEAST_MOVED_BYTES, Outbound, outbound};
use crate::passage::{Part, Passage, Staying};
use crate::prefetch::{Bring, Level, prefetched};
use crate::{Choice, Decisions, Input, Trace};

/// Smaller values are always kept: repeating an op costs more than their bytes are worth.
pub(crate) const LEAST_BYTES: u64 = 4096;

/// What makes one value cheaper to let go than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// How much it counts for a value how long it stays away: at 0 only cost per byte does.
    pub patience: f64,
    /// How much the time of journeys counts, beside that of computing again. Of journeys beside the work, what is waited
    /// for counts in full whatever this is.
    pub moving: f64,
}

/// Chooses what to let go so that no more than `target` bytes are in use at any moment; nothing if it cannot be done
/// this way.
pub fn decide(trace: &Trace, target: u64, weights: Weights) -> Option<Decisions> {
    Known::of(trace).decide(target, weights, &[])
}

/// Like [`decide`], with values that forward lets go in any case, if they can be made again: a [`Chain`](crate::Chain)
/// says which. What does not fit then is let go as by [`decide`].
pub fn decide_with(trace: &Trace, target: u64, weights: Weights, prescribed: &[u32]) -> Option<Decisions> {
    Known::of(trace).decide(target, weights, prescribed)
}

/// What all decisions about a trace share.
pub(crate) struct Known<'a> {
    trace: &'a Trace,
    /// What tells the ops of the step from those of others.
    fingerprints: Arc<[u64]>,
    outbound: Outbound,
}

impl<'a> Known<'a> {
    pub fn of(trace: &'a Trace) -> Known<'a> {
        Known::with(trace, fingerprints(trace))
    }

    /// The same, where the fingerprints are known.
    pub fn with(trace: &'a Trace, fingerprints: Arc<[u64]>) -> Known<'a> {
        Known { trace, fingerprints, outbound: outbound(trace) }
    }

    /// Like [`decide_with`].
    pub fn decide(&self, target: u64, weights: Weights, prescribed: &[u32]) -> Option<Decisions> {
        let mut walk = Walk::new(self, target, weights);
        walk.prescribe(prescribed);
        for position in 0..self.trace.records.len() as u32 {
            walk.pass(position)?;
        }
        Some(walk.finish())
    }
}

/// What tells the ops of a step from those of others.
pub(crate) fn fingerprints(trace: &Trace) -> Arc<[u64]> {
    trace.records.iter().map(|record| record.fingerprint).collect()
}

/// Since when a value has been there without being asked for.
#[derive(Clone, Copy)]
enum Since {
    /// It was made.
    Made,
    /// Backward asked for it at that position, so that the op there reads it.
    Asked(u32),
    /// A chain that ran again before that position read it.
    Read(u32),
    /// It was made again at that position.
    Repeated(u32),
}

/// How a value comes back.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Its ops are repeated.
    Repeated,
    /// It is moved to the depot and back.
    Moved,
}

/// One part of a chain that brings values back.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// A record that is repeated, with its extras or without.
    Repeat { record: u32, with_extras: bool },
    /// A value that is moved back.
    Move(u32),
}

struct Walk<'a> {
    trace: &'a Trace,
    target: u64,
    weights: Weights,
    /// Whether a value can be made again from what lasts.
    repeatable: Vec<bool>,
    /// Whether a value is there, from the moment on from which backward alone holds it.
    here: Vec<bool>,
    since: Vec<Since>,
    /// The way of each value that was let go.
    ways: Vec<Option<Way>>,
    /// The bytes in use that are expected at each position.
    expected: Vec<Level>,
    /// The values that are moved back for backward itself.
    brought: Vec<Bring>,
    /// The position from which a value that was let go is away.
    away_from: Vec<u32>,
    /// The values that travel out beside forward.
    outbound: Outbound,
    /// When the way out is free for others, as far as is decided, in the time of the step that keeps everything.
    out_free_at: u64,
    happenings: Happenings,
    /// The values that backward asks for before a position.
    fetched: HashMap<u32, Vec<u32>>,
    /// Values that may be away at the present position and are there.
    held: Vec<u32>,
    /// The bytes of values that would be there if everything were kept, and are not.
    absent: u64,
    /// The time of all records before a position.
    time_before: Vec<u64>,
    /// Whether a value is let go as soon as backward alone holds it, needed or not.
    prescribed: Vec<bool>,
    /// The values from which on backward alone holds them, by position.
    becoming_alone: HashMap<u32, Vec<u32>>,
    /// Values that were made again before the present op without staying; whether one stays is said once per position.
    given_up: Vec<u32>,
    /// Values that were made again for the present op alone.
    passing: Vec<u32>,
    n_repeats: HashMap<u32, u32>,
    mark: Vec<u32>,
    stamp: u32,
    decisions: Decisions,
}

impl<'a> Walk<'a> {
    fn new(known: &Known<'a>, target: u64, weights: Weights) -> Walk<'a> {
        let trace = known.trace;
        let (mut fetched, mut becoming_alone) = (HashMap::new(), HashMap::new());
        for (number, value) in trace.values.iter().enumerate() {
            let Some(from) = value.alone_from.filter(|_| !value.fetches.is_empty()) else { continue };
            becoming_alone.entry(from).or_insert_with(Vec::new).push(number as u32);
            for &position in &value.fetches {
                fetched.entry(position).or_insert_with(Vec::new).push(number as u32);
            }
        }
        let mut time_before = vec![0];
        for record in &trace.records {
            time_before.push(time_before[time_before.len() - 1] + record.time);
        }
        let n = trace.values.len();
        Walk {
            trace,
            target,
            weights,
            repeatable: repeatable(trace),
            here: vec![true; n],
            since: vec![Since::Made; n],
            ways: vec![None; n],
            expected: vec![Level::default(); trace.records.len()],
            brought: Vec::new(),
            away_from: vec![0; n],
            outbound: known.outbound.clone(),
            out_free_at: known.outbound.values().copied().max().unwrap_or(0),
            happenings: Happenings::default(),
            fetched,
            held: Vec::new(),
            absent: 0,
            time_before,
            prescribed: vec![false; n],
            becoming_alone,
            given_up: Vec::new(),
            passing: Vec::new(),
            n_repeats: HashMap::new(),
            mark: vec![0; trace.records.len()],
            stamp: 0,
            decisions: Decisions {
                fingerprints: known.fingerprints.clone(),
                dropped: vec![false; n],
                offloaded: vec![false; n],
                ..Decisions::default()
            },
        }
    }

    /// Before the walk begins: these values do not wait for backward.
    fn prescribe(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|&number| self.prescribed[number as usize] = true);
    }

    /// Goes through one op, with what backward asks for before it.
    fn pass(&mut self, position: u32) -> Option<()> {
        if let Some(alone) = self.becoming_alone.remove(&position) {
            let candidates: Vec<u32> = alone.into_iter().filter(|&number| self.may_go(number)).collect();
            for &number in &candidates {
                let can_go = self.prescribed[number as usize] && self.repeatable[number as usize];
                if can_go && self.trace.values[number as usize].may_be_away(position) {
                    self.let_go(number, Way::Repeated, position);
                }
            }
            self.held.extend(candidates);
        }
        for number in self.fetched.get(&position).cloned().unwrap_or_default() {
            if !self.here[number as usize] {
                self.bring_back(number, position)?;
            } else {
                self.since[number as usize] = Since::Asked(position);
            }
        }
        let peak = self.trace.records[position as usize].at.peak;
        while peak.saturating_sub(self.absent) > self.target {
            let (number, way) = self.cheapest(position, &[])?;
            self.let_go(number, way, position);
        }
        self.expected[position as usize].op = peak - self.absent.min(peak);
        self.given_up.clear();
        for number in std::mem::take(&mut self.passing) {
            self.here[number as usize] = false;
            self.absent += self.trace.values[number as usize].bytes;
        }
        let trace = self.trace;
        self.held.retain(|&number| {
            trace.values[number as usize].fetches.last().is_some_and(|&last| last > position)
        });
        Some(())
    }

    fn may_go(&self, number: u32) -> bool {
        let is_large = self.trace.values[number as usize].bytes >= LEAST_BYTES;
        is_large && (self.repeatable[number as usize] || self.may_move(number))
    }

    /// Whether a value can be moved: there is room, and it has not gone another way.
    fn may_move(&self, number: u32) -> bool {
        let bytes = self.trace.values[number as usize].bytes;
        self.ways[number as usize].is_none()
            && bytes >= LEAST_MOVED_BYTES
            && self.trace.depot.is_some_and(|depot| self.decisions.offloaded_bytes + bytes <= depot.room)
    }

    /// Whether a value that is not here is in the depot at a position.
    fn is_moved(&self, number: u32, position: u32) -> bool {
        self.ways[number as usize] == Some(Way::Moved)
            && !self.here[number as usize]
            && self.trace.values[number as usize].gone_from > position
    }

    /// When the block of a value that goes out for the first time could be let go, in the time of the step that keeps
    /// everything.
    fn out_at(&self, number: u32) -> u64 {
        if let Some(&arrival) = self.outbound.get(&number) {
            return arrival;
        }
        let made = self.time_before[self.trace.values[number as usize].record as usize + 1];
        made.max(self.out_free_at) + journey(self.trace, number)
    }

    /// What moving a value costs whose block is needed elsewhere at a position, out if it is not yet there, and back when
    /// it is asked for.
    fn time_to_move(&self, number: u32, position: u32, next: u32) -> f64 {
        let whole = journey(self.trace, number);
        let is_beside = self.trace.depot.is_some_and(|depot| depot.is_beside);
        let weigh = |late: u64| {
            let waited = if is_beside { late.min(whole) } else { 0 };
            waited as f64 + self.weights.moving * (whole - waited) as f64
        };
        let now = self.time_before[position as usize];
        let back = weigh(whole.saturating_sub(self.time_before[next as usize] - now));
        match self.ways[number as usize] {
            Some(_) => back,
            None => back + weigh(self.out_at(number).saturating_sub(now)),
        }
    }

    /// Whether a value can be read at a position without being made again.
    fn is_available(&self, number: u32, position: u32) -> bool {
        let value = &self.trace.values[number as usize];
        value.gone_from > position
            && (self.here[number as usize] || value.alone_from.is_none_or(|from| from > position))
    }

    /// The value that is best away from `position` on, other than those that are in use, and how it comes back.
    fn cheapest(&mut self, position: u32, in_use: &[u32]) -> Option<(u32, Way)> {
        let mut best: Option<(f64, u32, Way)> = None;
        for at in 0..self.held.len() {
            let number = self.held[at];
            let value = &self.trace.values[number as usize];
            if !self.here[number as usize] || !value.may_be_away(position) || in_use.contains(&number) {
                continue;
            }
            let Some(next) = value.next_fetch(position) else { continue };
            let away = (self.time_before[next as usize] - self.time_before[position as usize]) as f64 + 1.0;
            let Some((time, way)) = self.cheaper_way(number, position, next) else { continue };
            let score = time / value.bytes as f64 / away.powf(self.weights.patience);
            if best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, number, way));
            }
        }
        best.map(|(_, number, way)| (number, way))
    }

    /// How a value that goes at a position comes back at the next one at which it is asked for, at the least time as that
    /// is weighed.
    fn cheaper_way(&mut self, number: u32, position: u32, next: u32) -> Option<(f64, Way)> {
        let moved = || (self.time_to_move(number, position, next), Way::Moved);
        if self.ways[number as usize] == Some(Way::Moved) {
            return Some(moved());
        }
        let moved = self.may_move(number).then(moved);
        let repeated = self.repeatable[number as usize]
            .then(|| (self.time_to_repeat(number, next) as f64, Way::Repeated));
        match (moved, repeated) {
            (Some(moved), Some(repeated)) => Some(if moved.0 < repeated.0 { moved } else { repeated }),
            (moved, repeated) => moved.or(repeated),
        }
    }

    /// The time that making a value again at a later position will take, as things stand.
    fn time_to_repeat(&mut self, number: u32, position: u32) -> u64 {
        self.stamp += 1;
        let (mut open, mut time) = (vec![number], 0);
        while let Some(number) = open.pop() {
            let record = self.trace.values[number as usize].record;
            if std::mem::replace(&mut self.mark[record as usize], self.stamp) == self.stamp {
                continue;
            }
            let record = &self.trace.records[record as usize];
            time += record.time.max(1);
            for &input in &record.inputs {
                let Input::Value(input) = input else { continue };
                if self.is_moved(input, position) {
                    time += journey(self.trace, input);
                } else if !(self.here[input as usize]
                    && self.trace.values[input as usize].gone_from > position)
                {
                    open.push(input);
                }
            }
        }
        time
    }

    /// Lets a value go for the wait that it is in, because its bytes are needed at a position.
    fn let_go(&mut self, number: u32, way: Way, position: u32) {
        let goes_out = self.ways[number as usize].replace(way).is_none() && way == Way::Moved;
        let since = self.since[number as usize];
        if goes_out {
            self.send_out(number, since, position);
        }
        let alone_from = self.trace.values[number as usize].alone_from.unwrap_or(0);
        let is_beside = self.trace.depot.is_some_and(|depot| depot.is_beside);
        self.away_from[number as usize] = match since {
            // It has been on its way out since it was made.
            Since::Made if goes_out && is_beside && alone_from < position => {
                self.decisions.released_after.insert((position - 1, number));
                position
            }
            Since::Made => {
                self.decisions.dropped[number as usize] = true;
                alone_from + 1
            }
            Since::Asked(at) => {
                self.decisions.released_after.insert((at, number));
                at + 1
            }
            Since::Read(at) => {
                self.decisions.released_before.insert((at, number));
                at + 1
            }
            Since::Repeated(at) => {
                self.decisions.retained.remove(&(at, number));
                at + 1
            }
        };
        self.here[number as usize] = false;
        self.absent += self.trace.values[number as usize].bytes;
    }

    /// A value is moved out, whose block is let go at a position or where its wait began.
    fn send_out(&mut self, number: u32, since: Since, position: u32) {
        let value = &self.trace.values[number as usize];
        self.decisions.offloaded[number as usize] = true;
        self.decisions.offloaded_bytes += value.bytes;
        self.out_free_at = self.out_free_at.max(self.out_at(number));
        let (position, is_after_waits) = match since {
            Since::Made => (position, false),
            Since::Read(at) => (at, true),
            Since::Asked(at) | Since::Repeated(at) => (at + 1, false),
        };
        self.happenings.leaves.push(Leave { position, is_after_waits, number });
    }

    /// Repeats the ops that make a value, with those on the way kept that backward will ask for.
    fn bring_back(&mut self, target: u32, position: u32) -> Option<()> {
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

    /// The values that forward lets go or moves, with what each saves and costs.
    fn choices(&self) -> Vec<Choice> {
        let choice = |number: u32| {
            let value = &self.trace.values[number as usize];
            let record = &self.trace.records[value.record as usize];
            let is_moved = self.decisions.offloaded[number as usize];
            let n_repeats = self.n_repeats.get(&value.record).copied().unwrap_or(0);
            let time = match is_moved {
                true => 2 * journey(self.trace, number),
                false => record.time * u64::from(n_repeats),
            };
            Choice { site: record.site, bytes: value.bytes, is_moved, time }
        };
        self.decisions.not_kept().map(choice).collect()
    }

    fn finish(mut self) -> Decisions {
        let choices = self.choices();
        let mut repeated: Vec<(u32, u32)> = self.n_repeats.into_iter().collect();
        repeated.sort_unstable();
        let expected_peak = self.expected.iter().map(Level::most).max().unwrap_or(0);
        let prefetched = prefetched(self.trace, &self.brought, self.expected, self.target);
        self.happenings.prefetched.clone_from(&prefetched);
        let extra_time = step_time(self.trace, self.happenings) - self.trace.natural_time();
        Decisions { repeated, prefetched, extra_time, expected_peak, choices, ..self.decisions }
    }
}

/// For each value, whether a chain of records leads to it from what lasts.
fn repeatable(trace: &Trace) -> Vec<bool> {
    let mut repeatable = vec![false; trace.values.len()];
    for (at, record) in trace.records.iter().enumerate() {
        let can_be_read = |input: &Input| match *input {
            Input::Value(number) => repeatable[number as usize],
            Input::Lasting => true,
            Input::Passing => false,
        };
        if record.inputs.iter().all(can_be_read) {
            trace.values_of(at as u32).for_each(|number| repeatable[number as usize] = true);
        }
    }
    repeatable
}
