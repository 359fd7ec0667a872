//! The blocks of a step: where a forward pass can be cut so that each part has its own part of backward.
//!
//! A step is one sweep, or several where gradients are accumulated: forward, then backward, which fetches the saved values
//! in reverse order. In the forward part, a sequence of ops that repeats itself is a repeated block; what lies around the
//! repetitions, or the whole where there are none, is cut where a single value leads from what is before to what is after.
//! A network that allows no cut (values of all parts are read in all others) is one block, for which blocks are of no use.
//!
//! Everything is found from fingerprints and from who reads what: layers and their names play no part.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::greedy::MIN_EVICT_BYTES;
use crate::{Input, Trace};

/// A repeated block holds at least one part in this many of the bytes saved for backward, which bounds the number of
/// blocks.
const MOST_REPEATED: u64 = 64;
/// Other blocks hold at least one part in this many.
const MOST_OTHERS: u64 = 32;
/// Between repeated blocks, at most this many values may cross a cut.
const MOST_CROSSING: u32 = 2;
/// The longest sequence of ops that is considered as a repeated block.
const LONGEST_PERIOD: usize = 1024;
/// The position of something that does not happen.
const NEVER: u32 = u32::MAX;

/// A part of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its forward ops.
    pub forward: Range<u32>,
    /// The ops from the first fetch of a value of this block to the first fetch of a value of an earlier block.
    pub backward: Range<u32>,
    /// The bytes saved for backward when forward has passed the block, if everything is retained.
    pub bytes: u64,
}

/// The blocks of each sweep of a step, in the order of forward. Sweeps that cannot be cut are left out.
pub(crate) fn chains(trace: &Trace) -> Vec<Vec<Block>> {
    let mut chains: Vec<Vec<Block>> = sweeps(trace).iter().map(|sweep| sweep.blocks(trace)).collect();
    chains.retain(|blocks| blocks.len() > 1);
    chains
}

/// A forward pass and the backward pass that follows it.
struct Sweep {
    forward: Range<u32>,
    backward: Range<u32>,
}

/// The sweeps of a step: no value of one is fetched in another.
fn sweeps(trace: &Trace) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = Vec::new();
    let saved = trace.values.iter().filter(|value| value.backward_only_from.is_some());
    for value in saved {
        let (Some(&first), Some(&last)) = (value.fetches.first(), value.fetches.last()) else { continue };
        match sweeps.last_mut() {
            Some(sweep) if value.record < sweep.backward.end => {
                let middle = sweep.forward.end.min(first);
                sweep.forward.end = middle;
                sweep.backward = middle..sweep.backward.end.max(last + 1);
            }
            _ => {
                let start = sweeps.last().map_or(0, |sweep| sweep.backward.end);
                sweeps.push(Sweep { forward: start..first, backward: first..last + 1 });
            }
        }
    }
    sweeps
}

impl Sweep {
    fn blocks(&self, trace: &Trace) -> Vec<Block> {
        let forward = Forward::new(trace, self.forward.clone());
        let mut cuts = Vec::new();
        forward.cut(0..self.forward.len(), &mut cuts);
        cuts.sort_unstable();
        cuts.dedup();
        let cuts = cuts.into_iter().map(|at| self.forward.start + at as u32).collect();
        self.between(trace, cuts)
    }

    /// The blocks between cuts of forward. A cut is left out unless backward fetches all values of the block after it
    /// before those of the block before it.
    fn between(&self, trace: &Trace, mut cuts: Vec<u32>) -> Vec<Block> {
        loop {
            let (first_fetched, bytes) = self.saved_in_blocks(trace, &cuts);
            let is_late = |at: usize| first_fetched[at] > first_fetched[at + 1] && first_fetched[at] != NEVER;
            if let Some(at) = (0..cuts.len()).find(|&at| !is_late(at)) {
                cuts.remove(at);
                continue;
            }
            let starts = std::iter::once(self.forward.start).chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain([self.forward.end]);
            let next_fetched = std::iter::once(self.backward.end).chain(first_fetched.iter().copied());
            let ranges = starts.zip(ends).zip(first_fetched.iter().zip(next_fetched));
            let block = |(((start, end), (&fetched, next)), bytes)| Block {
                forward: start..end,
                backward: fetched..next,
                bytes,
            };
            return ranges.zip(bytes).map(block).collect();
        }
    }

    /// For each block between cuts, the first position at which backward fetches one of its values, and their bytes.
    fn saved_in_blocks(&self, trace: &Trace, cuts: &[u32]) -> (Vec<u32>, Vec<u64>) {
        let mut first_fetched = vec![NEVER; cuts.len() + 1];
        let mut bytes = vec![0; cuts.len() + 1];
        for value in trace.values.iter().filter(|value| self.forward.contains(&value.record)) {
            let Some((from, first)) = value.backward_only_from.zip(value.fetches.first().copied()) else {
                continue;
            };
            let block = cuts.partition_point(|&cut| cut < from);
            first_fetched[block] = first_fetched[block].min(first);
            bytes[block] += value.bytes;
        }
        (first_fetched, bytes)
    }
}

/// What cutting a forward pass needs to know of its ops; places are counted from its first op.
struct Forward {
    fingerprints: Vec<u64>,
    /// For each place, how many values that are made before it are read there or later.
    crossing: Vec<u32>,
    /// For each place, and for the end of forward, the bytes saved for backward there.
    saved: Vec<u64>,
}

/// Blocks of the same ops, one after the other.
struct Repetition {
    start: usize,
    period: usize,
    n_blocks: usize,
}

impl Repetition {
    fn end(&self) -> usize {
        self.start + self.period * self.n_blocks
    }

    fn cuts(&self) -> impl Iterator<Item = usize> {
        (self.start..=self.end()).step_by(self.period)
    }
}

impl Forward {
    fn new(trace: &Trace, range: Range<u32>) -> Forward {
        let n = range.len();
        let records = &trace.records[range.start as usize..range.end as usize];
        let (mut crossing, mut saved) = (vec![0i64; n + 1], vec![0i64; n + 1]);
        let mut last_read = BTreeMap::new();
        for (at, record) in records.iter().enumerate() {
            let values = record.inputs.iter().filter_map(|input| match *input {
                Input::Value(number) => Some(number),
                Input::Persistent | Input::Transient => None,
            });
            values.for_each(|number| _ = last_read.insert(number, at));
        }
        for (number, last) in last_read {
            let value = &trace.values[number as usize];
            if value.bytes >= MIN_EVICT_BYTES && range.contains(&value.record) {
                crossing[(value.record - range.start) as usize + 1] += 1;
                crossing[last + 1] -= 1;
            }
        }
        for value in trace.values.iter().filter(|value| range.contains(&value.record)) {
            if let Some(from) = value.backward_only_from.filter(|_| !value.fetches.is_empty()) {
                saved[(from.min(range.end) - range.start) as usize] += value.bytes as i64;
            }
        }
        let fingerprints = records.iter().map(|record| record.fingerprint).collect();
        let crossing = sums(&crossing).map(|sum| sum as u32).collect();
        let saved = sums(&saved).map(|sum| sum as u64).collect();
        Forward { fingerprints, crossing, saved }
    }

    /// Finds the cuts of a part: around and inside of its longest repetition, then left and right of that.
    fn cut(&self, part: Range<usize>, cuts: &mut Vec<usize>) {
        let Some(repetition) = self.longest_repetition(part.clone()) else {
            return self.cut_where_narrow(part, cuts);
        };
        cuts.extend(repetition.cuts().filter(|&at| self.is_inside(at)));
        self.cut(part.start..repetition.start, cuts);
        self.cut(repetition.end()..part.end, cuts);
    }

    fn is_inside(&self, at: usize) -> bool {
        at > 0 && at < self.fingerprints.len()
    }

    /// The repetition that covers most ops of a part; of equals the one with the shortest blocks, then the first.
    fn longest_repetition(&self, part: Range<usize>) -> Option<Repetition> {
        let mut longest: Option<Repetition> = None;
        for period in 1..=(part.len() / 2).min(LONGEST_PERIOD) {
            let mut start = part.start;
            while start + period < part.end {
                let same = (start..part.end - period)
                    .take_while(|&at| self.fingerprints[at] == self.fingerprints[at + period]);
                let n_same = same.count();
                if n_same >= period
                    && let Some(found) = self.best_rotation(start, period, n_same)
                    && longest.as_ref().is_none_or(|longest| {
                        found.n_blocks * found.period > longest.n_blocks * longest.period
                    })
                {
                    longest = Some(found);
                }
                start += n_same + 1;
            }
        }
        longest
    }

    /// Where the blocks of a repetition begin: where the fewest values cross from one to the next, then where the most
    /// blocks fit.
    fn best_rotation(&self, start: usize, period: usize, n_same: usize) -> Option<Repetition> {
        let rotations = (start..start + period).map(|first| Repetition {
            start: first,
            period,
            n_blocks: (start + n_same + period - first) / period,
        });
        let crossing =
            |found: &Repetition| found.cuts().filter_map(|at| self.crossing.get(at)).max().copied();
        let is_heavy = |found: &Repetition| {
            let bytes = self.saved[found.end()] - self.saved[found.start];
            bytes > 0 && bytes * MOST_REPEATED >= self.saved[self.fingerprints.len()] * found.n_blocks as u64
        };
        rotations
            .filter(|found| found.n_blocks >= 2 && is_heavy(found) && crossing(found) <= Some(MOST_CROSSING))
            .min_by_key(|found| (crossing(found), std::cmp::Reverse(found.n_blocks), found.start))
    }

    /// Cuts a part where a single value crosses, as soon as enough bytes are saved before the cut.
    fn cut_where_narrow(&self, part: Range<usize>, cuts: &mut Vec<usize>) {
        let least = self.saved[self.fingerprints.len()] / MOST_OTHERS;
        let mut from = part.start;
        for at in part.filter(|&at| self.is_inside(at)) {
            if self.crossing[at] == 1 && self.saved[at] - self.saved[from] >= least.max(1) {
                cuts.push(at);
                from = at;
            }
        }
    }
}

/// The prefix sums of numbers.
fn sums(numbers: &[i64]) -> impl Iterator<Item = i64> {
    numbers.iter().scan(0, |sum, number| {
        *sum += number;
        Some(*sum)
    })
}
