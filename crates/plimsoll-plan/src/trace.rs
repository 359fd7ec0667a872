//! What is known of a step before it runs.

use plimsoll_memory::Site;

/// The trace of a step that retains every value it saves for backward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The ops in the order in which they ran, forward, backward and update alike.
    pub records: Vec<Record>,
    /// The values that they make, in that order.
    pub values: Vec<Value>,
    /// Where values can be offloaded to; nothing if they cannot.
    pub offload_store: Option<OffloadStore>,
}

/// Memory outside the device, usually the host's, to which values are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadStore {
    /// Its capacity in bytes.
    pub capacity: u64,
    /// The bandwidth in bytes per microsecond, in either direction.
    pub bytes_per_us: u64,
    /// Whether transfers overlap with compute.
    pub overlaps: bool,
}

/// One op of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Stands for the op and the shapes that it saw.
    pub fingerprint: u64,
    /// What it reads.
    pub inputs: Vec<Input>,
    /// The numbers of the values that it makes, outputs before auxiliary outputs; they are consecutive.
    pub first_value: u32,
    /// How many values it makes.
    pub n_values: u32,
    /// How many of them are outputs; the others, auxiliary outputs, are recomputed only where one of them is needed.
    pub n_outputs: u32,
    /// Scratch memory while it runs, in bytes as the pool rounds them.
    pub workspace: u64,
    /// The time that running it takes, by the cost model, in nanoseconds.
    pub time: u64,
    /// The bytes in use around it.
    pub at: Position,
    /// The op, its layer and line, for people to read.
    pub site: Option<Site>,
}

/// The bytes in use when everything is retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Just before the op begins.
    pub start: u64,
    /// The most from the end of the previous op to the end of this one.
    pub peak: u64,
}

/// What a record reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A value of the step.
    Value(u32),
    /// Something that exists for the whole step: a parameter, the batch.
    Persistent,
    /// Something from outside that does not last until the end of the step: what reads it cannot be recomputed.
    Transient,
}

/// One value of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The record that makes it.
    pub record: u32,
    /// Its bytes as the pool rounds them.
    pub bytes: u64,
    /// The position from which only backward references it; nothing if backward never does.
    pub backward_only_from: Option<u32>,
    /// The positions of the ops for which backward fetches it, in order.
    pub fetches: Vec<u32>,
    /// The position from which it is dead when everything is retained.
    pub dead_from: u32,
}

impl Trace {
    /// The heap bytes that it takes.
    pub fn heap_bytes(&self) -> usize {
        let inputs: usize = self.records.iter().map(|record| record.inputs.capacity()).sum();
        let fetches: usize = self.values.iter().map(|value| value.fetches.capacity()).sum();
        self.records.capacity() * size_of::<Record>()
            + inputs * size_of::<Input>()
            + self.values.capacity() * size_of::<Value>()
            + fetches * size_of::<u32>()
    }

    /// Adds the values of another device in the same step that may be evicted: traces of one step differ in which values a plan
    /// is about.
    pub fn join(&mut self, other: &Trace) {
        for (ours, theirs) in self.values.iter_mut().zip(&other.values) {
            ours.backward_only_from = ours.backward_only_from.or(theirs.backward_only_from);
        }
    }

    /// The peak of bytes in use when everything is retained.
    pub fn natural_peak(&self) -> u64 {
        self.records.iter().map(|record| record.at.peak).max().unwrap_or(0)
    }

    /// The time of the step when everything is retained.
    pub fn natural_time(&self) -> u64 {
        self.records.iter().map(|record| record.time).sum()
    }

    /// Stands for all that plans depend on: equal for equal traces, on every machine.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0xCBF2_9CE4_8422_2325);
        digest.add(self.records.len() as u64);
        for record in &self.records {
            let numbers = [record.first_value, record.n_values, record.n_outputs].map(u64::from);
            let bytes = [record.workspace, record.time, record.at.start, record.at.peak];
            digest.add(record.fingerprint);
            numbers.into_iter().chain(bytes).for_each(|word| digest.add(word));
            for input in &record.inputs {
                digest.add(match input {
                    Input::Persistent => 0,
                    Input::Transient => 1,
                    Input::Value(value) => 2 + u64::from(*value),
                });
            }
        }
        for value in &self.values {
            let from = value.backward_only_from.map_or(u64::MAX, u64::from);
            [u64::from(value.record), value.bytes, from, u64::from(value.dead_from)]
                .into_iter()
                .chain(value.fetches.iter().map(|&fetch| u64::from(fetch)))
                .for_each(|word| digest.add(word));
        }
        if let Some(OffloadStore { capacity, bytes_per_us, overlaps }) = self.offload_store {
            [capacity, bytes_per_us, u64::from(overlaps)].into_iter().for_each(|word| digest.add(word));
        }
        digest.0
    }

    /// The values of a record.
    pub(crate) fn values_of(&self, record: u32) -> impl Iterator<Item = u32> {
        let record = &self.records[record as usize];
        record.first_value..record.first_value + record.n_values
    }
}

/// A checksum of words: FNV's, with a rotation so that the high bits matter, too.
struct Digest(u64);

impl Digest {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }
}

impl Value {
    /// Whether only backward references the value at a position and does not fetch it there, so that it can be evicted.
    pub(crate) fn may_be_evicted(&self, position: u32) -> bool {
        self.backward_only_from.is_some_and(|from| from <= position)
            && self.fetches.last().is_some_and(|&last| position < last)
            && !self.fetches.contains(&position)
    }

    /// The next position, from this one on, at which backward fetches the value.
    pub(crate) fn next_fetch(&self, position: u32) -> Option<u32> {
        self.fetches.iter().copied().find(|&fetch| fetch >= position)
    }
}
