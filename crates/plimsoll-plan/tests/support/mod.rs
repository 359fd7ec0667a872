//! Networks on paper: their traces, and an executor that follows decisions and counts bytes, written independently of the
//! planner's own simulation.

pub mod nets;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_plan::{Decisions, Depot, Input, Position, Record, Trace, Value};

/// A forward op: what it reads, what it makes, how long it takes, and which values its backward reads.
#[derive(Clone, Debug)]
pub struct Node {
    pub inputs: Vec<u32>,
    pub bytes: u64,
    pub time: u64,
    /// Forward values, by number, that backward asks for.
    pub keeps: Vec<u32>,
}

/// A network as a list of forward ops; each makes one value.
#[derive(Clone, Debug, Default)]
pub struct Net {
    pub nodes: Vec<Node>,
    /// What is in use all the time.
    pub fixed: u64,
    /// Where values can be moved to.
    pub depot: Option<Depot>,
}

impl Net {
    /// Adds an op that keeps its inputs, as a matrix product does; returns its value.
    pub fn product(&mut self, inputs: &[u32], bytes: u64, time: u64) -> u32 {
        self.op(inputs, bytes, time, inputs.to_vec())
    }

    /// Adds an op that keeps its output, as an activation does; returns its value.
    pub fn activation(&mut self, input: u32, time: u64) -> u32 {
        let (number, bytes) = (self.nodes.len() as u32, self.nodes[input as usize].bytes);
        self.op(&[input], bytes, time, vec![number])
    }

    pub fn op(&mut self, inputs: &[u32], bytes: u64, time: u64, keeps: Vec<u32>) -> u32 {
        self.nodes.push(Node { inputs: inputs.to_vec(), bytes, time, keeps });
        self.nodes.len() as u32 - 1
    }

    /// The trace of a step: forward in order, backward in reverse; the gradient of a value lives from its first reader's
    /// backward to its maker's.
    pub fn trace(&self) -> Trace {
        let n = self.nodes.len();
        let last_read = |number: usize| {
            self.nodes.iter().rposition(|node| node.inputs.contains(&(number as u32))).unwrap_or(number)
        };
        let mut values: Vec<Value> = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let readers = (0..n).filter(|&at| self.nodes[at].keeps.contains(&(number as u32)));
            let mut fetches: Vec<u32> = readers.map(|at| (2 * n - 1 - at) as u32).collect();
            fetches.sort_unstable();
            let free_in_forward = last_read(number) as u32 + 1;
            let gone_from = fetches.last().map_or(free_in_forward, |&last| last + 1);
            let alone_from = (!fetches.is_empty()).then_some(free_in_forward);
            values.push(Value { record: number as u32, bytes: node.bytes, alone_from, fetches, gone_from });
        }
        let inputs = |node: &Node| match node.inputs.is_empty() {
            true => vec![Input::Lasting],
            false => node.inputs.iter().map(|&input| Input::Value(input)).collect(),
        };
        // Ops with the same costs that read and make as many bytes are alike.
        let fingerprint = |node: &Node| {
            let read = node.inputs.iter().map(|&input| self.nodes[input as usize].bytes);
            read.chain([node.bytes, node.time]).fold(17, |hash: u64, word| hash.wrapping_mul(31) + word)
        };
        let mut records: Vec<Record> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            records.push(Record {
                fingerprint: fingerprint(node),
                inputs: inputs(node),
                first_value: at as u32,
                n_values: 1,
                n_outputs: 1,
                time: node.time,
                ..Record::default()
            });
        }
        for at in (0..n).rev() {
            // The gradient that an op's backward makes has the bytes of its inputs together.
            let bytes = self.nodes[at].inputs.iter().map(|&input| self.nodes[input as usize].bytes).sum();
            let record = records.len() as u32;
            let read = self.nodes[at].keeps.iter().map(|&number| Input::Value(number)).collect();
            let first_value = values.len() as u32;
            values.push(Value { record, bytes, gone_from: record + 2, ..Value::default() });
            records.push(Record {
                fingerprint: !fingerprint(&self.nodes[at]),
                inputs: read,
                first_value,
                n_values: 1,
                n_outputs: 1,
                time: 2 * self.nodes[at].time,
                ..Record::default()
            });
        }
        let mut trace = Trace { records, values, depot: self.depot };
        let levels = Execution::new(&trace, self.fixed, &Decisions::default()).run();
        for (record, at) in trace.records.iter_mut().zip(levels.at) {
            record.at = at;
        }
        trace
    }
}

/// What following decisions showed.
pub struct Outcome {
    pub at: Vec<Position>,
    pub peak: u64,
    pub extra_time: u64,
}

/// Follows decisions as a journal does.
pub struct Execution<'a> {
    trace: &'a Trace,
    fixed: u64,
    decisions: &'a Decisions,
    /// Values that exist, with whether backward's list holds them.
    living: BTreeMap<u32, bool>,
    /// Those of them that were brought back before backward asked for them.
    prefetched: BTreeSet<u32>,
    /// The time that has passed.
    now: u64,
    /// When each value that goes out has arrived, until its block is let go for the first time.
    out_at: BTreeMap<u32, u64>,
    /// When each value that was asked back early arrives.
    back_at: BTreeMap<u32, u64>,
    /// When the ways out and back are free.
    ways_free_at: [u64; 2],
    peak: u64,
}

impl<'a> Execution<'a> {
    pub fn new(trace: &'a Trace, fixed: u64, decisions: &'a Decisions) -> Execution<'a> {
        Execution {
            trace,
            fixed,
            decisions,
            living: BTreeMap::new(),
            prefetched: BTreeSet::new(),
            now: 0,
            out_at: BTreeMap::new(),
            back_at: BTreeMap::new(),
            ways_free_at: [0; 2],
            peak: 0,
        }
    }

    fn in_use(&self) -> u64 {
        let bytes = self.living.keys().map(|&number| self.trace.values[number as usize].bytes);
        self.fixed + bytes.sum::<u64>()
    }

    pub fn run(mut self) -> Outcome {
        let mut at = Vec::new();
        for position in 0..self.trace.records.len() as u32 {
            self.forget(position);
            let before = self.in_use();
            let mut passing = BTreeSet::new();
            for number in 0..self.trace.values.len() as u32 {
                if self.trace.values[number as usize].fetches.contains(&position) {
                    self.fetch(number, position, &mut passing);
                }
            }
            for number in 0..self.trace.values.len() as u32 {
                if self.decisions.released_before.contains(&(position, number)) {
                    self.let_go(number);
                }
            }
            for &(_, number) in self.decisions.prefetched.iter().filter(|(at, _)| *at == position) {
                assert!(self.is_away(number, position), "value {number} is not away");
                let arrival = self.travel(number, 1);
                self.back_at.insert(number, arrival);
                self.living.insert(number, true);
                self.prefetched.insert(number);
            }
            let start = self.in_use();
            let record = &self.trace.records[position as usize];
            for number in record.first_value..record.first_value + record.n_values {
                self.living.insert(number, !self.decisions.dropped.get(number as usize).unwrap_or(&false));
            }
            let peak = self.in_use() + record.workspace;
            self.peak = self.peak.max(peak);
            at.push(Position { start, peak: peak.max(before) });
            self.now += record.time;
            for number in record.first_value..record.first_value + record.n_values {
                if self.decisions.offloaded.get(number as usize) == Some(&true) {
                    let arrival = self.travel(number, 0);
                    self.out_at.insert(number, arrival);
                }
            }
            passing.iter().for_each(|&number| self.let_go(number));
            let released = self.decisions.released_after.iter().filter(|(at, _)| *at == position);
            released.for_each(|&(_, number)| self.let_go(number));
        }
        Outcome { at, peak: self.peak, extra_time: self.now - self.trace.natural_time() }
    }

    /// A value leaves memory; the first time, it must have arrived elsewhere if it is moved.
    fn let_go(&mut self, number: u32) {
        self.living.remove(&number);
        self.now = self.now.max(self.out_at.remove(&number).unwrap_or(0));
    }

    /// A value travels one way; returns when it arrives.
    fn travel(&mut self, number: u32, way: usize) -> u64 {
        let depot = self.trace.depot.expect("values are moved to a depot");
        let duration = self.trace.values[number as usize].bytes * 1000 / depot.rate;
        let arrival = self.now.max(self.ways_free_at[way]) + duration;
        self.ways_free_at[way] = arrival;
        if !depot.is_beside {
            self.now = arrival;
        }
        arrival
    }

    /// What nobody needs any more goes.
    fn forget(&mut self, position: u32) {
        let is_needed = |number: u32, kept: bool| {
            let value = &self.trace.values[number as usize];
            let handle = value.alone_from.unwrap_or(value.gone_from) > position;
            value.gone_from > position && (handle || kept)
        };
        let living = self.living.iter().map(|(&number, &kept)| (number, kept));
        let gone: Vec<u32> =
            living.filter(|&(number, kept)| !is_needed(number, kept)).map(|(number, _)| number).collect();
        gone.into_iter().for_each(|number| self.let_go(number));
    }

    /// Whether a value was moved, and is not here.
    fn is_away(&self, number: u32, position: u32) -> bool {
        self.decisions.offloaded.get(number as usize) == Some(&true)
            && !self.living.contains_key(&number)
            && self.trace.values[number as usize].gone_from > position
    }

    /// Brings a value back that was moved.
    fn bring(&mut self, number: u32, position: u32) {
        let arrival = self.travel(number, 1);
        self.now = self.now.max(arrival);
        self.living.insert(number, self.decisions.retained.contains(&(position, number)));
        self.peak = self.peak.max(self.in_use());
    }

    /// The records that lead to a value, in order, and those of them that only bring back the value that they made.
    fn chain(&self, target: u32, position: u32) -> (Vec<u32>, BTreeMap<u32, u32>) {
        let mut chain = BTreeSet::new();
        // Values of one op each: the record that made a value stands for bringing it back.
        let mut moved = BTreeMap::new();
        let mut open = vec![target];
        while let Some(number) = open.pop() {
            if self.is_away(number, position) {
                moved.insert(self.trace.values[number as usize].record, number);
                chain.insert(self.trace.values[number as usize].record);
                continue;
            }
            let record = self.trace.values[number as usize].record;
            if chain.insert(record) {
                for input in &self.trace.records[record as usize].inputs {
                    match *input {
                        Input::Value(input) if !self.living.contains_key(&input) => open.push(input),
                        Input::Passing => panic!("value {number} has no recipe"),
                        _ => {}
                    }
                }
            }
        }
        (chain.into_iter().collect(), moved)
    }

    /// Backward asks for a value: it is there, or is brought back, or its chain runs again.
    fn fetch(&mut self, target: u32, position: u32, passing: &mut BTreeSet<u32>) {
        if self.living.contains_key(&target) {
            self.now = self.now.max(self.back_at.remove(&target).unwrap_or(0));
            if self.prefetched.remove(&target) && !self.decisions.retained.contains(&(position, target)) {
                passing.insert(target);
            }
            return;
        }
        let (chain, moved) = self.chain(target, position);
        for (at, &record) in chain.iter().enumerate() {
            let made = &self.trace.records[record as usize];
            if let Some(&number) = moved.get(&record) {
                self.bring(number, position);
            } else {
                self.now += made.time;
                for number in made.first_value..made.first_value + made.n_outputs {
                    let stays = self.decisions.retained.contains(&(position, number));
                    self.living.insert(number, stays);
                }
                self.peak = self.peak.max(self.in_use() + made.workspace);
            }
            let read_later = |number: u32| {
                let later = chain[at + 1..].iter();
                later
                    .filter(|record| !moved.contains_key(record))
                    .flat_map(|&record| &self.trace.records[record as usize].inputs)
                    .any(|input| *input == Input::Value(number))
            };
            let done: Vec<u32> = chain[..=at]
                .iter()
                .flat_map(|&record| {
                    self.trace.records[record as usize].first_value
                        ..=self.trace.records[record as usize].first_value
                })
                .filter(|&number| {
                    number != target && self.living.get(&number) == Some(&false) && !read_later(number)
                })
                .collect();
            done.iter().for_each(|number| _ = self.living.remove(number));
        }
        if self.living.get(&target) == Some(&false) {
            passing.insert(target);
        }
    }
}
