//! Blocks as steps of their own: the forward ops of some neighbouring blocks, a waist, and the ops of their backward.
//!
//! What the blocks read from before them is an entry: it is there until backward has asked for it for the last time, and
//! making it again costs more than anything else. The bytes in use are those of the step, less those that wait for
//! backward in earlier blocks. At the waist the rest of the step runs; there, room can be demanded for it.

use std::ops::Range;

use crate::blocks::Block;
use crate::simulation::LEAST_BYTES;
use crate::{Input, Position, Record, Trace, Value};

/// A few blocks of a step, with nothing around them.
pub(crate) struct Excerpt {
    /// Entries, forward, the waist, backward. Values are entries first, then those of forward.
    pub trace: Trace,
    /// The bytes that wait for backward at the waist if everything is kept.
    pub bytes: u64,
    /// The number in the step of the first value of forward.
    pub first_value: u32,
    /// How many entries there are, and values before those of forward.
    pub n_entries: u32,
    /// The position between forward and backward.
    waist: usize,
}

impl Excerpt {
    /// Takes neighbouring blocks out of a step in which `before` bytes wait for backward in earlier blocks.
    pub fn new(trace: &Trace, blocks: &[Block], before: u64) -> Excerpt {
        let forward = blocks[0].forward.start..blocks[blocks.len() - 1].forward.end;
        let backward = blocks[blocks.len() - 1].backward.start..blocks[0].backward.end;
        let first_value = trace.records[forward.start as usize].first_value;
        let entries = entries(trace, forward.clone(), first_value);
        let mut excerpt = Excerpt {
            trace: Trace::default(),
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            first_value,
            n_entries: entries.len() as u32,
            waist: entries.len() + forward.len(),
        };
        let less = |at: Position| Position {
            start: at.start.saturating_sub(before),
            peak: at.peak.saturating_sub(before),
        };
        for (at, &number) in entries.iter().enumerate() {
            let made = Record { first_value: at as u32, n_values: 1, n_outputs: 1, ..Record::default() };
            excerpt.trace.records.push(Record { time: trace.natural_time(), ..made });
            let value = excerpt.placed(&trace.values[number as usize], &forward, &backward);
            // It has no bytes here, so that nobody lets it go.
            excerpt.trace.values.push(Value { record: at as u32, bytes: 0, alone_from: None, ..value });
        }
        for at in forward.clone() {
            let record = &trace.records[at as usize];
            let inputs = record.inputs.iter().map(|input| excerpt.input(*input, &entries)).collect();
            let first_value = excerpt.own(record.first_value);
            let record = Record { inputs, first_value, at: less(record.at), site: None, ..record.clone() };
            excerpt.trace.records.push(record);
            for number in trace.values_of(at) {
                let value = excerpt.placed(&trace.values[number as usize], &forward, &backward);
                excerpt.trace.values.push(value);
            }
        }
        let meanwhile = &trace.records[forward.end as usize..backward.start as usize];
        let time = meanwhile.iter().map(|record| record.time).sum();
        excerpt.trace.records.push(Record { time, ..Record::default() });
        for at in backward {
            let &Record { fingerprint, time, at, .. } = &trace.records[at as usize];
            excerpt.trace.records.push(Record { fingerprint, time, at: less(at), ..Record::default() });
        }
        excerpt
    }

    /// The number of a value of forward here.
    fn own(&self, number: u32) -> u32 {
        number.saturating_sub(self.first_value) + self.n_entries
    }

    fn input(&self, input: Input, entries: &[u32]) -> Input {
        match input {
            Input::Value(number) if number >= self.first_value => Input::Value(self.own(number)),
            Input::Value(number) => {
                entries.binary_search(&number).map_or(Input::Lasting, |entry| Input::Value(entry as u32))
            }
            other => other,
        }
    }

    /// A value with its positions as they are here. One that is read beyond the blocks is not theirs to let go.
    fn placed(&self, value: &Value, forward: &Range<u32>, backward: &Range<u32>) -> Value {
        let waist = self.waist as u32;
        let place = |position: u32| match position {
            _ if position <= forward.end => position.saturating_sub(forward.start) + self.n_entries,
            _ if position < backward.start => waist,
            _ => waist + 1 + (position.min(backward.end) - backward.start),
        };
        let is_own = |from: &u32| (forward.start + 1..=forward.end).contains(from);
        Value {
            record: place(value.record),
            bytes: value.bytes,
            alone_from: value.alone_from.filter(is_own).map(place),
            fetches: value
                .fetches
                .iter()
                .filter(|fetch| backward.contains(fetch))
                .map(|&fetch| place(fetch))
                .collect(),
            gone_from: place(value.gone_from),
        }
    }

    /// The values that can be let go.
    pub fn own_values(&self) -> Vec<u32> {
        let values = (0u32..).zip(&self.trace.values);
        let can_go = |value: &Value| {
            value.bytes >= LEAST_BYTES && value.alone_from.is_some() && !value.fetches.is_empty()
        };
        values.filter(|(_, value)| can_go(value)).map(|(number, _)| number).collect()
    }

    /// Demands that under a target no more than so many bytes wait at the waist: the rest of the target is in use there.
    pub fn demand(&mut self, held: u64, target: u64) {
        self.trace.records[self.waist].at.peak = self.bytes + target.saturating_sub(held);
    }

    /// Demands nothing at the waist.
    pub fn demand_nothing(&mut self) {
        self.trace.records[self.waist].at.peak = 0;
    }

    /// What tells blocks from others, apart from the bytes in use around them.
    pub fn key(&self) -> Vec<u64> {
        let mut key = vec![u64::from(self.n_entries), self.waist as u64, self.bytes];
        for record in &self.trace.records {
            let inputs = record.inputs.iter().map(|input| match *input {
                Input::Value(number) => u64::from(number),
                Input::Lasting => u64::MAX,
                Input::Passing => u64::MAX - 1,
            });
            key.extend([record.fingerprint, record.n_values.into(), record.inputs.len() as u64]);
            key.extend(inputs);
        }
        for value in &self.trace.values {
            key.extend([value.bytes, value.alone_from.map_or(u64::MAX, u64::from), value.gone_from.into()]);
            key.push(value.fetches.len() as u64);
            key.extend(value.fetches.iter().map(|&fetch| u64::from(fetch)));
        }
        key
    }

    /// By how much more bytes are in use around these blocks than around equal ones, where it is most.
    pub fn more_than(&self, other: &Excerpt) -> i64 {
        let pairs = self.trace.records.iter().zip(&other.trace.records);
        let differences = pairs
            .enumerate()
            .filter(|(at, _)| *at >= self.n_entries as usize && *at != self.waist)
            .map(|(_, (own, other))| own.at.peak as i64 - other.at.peak as i64);
        differences.max().unwrap_or(0)
    }
}

/// The values that forward reads from before it.
fn entries(trace: &Trace, forward: Range<u32>, first_value: u32) -> Vec<u32> {
    let records = &trace.records[forward.start as usize..forward.end as usize];
    let inputs = records.iter().flat_map(|record| &record.inputs);
    let mut entries: Vec<u32> = inputs
        .filter_map(|input| match *input {
            Input::Value(number) if number < first_value => Some(number),
            _ => None,
        })
        .collect();
    entries.sort_unstable();
    entries.dedup();
    entries
}
