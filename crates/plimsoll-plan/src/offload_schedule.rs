//! Which values are offloaded while forward runs, and when each transfer ends.
//!
//! The link carries one value at a time and is far slower than forward makes values, so offloads are chosen for the whole
//! step before anything else is decided: the values whose recomputation takes the most time per byte, as many as arrive
//! before backward begins if the link is never idle. Whether one of them is evicted is up to the greedy planner; those that
//! are not are not offloaded either, and the others only arrive earlier.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Trace;
use crate::clock::transfer_time;

/// Smaller values are never offloaded: every transfer has a fixed cost, whatever its size.
pub(crate) const MIN_OFFLOAD_BYTES: u64 = 64 << 10;

/// The values whose offload can end before backward begins, and when each does, in the time of the step that retains
/// everything.
pub(crate) type OffloadSchedule = Arc<HashMap<u32, u64>>;

/// Chooses them; nothing without an offload store whose transfers overlap with compute.
pub(crate) fn offload_schedule(trace: &Trace) -> OffloadSchedule {
    let Some(store) = trace.offload_store.filter(|store| store.overlaps) else {
        return OffloadSchedule::default();
    };
    let mut made_at = Vec::with_capacity(trace.records.len());
    let mut now = 0;
    for record in &trace.records {
        now += record.time;
        made_at.push(now);
    }
    let first_fetch = |number: u32| {
        let value = &trace.values[number as usize];
        value.backward_only_from.and(value.fetches.first().copied())
    };
    let Some(backward) = (0..trace.values.len() as u32).filter_map(first_fetch).min() else {
        return OffloadSchedule::default();
    };
    let end = made_at[backward as usize] - trace.records[backward as usize].time;
    let mut candidates: Vec<u32> = (0..trace.values.len() as u32)
        .filter(|&number| {
            let value = &trace.values[number as usize];
            first_fetch(number).is_some() && value.record < backward && value.bytes >= MIN_OFFLOAD_BYTES
        })
        .collect();
    let cost = |number: u32| {
        let value = &trace.values[number as usize];
        trace.records[value.record as usize].time as f64 / value.bytes as f64
    };
    candidates.sort_by(|&a, &b| cost(b).total_cmp(&cost(a)).then(a.cmp(&b)));
    let mut chosen = Chosen { trace, made_at: &made_at, end, numbers: Vec::new() };
    let mut room = store.capacity;
    for number in candidates {
        let bytes = trace.values[number as usize].bytes;
        if bytes <= room && chosen.add(number) {
            room -= bytes;
        }
    }
    Arc::new(chosen.arrivals().collect())
}

/// Values that are transferred one after the other in the order in which they are made, all of which arrive in time.
struct Chosen<'a> {
    trace: &'a Trace,
    made_at: &'a [u64],
    end: u64,
    numbers: Vec<u32>,
}

impl Chosen<'_> {
    /// Adds a value if all still arrive in time.
    fn add(&mut self, number: u32) -> bool {
        let place = self.numbers.partition_point(|&other| other < number);
        self.numbers.insert(place, number);
        let is_in_time = self.arrivals().last().is_some_and(|(_, arrival)| arrival <= self.end);
        if !is_in_time {
            self.numbers.remove(place);
        }
        is_in_time
    }

    fn arrivals(&self) -> impl Iterator<Item = (u32, u64)> {
        self.numbers.iter().scan(0, |free_at, &number| {
            let made_at = self.made_at[self.trace.values[number as usize].record as usize];
            *free_at = made_at.max(*free_at) + transfer_time(self.trace, number);
            Some((number, *free_at))
        })
    }
}
