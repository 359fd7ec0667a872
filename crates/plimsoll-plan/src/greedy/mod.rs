//! The greedy planner: decisions for one target, made op by op with the whole step analysis.
//!
//! Wherever the bytes in use would exceed the target, a value that only backward references is evicted: the one whose
//! recomputation costs least, per byte and per time until it is needed. Where backward fetches an evicted value, its chain
//! of ops is recomputed, within the target as well; values on the way that backward will fetch later are retained if there
//! is room. With an offload store, a value may be offloaded and reloaded instead, whichever is cheaper: one more strategy
//! to evict a value, and one more place where a chain may begin.
//!
//! Evicting a value between two of its uses is the same as never having retained it after the first, so the decision takes
//! effect there, which only lowers the bytes in between. A value whose offload overlaps with compute is the exception: its
//! transfer begins when it is made, and its block is freed where the memory is needed, and not before.
//!
//! The planner is greedy over one fixed order: it needs no structure in the graph, and it never reorders a step.

mod costs;
mod restore;

use std::collections::HashMap;

use self::costs::{Costs, Evictable};
use crate::clock::{Events, FirstEviction, step_time, transfer_time};
use crate::offload_schedule::{OffloadSchedule, offload_schedule};
use crate::prefetch::{Level, Reload, prefetched};
use crate::{Choice, Decisions, Input, Trace};

/// Smaller values are always retained: recomputing an op costs more than their bytes are worth.
pub(crate) const MIN_EVICT_BYTES: u64 = 4096;

/// What makes one value cheaper to evict than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// The weight of the reuse distance, the time until a value is needed again: at 0 only the cost per byte counts.
    pub distance_weight: f64,
    /// The weight of the time of transfers, relative to that of recomputation. Of transfers that overlap with compute, the
    /// time spent waiting counts in full whatever this is.
    pub offload_weight: f64,
}

/// Chooses what to evict so that no more than `target` bytes are in use at any moment; nothing if the planner cannot do
/// that.
pub fn decide(trace: &Trace, target: u64, weights: Weights) -> Option<Decisions> {
    TraceAnalysis::of(trace).decide(target, weights, &[])
}

/// Like [`decide`], with values that forward evicts in any case, if they can be recomputed: a [`Chain`](crate::Chain) says
/// which. What does not fit then is evicted as by [`decide`].
pub fn decide_with(trace: &Trace, target: u64, weights: Weights, prescribed: &[u32]) -> Option<Decisions> {
    TraceAnalysis::of(trace).decide(target, weights, prescribed)
}

/// What all decisions about a trace share.
pub(crate) struct TraceAnalysis<'a> {
    trace: &'a Trace,
    /// The values that are offloaded while forward runs.
    offload_schedule: OffloadSchedule,
}

impl<'a> TraceAnalysis<'a> {
    pub fn of(trace: &'a Trace) -> TraceAnalysis<'a> {
        TraceAnalysis { trace, offload_schedule: offload_schedule(trace) }
    }

    /// Like [`decide_with`].
    pub fn decide(&self, target: u64, weights: Weights, prescribed: &[u32]) -> Option<Decisions> {
        let mut planner = GreedyPlanner::new(self, target, weights);
        planner.prescribe(prescribed);
        for position in 0..self.trace.records.len() as u32 {
            planner.plan_op(position)?;
        }
        Some(planner.finish())
    }
}

/// Since when a value has been resident without being fetched.
#[derive(Clone, Copy)]
enum Since {
    /// It was computed.
    Computed,
    /// Backward fetched it at that position, so that the op there reads it.
    Fetched(u32),
    /// A chain that was recomputed before that position read it.
    Read(u32),
    /// It was restored at that position.
    Restored(u32),
}

/// How an evicted value is restored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strategy {
    /// Its ops are recomputed.
    Recompute,
    /// It is offloaded and reloaded.
    Offload,
}

/// The planner at one position of a step, with what it has decided so far.
struct GreedyPlanner<'a> {
    trace: &'a Trace,
    target: u64,
    weights: Weights,
    /// Whether a value can be recomputed from what persists.
    recomputable: Vec<bool>,
    /// Whether a value is resident, from the position on from which only backward references it.
    resident: Vec<bool>,
    since: Vec<Since>,
    /// The strategy of each value that was evicted.
    strategies: Vec<Option<Strategy>>,
    /// The bytes in use that are expected at each position.
    expected: Vec<Level>,
    /// The values that are reloaded for backward itself.
    reloads: Vec<Reload>,
    /// The position from which an evicted value is not resident.
    evicted_from: Vec<u32>,
    /// The values that are offloaded while forward runs.
    offload_schedule: OffloadSchedule,
    /// When the link is free for other offloads, as far as is decided, in the time of the step that retains everything.
    offload_free_at: u64,
    events: Events,
    /// The values that backward fetches before a position.
    fetched: HashMap<u32, Vec<u32>>,
    /// Values that may be evicted while they are resident, in the order in which they first could be.
    evictable: Evictable,
    /// The bytes of values that would be resident if everything were retained, and are not.
    evicted_bytes: u64,
    /// The time of all records before a position.
    time_before: Vec<u64>,
    /// Whether a value is evicted as soon as only backward references it, needed or not.
    prescribed: Vec<bool>,
    /// The values that only backward references from a position on, by position.
    becoming_backward_only: HashMap<u32, Vec<u32>>,
    /// Values that were restored before the present op without being retained; that is decided once per position.
    not_retained: Vec<u32>,
    /// Values that were restored for the present op alone.
    transient: Vec<u32>,
    /// Values that chains have read before the present op.
    read_here: Vec<u32>,
    n_recomputes: HashMap<u32, u32>,
    costs: Costs,
    decisions: Decisions,
}

impl<'a> GreedyPlanner<'a> {
    fn new(analysis: &TraceAnalysis<'a>, target: u64, weights: Weights) -> GreedyPlanner<'a> {
        let trace = analysis.trace;
        let (mut fetched, mut becoming_backward_only) = (HashMap::new(), HashMap::new());
        for (number, value) in trace.values.iter().enumerate() {
            let Some(from) = value.backward_only_from.filter(|_| !value.fetches.is_empty()) else { continue };
            becoming_backward_only.entry(from).or_insert_with(Vec::new).push(number as u32);
            for &position in &value.fetches {
                fetched.entry(position).or_insert_with(Vec::new).push(number as u32);
            }
        }
        let mut time_before = vec![0];
        for record in &trace.records {
            time_before.push(time_before[time_before.len() - 1] + record.time);
        }
        let n = trace.values.len();
        GreedyPlanner {
            trace,
            target,
            weights,
            recomputable: recomputable(trace),
            resident: vec![true; n],
            since: vec![Since::Computed; n],
            strategies: vec![None; n],
            expected: vec![Level::default(); trace.records.len()],
            reloads: Vec::new(),
            evicted_from: vec![0; n],
            offload_schedule: analysis.offload_schedule.clone(),
            offload_free_at: analysis.offload_schedule.values().copied().max().unwrap_or(0),
            events: Events::default(),
            fetched,
            evictable: Evictable::new(n),
            evicted_bytes: 0,
            time_before,
            prescribed: vec![false; n],
            becoming_backward_only,
            not_retained: Vec::new(),
            transient: Vec::new(),
            read_here: Vec::new(),
            n_recomputes: HashMap::new(),
            costs: Costs::new(trace),
            decisions: Decisions {
                evicted: vec![false; n],
                offloaded: vec![false; n],
                ..Decisions::default()
            },
        }
    }

    /// Before planning begins: these values are not retained for backward.
    fn prescribe(&mut self, numbers: &[u32]) {
        numbers.iter().for_each(|&number| self.prescribed[number as usize] = true);
    }

    /// Plans one op, with what backward fetches before it.
    fn plan_op(&mut self, position: u32) -> Option<()> {
        if let Some(numbers) = self.becoming_backward_only.remove(&position) {
            let candidates: Vec<u32> = numbers.into_iter().filter(|&number| self.may_evict(number)).collect();
            for &number in &candidates {
                let can_be_evicted = self.prescribed[number as usize] && self.recomputable[number as usize];
                if can_be_evicted && self.trace.values[number as usize].may_be_evicted(position) {
                    self.evict(number, Strategy::Recompute, position);
                }
            }
            candidates.into_iter().for_each(|number| self.evictable.add(number));
        }
        let fetched = self.fetched.remove(&position).unwrap_or_default();
        for &number in &fetched {
            if !self.resident[number as usize] {
                self.restore(number, position)?;
            } else {
                self.since[number as usize] = Since::Fetched(position);
            }
        }
        let peak = self.trace.records[position as usize].at.peak;
        while peak.saturating_sub(self.evicted_bytes) > self.target {
            let (number, strategy) = self.cheapest(position, &[])?;
            self.evict(number, strategy, position);
        }
        self.expected[position as usize].op = peak - self.evicted_bytes.min(peak);
        self.not_retained.clear();
        for number in std::mem::take(&mut self.transient) {
            self.resident[number as usize] = false;
            self.evicted_bytes += self.trace.values[number as usize].bytes;
        }
        self.read_here.clear();
        for number in fetched {
            if self.trace.values[number as usize].fetches.last() == Some(&position) {
                self.evictable.remove(number);
            }
        }
        Some(())
    }

    /// Evicts a value until its next use, because its bytes are needed at a position.
    fn evict(&mut self, number: u32, strategy: Strategy, position: u32) {
        let is_first_offload =
            self.strategies[number as usize].replace(strategy).is_none() && strategy == Strategy::Offload;
        let since = self.since[number as usize];
        if is_first_offload {
            self.offload(number, since, position);
        }
        let backward_only_from = self.trace.values[number as usize].backward_only_from.unwrap_or(0);
        let overlaps = self.trace.offload_store.is_some_and(|store| store.overlaps);
        self.evicted_from[number as usize] = match since {
            // Its offload began when it was made.
            Since::Computed if is_first_offload && overlaps && backward_only_from < position => {
                self.decisions.evicted_after.insert((position - 1, number));
                position
            }
            Since::Computed => {
                self.decisions.evicted[number as usize] = true;
                backward_only_from + 1
            }
            Since::Fetched(at) => {
                self.decisions.evicted_after.insert((at, number));
                at + 1
            }
            Since::Read(at) => {
                self.decisions.evicted_before.insert((at, number));
                at + 1
            }
            Since::Restored(at) => {
                self.decisions.retained.remove(&(at, number));
                at + 1
            }
        };
        self.resident[number as usize] = false;
        self.evictable.remove(number);
        self.evicted_bytes += self.trace.values[number as usize].bytes;
    }

    /// Offloads a value, whose block is freed at a position or after its last use.
    fn offload(&mut self, number: u32, since: Since, position: u32) {
        let value = &self.trace.values[number as usize];
        self.decisions.offloaded[number as usize] = true;
        self.decisions.offloaded_bytes += value.bytes;
        self.offload_free_at = self.offload_free_at.max(self.offloaded_at(number));
        let (position, is_after_waits) = match since {
            Since::Computed => (position, false),
            Since::Read(at) => (at, true),
            Since::Fetched(at) | Since::Restored(at) => (at + 1, false),
        };
        self.events.evictions.push(FirstEviction { position, is_after_waits, number });
    }

    /// The values that forward evicts or offloads, with what each saves and costs.
    fn choices(&self) -> Vec<Choice> {
        let choice = |number: u32| {
            let value = &self.trace.values[number as usize];
            let record = &self.trace.records[value.record as usize];
            let is_offloaded = self.decisions.offloaded[number as usize];
            let n_recomputes = self.n_recomputes.get(&value.record).copied().unwrap_or(0);
            let time = match is_offloaded {
                true => 2 * transfer_time(self.trace, number),
                false => record.time * u64::from(n_recomputes),
            };
            Choice { site: record.site, bytes: value.bytes, is_offloaded, time }
        };
        self.decisions.not_retained().map(choice).collect()
    }

    fn finish(mut self) -> Decisions {
        let choices = self.choices();
        let mut recomputed: Vec<(u32, u32)> = self.n_recomputes.into_iter().collect();
        recomputed.sort_unstable();
        let expected_peak = self.expected.iter().map(Level::most).max().unwrap_or(0);
        let prefetched = prefetched(self.trace, &self.reloads, self.expected, self.target);
        self.events.prefetched.clone_from(&prefetched);
        let extra_time = step_time(self.trace, self.events) - self.trace.natural_time();
        Decisions { recomputed, prefetched, extra_time, expected_peak, choices, ..self.decisions }
    }
}

/// For each value, whether it can be recomputed wherever it is fetched: a chain of records leads to it from what persists, or
/// from values that are still there by then although they cannot be recomputed themselves, such as a copy from another device
/// that backward reads, too.
fn recomputable(trace: &Trace) -> Vec<bool> {
    let mut recomputable = vec![false; trace.values.len()];
    // The record from which on each value is neither there nor can be recomputed.
    let mut lost_from = vec![0; trace.values.len()];
    for (at, record) in trace.records.iter().enumerate() {
        let until = record.inputs.iter().map(|input| match *input {
            Input::Value(number) => lost_from[number as usize],
            Input::Persistent => u32::MAX,
            Input::Transient => 0,
        });
        let until = until.min().unwrap_or(u32::MAX);
        for number in trace.values_of(at as u32) {
            let value = &trace.values[number as usize];
            let can_be = until > value.fetches.last().copied().unwrap_or(0);
            recomputable[number as usize] = can_be;
            lost_from[number as usize] = if can_be { until } else { value.dead_from };
        }
    }
    recomputable
}
