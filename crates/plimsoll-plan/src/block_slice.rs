//! Blocks as steps of their own: the forward ops of some neighbouring blocks, a bottleneck, and the ops of their backward.
//!
//! Values from earlier blocks that these read are entries: an entry exists until backward has fetched it for the last time,
//! and recomputing it costs more than anything else. The bytes in use are those of the step, less those that earlier blocks
//! save for backward. The bottleneck stands for the rest of the step, which runs between forward and backward; memory can
//! be demanded for it there.

use std::ops::Range;

use crate::blocks::Block;
use crate::greedy::MIN_EVICT_BYTES;
use crate::{Input, Position, Record, Trace, Value};

/// A few blocks of a step, with nothing around them.
pub(crate) struct BlockSlice {
    /// Entries, forward, the bottleneck, backward. Values are entries first, then those of forward.
    pub trace: Trace,
    /// The bytes saved for backward at the bottleneck if everything is retained.
    pub bytes: u64,
    /// The number in the step of the first value of forward.
    pub first_value: u32,
    /// How many entries there are, which come before the values of forward.
    pub n_entries: u32,
    /// The position between forward and backward.
    bottleneck: usize,
}

impl BlockSlice {
    /// Slices neighbouring blocks out of a step in which earlier blocks save `before` bytes for backward.
    pub fn new(trace: &Trace, blocks: &[Block], before: u64) -> BlockSlice {
        let forward = blocks[0].forward.start..blocks[blocks.len() - 1].forward.end;
        let backward = blocks[blocks.len() - 1].backward.start..blocks[0].backward.end;
        let first_value = trace.records[forward.start as usize].first_value;
        let entries = entries(trace, forward.clone(), first_value);
        let mut slice = BlockSlice {
            trace: Trace::default(),
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            first_value,
            n_entries: entries.len() as u32,
            bottleneck: entries.len() + forward.len(),
        };
        let less = |at: Position| Position {
            start: at.start.saturating_sub(before),
            peak: at.peak.saturating_sub(before),
        };
        for (at, &number) in entries.iter().enumerate() {
            let made = Record { first_value: at as u32, n_values: 1, n_outputs: 1, ..Record::default() };
            slice.trace.records.push(Record { time: trace.natural_time(), ..made });
            let value = slice.placed(&trace.values[number as usize], &forward, &backward);
            // It has no bytes here, so that it is never evicted.
            slice.trace.values.push(Value { record: at as u32, bytes: 0, backward_only_from: None, ..value });
        }
        for at in forward.clone() {
            let record = &trace.records[at as usize];
            let inputs = record.inputs.iter().map(|input| slice.input(*input, &entries)).collect();
            let first_value = slice.own(record.first_value);
            let record = Record { inputs, first_value, at: less(record.at), site: None, ..record.clone() };
            slice.trace.records.push(record);
            for number in trace.values_of(at) {
                let value = slice.placed(&trace.values[number as usize], &forward, &backward);
                slice.trace.values.push(value);
            }
        }
        let between = &trace.records[forward.end as usize..backward.start as usize];
        let time = between.iter().map(|record| record.time).sum();
        slice.trace.records.push(Record { time, ..Record::default() });
        for at in backward {
            let &Record { fingerprint, time, at, .. } = &trace.records[at as usize];
            slice.trace.records.push(Record { fingerprint, time, at: less(at), ..Record::default() });
        }
        slice
    }

    /// The number in the slice of a value of forward.
    fn own(&self, number: u32) -> u32 {
        number.saturating_sub(self.first_value) + self.n_entries
    }

    fn input(&self, input: Input, entries: &[u32]) -> Input {
        match input {
            Input::Value(number) if number >= self.first_value => Input::Value(self.own(number)),
            Input::Value(number) => {
                entries.binary_search(&number).map_or(Input::Persistent, |entry| Input::Value(entry as u32))
            }
            other => other,
        }
    }

    /// A value with its positions in the slice. One that is read outside the blocks cannot be evicted here.
    fn placed(&self, value: &Value, forward: &Range<u32>, backward: &Range<u32>) -> Value {
        let bottleneck = self.bottleneck as u32;
        let place = |position: u32| match position {
            _ if position <= forward.end => position.saturating_sub(forward.start) + self.n_entries,
            _ if position < backward.start => bottleneck,
            _ => bottleneck + 1 + (position.min(backward.end) - backward.start),
        };
        let is_own = |from: &u32| (forward.start + 1..=forward.end).contains(from);
        Value {
            record: place(value.record),
            bytes: value.bytes,
            backward_only_from: value.backward_only_from.filter(is_own).map(place),
            fetches: value
                .fetches
                .iter()
                .filter(|fetch| backward.contains(fetch))
                .map(|&fetch| place(fetch))
                .collect(),
            dead_from: place(value.dead_from),
        }
    }

    /// The values that can be evicted.
    pub fn own_values(&self) -> Vec<u32> {
        let values = (0u32..).zip(&self.trace.values);
        let can_be_evicted = |value: &Value| {
            value.bytes >= MIN_EVICT_BYTES && value.backward_only_from.is_some() && !value.fetches.is_empty()
        };
        values.filter(|(_, value)| can_be_evicted(value)).map(|(number, _)| number).collect()
    }

    /// Demands that under a target no more than `held` bytes are saved at the bottleneck: the rest of the target is in use
    /// there.
    pub fn demand(&mut self, held: u64, target: u64) {
        self.trace.records[self.bottleneck].at.peak = self.bytes + target.saturating_sub(held);
    }

    /// Demands nothing at the bottleneck.
    pub fn demand_nothing(&mut self) {
        self.trace.records[self.bottleneck].at.peak = 0;
    }

    /// What distinguishes blocks, apart from the bytes in use around them.
    pub fn key(&self) -> Vec<u64> {
        let mut key = vec![u64::from(self.n_entries), self.bottleneck as u64, self.bytes];
        for record in &self.trace.records {
            let inputs = record.inputs.iter().map(|input| match *input {
                Input::Value(number) => u64::from(number),
                Input::Persistent => u64::MAX,
                Input::Transient => u64::MAX - 1,
            });
            key.extend([record.fingerprint, record.n_values.into(), record.inputs.len() as u64]);
            key.extend(inputs);
        }
        for value in &self.trace.values {
            key.extend([
                value.bytes,
                value.backward_only_from.map_or(u64::MAX, u64::from),
                value.dead_from.into(),
            ]);
            key.push(value.fetches.len() as u64);
            key.extend(value.fetches.iter().map(|&fetch| u64::from(fetch)));
        }
        key
    }

    /// How many more bytes are in use around these blocks than around equal ones, at most.
    pub fn more_than(&self, other: &BlockSlice) -> i64 {
        let pairs = self.trace.records.iter().zip(&other.trace.records);
        let differences = pairs
            .enumerate()
            .filter(|(at, _)| *at >= self.n_entries as usize && *at != self.bottleneck)
            .map(|(_, (own, other))| own.at.peak as i64 - other.at.peak as i64);
        differences.max().unwrap_or(0)
    }
}

/// The values of earlier blocks that forward reads.
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
