//! What is known of a step before it runs.

use plimsoll_memory::Site;

/// The trace of a step that kept everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The ops in the order in which they ran, forward, backward and update alike.
    pub records: Vec<Record>,
    /// The values that they made, in the order of making.
    pub values: Vec<Value>,
    /// Where values can be moved to; nothing if they cannot.
    pub depot: Option<Depot>,
}

/// Where values can wait outside the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depot {
    /// The bytes that it has room for.
    pub room: u64,
    /// The bytes that move there, or back, in a microsecond.
    pub rate: u64,
    /// Whether values move while ops run.
    pub is_beside: bool,
}

/// One op of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Stands for the op and the shapes that it saw.
    pub fingerprint: u64,
    /// What it reads.
    pub inputs: Vec<Input>,
    /// The numbers of the values that it makes, outputs before extras; they are consecutive.
    pub first_value: u32,
    /// How many values it makes.
    pub n_values: u32,
    /// How many of them are outputs; the others, extras, are made again only where one of them is asked for.
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

/// The bytes in use when everything is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// When the op is about to begin.
    pub start: u64,
    /// The most since the end of the op before, up to the end of this one.
    pub peak: u64,
}

/// What a record reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A value of the step.
    Value(u32),
    /// Something that is there for the whole step: a parameter, the batch.
    Lasting,
    /// Something from outside that was gone before the step ended: what reads it cannot be repeated.
    Passing,
}

/// One value of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The record that makes it.
    pub record: u32,
    /// Its bytes as the pool rounds them.
    pub bytes: u64,
    /// The position from which backward alone holds it; nothing if it never does.
    pub alone_from: Option<u32>,
    /// The positions before which backward asks for it, in order.
    pub fetches: Vec<u32>,
    /// The position from which it is gone when everything is kept.
    pub gone_from: u32,
}

impl Trace {
    /// The bytes of the heap that it takes, roughly.
    pub fn heap_bytes(&self) -> usize {
        let inputs: usize = self.records.iter().map(|record| record.inputs.len()).sum();
        let fetches: usize = self.values.iter().map(|value| value.fetches.len()).sum();
        self.records.len() * size_of::<Record>()
            + inputs * size_of::<Input>()
            + self.values.len() * size_of::<Value>()
            + fetches * size_of::<u32>()
    }

    /// Takes up what may be away on another device in the same step: the traces differ in which values a plan is about.
    pub fn join(&mut self, other: &Trace) {
        for (ours, theirs) in self.values.iter_mut().zip(&other.values) {
            ours.alone_from = ours.alone_from.or(theirs.alone_from);
        }
    }

    /// The most bytes in use when everything is kept.
    pub fn natural_peak(&self) -> u64 {
        self.records.iter().map(|record| record.at.peak).max().unwrap_or(0)
    }

    /// The time of the step when everything is kept.
    pub fn natural_time(&self) -> u64 {
        self.records.iter().map(|record| record.time).sum()
    }

    /// The values of a record.
    pub(crate) fn values_of(&self, record: u32) -> impl Iterator<Item = u32> {
        let record = &self.records[record as usize];
        record.first_value..record.first_value + record.n_values
    }
}

impl Value {
    /// Whether backward alone holds the value at a position and does not ask for it there: it could be away.
    pub(crate) fn may_be_away(&self, position: u32) -> bool {
        self.alone_from.is_some_and(|from| from <= position)
            && self.fetches.last().is_some_and(|&last| position < last)
            && !self.fetches.contains(&position)
    }

    /// The next position, from this one on, at which backward asks for the value.
    pub(crate) fn next_fetch(&self, position: u32) -> Option<u32> {
        self.fetches.iter().copied().find(|&fetch| fetch >= position)
    }
}
