//! Networks on paper: their traces, and an executor that follows decisions and counts bytes, written independently of the
//! planner's own simulation.

pub mod nets;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_plan::{Decisions, Input, OffloadStore, Position, Record, Trace, Value};

/// A forward op: what it reads, what it makes, how long it takes, and which values its backward reads.
#[derive(Clone, Debug)]
pub struct Node {
    pub inputs: Vec<u32>,
    pub bytes: u64,
    pub time: u64,
    /// Forward values, by number, that it saves for backward.
    pub saves: Vec<u32>,
}

/// A network as a list of forward ops; each makes one value.
#[derive(Clone, Debug, Default)]
pub struct Net {
    pub nodes: Vec<Node>,
    /// What is in use all the time.
    pub fixed: u64,
    /// Where values can be offloaded to.
    pub offload_store: Option<OffloadStore>,
}

impl Net {
    /// Adds an op that saves its inputs, as a matrix product does; returns its value.
    pub fn product(&mut self, inputs: &[u32], bytes: u64, time: u64) -> u32 {
        self.op(inputs, bytes, time, inputs.to_vec())
    }

    /// Adds an op that saves its output, as an activation does; returns its value.
    pub fn activation(&mut self, input: u32, time: u64) -> u32 {
        let (number, bytes) = (self.nodes.len() as u32, self.nodes[input as usize].bytes);
        self.op(&[input], bytes, time, vec![number])
    }

    pub fn op(&mut self, inputs: &[u32], bytes: u64, time: u64, saves: Vec<u32>) -> u32 {
        self.nodes.push(Node { inputs: inputs.to_vec(), bytes, time, saves });
        self.nodes.len() as u32 - 1
    }

    /// The values that forward makes, and where backward fetches them.
    fn forward_values(&self) -> Vec<Value> {
        let n = self.nodes.len();
        let last_read = |number: usize| {
            self.nodes.iter().rposition(|node| node.inputs.contains(&(number as u32))).unwrap_or(number)
        };
        let mut values: Vec<Value> = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let readers = (0..n).filter(|&at| self.nodes[at].saves.contains(&(number as u32)));
            let mut fetches: Vec<u32> = readers.map(|at| (2 * n - 1 - at) as u32).collect();
            fetches.sort_unstable();
            let free_in_forward = last_read(number) as u32 + 1;
            let dead_from = fetches.last().map_or(free_in_forward, |&last| last + 1);
            let backward_only_from = (!fetches.is_empty()).then_some(free_in_forward);
            values.push(Value {
                record: number as u32,
                bytes: node.bytes,
                backward_only_from,
                fetches,
                dead_from,
            });
        }
        values
    }

    /// The trace of a step: forward in order, backward in reverse; the gradient of a value lives from its first reader's
    /// backward to its maker's.
    pub fn trace(&self) -> Trace {
        let n = self.nodes.len();
        let mut values = self.forward_values();
        let inputs = |node: &Node| match node.inputs.is_empty() {
            true => vec![Input::Persistent],
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
            let read = self.nodes[at].saves.iter().map(|&number| Input::Value(number)).collect();
            let first_value = values.len() as u32;
            values.push(Value { record, bytes, dead_from: record + 2, ..Value::default() });
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
        let mut trace = Trace { records, values, offload_store: self.offload_store };
        let levels = Execution::new(&trace, self.fixed, &Decisions::default()).run();
        for (record, at) in trace.records.iter_mut().zip(levels.at) {
            record.at = at;
        }
        trace
    }
}

/// What executing decisions showed.
pub struct Outcome {
    pub at: Vec<Position>,
    pub peak: u64,
    pub extra_time: u64,
}

/// Executes decisions as a rematerialised program does.
pub struct Execution<'a> {
    trace: &'a Trace,
    fixed: u64,
    decisions: &'a Decisions,
    /// Values that exist, with whether they are retained for backward.
    live: BTreeMap<u32, bool>,
    /// Those of them that were prefetched.
    prefetched: BTreeSet<u32>,
    /// The time that has passed.
    now: u64,
    /// When the offload of each value ends, until its block is freed for the first time.
    offloaded_at: BTreeMap<u32, u64>,
    /// When the reload of each prefetched value ends.
    reloaded_at: BTreeMap<u32, u64>,
    /// When the link is free in each direction.
    link_free_at: [u64; 2],
    peak: u64,
}

impl<'a> Execution<'a> {
    pub fn new(trace: &'a Trace, fixed: u64, decisions: &'a Decisions) -> Execution<'a> {
        Execution {
            trace,
            fixed,
            decisions,
            live: BTreeMap::new(),
            prefetched: BTreeSet::new(),
            now: 0,
            offloaded_at: BTreeMap::new(),
            reloaded_at: BTreeMap::new(),
            link_free_at: [0; 2],
            peak: 0,
        }
    }

    fn in_use(&self) -> u64 {
        let bytes = self.live.keys().map(|&number| self.trace.values[number as usize].bytes);
        self.fixed + bytes.sum::<u64>()
    }

    pub fn run(mut self) -> Outcome {
        let mut at = Vec::new();
        for position in 0..self.trace.records.len() as u32 {
            self.free_dead(position);
            let before = self.in_use();
            let mut transient = BTreeSet::new();
            for number in 0..self.trace.values.len() as u32 {
                if self.trace.values[number as usize].fetches.contains(&position) {
                    self.fetch(number, position, &mut transient);
                }
            }
            for number in 0..self.trace.values.len() as u32 {
                if self.decisions.evicted_before.contains(&(position, number)) {
                    self.evict(number);
                }
            }
            for &(_, number) in self.decisions.prefetched.iter().filter(|(at, _)| *at == position) {
                assert!(self.is_offloaded(number, position), "value {number} is not offloaded");
                let arrival = self.transfer(number, 1);
                self.reloaded_at.insert(number, arrival);
                self.live.insert(number, true);
                self.prefetched.insert(number);
            }
            let start = self.in_use();
            let record = &self.trace.records[position as usize];
            for number in record.first_value..record.first_value + record.n_values {
                self.live.insert(number, !self.decisions.evicted.get(number as usize).unwrap_or(&false));
            }
            let peak = self.in_use() + record.workspace;
            self.peak = self.peak.max(peak);
            at.push(Position { start, peak: peak.max(before) });
            self.now += record.time;
            for number in record.first_value..record.first_value + record.n_values {
                if self.decisions.offloaded.get(number as usize) == Some(&true) {
                    let arrival = self.transfer(number, 0);
                    self.offloaded_at.insert(number, arrival);
                }
            }
            transient.iter().for_each(|&number| self.evict(number));
            let released = self.decisions.evicted_after.iter().filter(|(at, _)| *at == position);
            released.for_each(|&(_, number)| self.evict(number));
        }
        Outcome { at, peak: self.peak, extra_time: self.now - self.trace.natural_time() }
    }

    /// Frees the block of a value; the first time, its offload must have ended.
    fn evict(&mut self, number: u32) {
        self.live.remove(&number);
        self.now = self.now.max(self.offloaded_at.remove(&number).unwrap_or(0));
    }

    /// Transfers a value in one direction; returns when that ends.
    fn transfer(&mut self, number: u32, direction: usize) -> u64 {
        let store = self.trace.offload_store.expect("values are offloaded to a store");
        let duration = self.trace.values[number as usize].bytes * 1000 / store.bytes_per_us;
        let arrival = self.now.max(self.link_free_at[direction]) + duration;
        self.link_free_at[direction] = arrival;
        if !store.overlaps {
            self.now = arrival;
        }
        arrival
    }

    /// Frees what nothing needs any more.
    fn free_dead(&mut self, position: u32) {
        let is_needed = |number: u32, retained: bool| {
            let value = &self.trace.values[number as usize];
            let is_referenced = value.backward_only_from.unwrap_or(value.dead_from) > position;
            value.dead_from > position && (is_referenced || retained)
        };
        let live = self.live.iter().map(|(&number, &retained)| (number, retained));
        let dead: Vec<u32> = live
            .filter(|&(number, retained)| !is_needed(number, retained))
            .map(|(number, _)| number)
            .collect();
        dead.into_iter().for_each(|number| self.evict(number));
    }

    /// Whether a value is offloaded and not resident.
    fn is_offloaded(&self, number: u32, position: u32) -> bool {
        self.decisions.offloaded.get(number as usize) == Some(&true)
            && !self.live.contains_key(&number)
            && self.trace.values[number as usize].dead_from > position
    }

    /// Reloads a value that was offloaded.
    fn reload(&mut self, number: u32, position: u32) {
        let arrival = self.transfer(number, 1);
        self.now = self.now.max(arrival);
        self.live.insert(number, self.decisions.retained.contains(&(position, number)));
        self.peak = self.peak.max(self.in_use());
    }

    /// The records that lead to a value, in order, and those of them that only reload the value that they made.
    fn chain(&self, target: u32, position: u32) -> (Vec<u32>, BTreeMap<u32, u32>) {
        let mut chain = BTreeSet::new();
        // Values of one op each: the record that made a value stands for its reload.
        let mut offloaded = BTreeMap::new();
        let mut open = vec![target];
        while let Some(number) = open.pop() {
            if self.is_offloaded(number, position) {
                offloaded.insert(self.trace.values[number as usize].record, number);
                chain.insert(self.trace.values[number as usize].record);
                continue;
            }
            let record = self.trace.values[number as usize].record;
            if chain.insert(record) {
                for input in &self.trace.records[record as usize].inputs {
                    match *input {
                        Input::Value(input) if !self.live.contains_key(&input) => open.push(input),
                        Input::Transient => panic!("value {number} cannot be recomputed"),
                        _ => {}
                    }
                }
            }
        }
        (chain.into_iter().collect(), offloaded)
    }

    /// Backward fetches a value: it is resident, or is reloaded, or its chain is recomputed.
    fn fetch(&mut self, target: u32, position: u32, transient: &mut BTreeSet<u32>) {
        if self.live.contains_key(&target) {
            self.now = self.now.max(self.reloaded_at.remove(&target).unwrap_or(0));
            if self.prefetched.remove(&target) && !self.decisions.retained.contains(&(position, target)) {
                transient.insert(target);
            }
            return;
        }
        let (chain, offloaded) = self.chain(target, position);
        for (at, &record) in chain.iter().enumerate() {
            let made = &self.trace.records[record as usize];
            if let Some(&number) = offloaded.get(&record) {
                self.reload(number, position);
            } else {
                self.now += made.time;
                for number in made.first_value..made.first_value + made.n_outputs {
                    let stays = self.decisions.retained.contains(&(position, number));
                    self.live.insert(number, stays);
                }
                self.peak = self.peak.max(self.in_use() + made.workspace);
            }
            let read_later = |number: u32| {
                let later = chain[at + 1..].iter();
                later
                    .filter(|record| !offloaded.contains_key(record))
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
                    number != target && self.live.get(&number) == Some(&false) && !read_later(number)
                })
                .collect();
            done.iter().for_each(|number| _ = self.live.remove(number));
        }
        if self.live.get(&target) == Some(&false) {
            transient.insert(target);
        }
    }
}
