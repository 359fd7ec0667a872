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

mod back;
mod costs;

use std::collections::HashMap;

use crate::clock::{Happenings, Leave, journey, step_time};
use crate::outbound::{Outbound, outbound};
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
    outbound: Outbound,
}

impl<'a> Known<'a> {
    pub fn of(trace: &'a Trace) -> Known<'a> {
        Known { trace, outbound: outbound(trace) }
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
    /// Values that a search has yet to look at; kept, because searches are many.
    open: Vec<u32>,
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
            open: Vec::new(),
            decisions: Decisions {
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
