//! Which values travel out beside forward, and when each has arrived.
//!
//! The way out carries one value at a time and is far slower than forward makes values, so what it carries is chosen for the
//! whole step before anything is decided: the values that would take longest to compute again for their bytes, as many as
//! arrive before backward begins if the way is never idle. Whether one of them is let go is up to the walk; those that are
//! not stay at home, and the others only arrive earlier.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Trace;
use crate::clock::journey;

/// Smaller values are never moved: each journey takes its time, whatever it carries.
pub(crate) const LEAST_MOVED_BYTES: u64 = 64 << 10;

/// The values that can be out before backward begins, and when each is, in the time of the step that keeps everything.
pub(crate) type Outbound = Arc<HashMap<u32, u64>>;

/// Chooses them; nothing where there is no depot to which values move beside the work.
pub(crate) fn outbound(trace: &Trace) -> Outbound {
    let Some(depot) = trace.depot.filter(|depot| depot.is_beside) else { return Outbound::default() };
    let mut made_at = Vec::with_capacity(trace.records.len());
    let mut now = 0;
    for record in &trace.records {
        now += record.time;
        made_at.push(now);
    }
    let waits = |number: u32| {
        let value = &trace.values[number as usize];
        value.alone_from.and(value.fetches.first().copied())
    };
    let Some(turn) = (0..trace.values.len() as u32).filter_map(waits).min() else {
        return Outbound::default();
    };
    let end = made_at[turn as usize] - trace.records[turn as usize].time;
    let mut candidates: Vec<u32> = (0..trace.values.len() as u32)
        .filter(|&number| {
            let value = &trace.values[number as usize];
            waits(number).is_some() && value.record < turn && value.bytes >= LEAST_MOVED_BYTES
        })
        .collect();
    let cost = |number: u32| {
        let value = &trace.values[number as usize];
        trace.records[value.record as usize].time as f64 / value.bytes as f64
    };
    candidates.sort_by(|&a, &b| cost(b).total_cmp(&cost(a)).then(a.cmp(&b)));
    let mut chosen = Chosen { trace, made_at: &made_at, end, numbers: Vec::new() };
    let mut room = depot.room;
    for number in candidates {
        let bytes = trace.values[number as usize].bytes;
        if bytes <= room && chosen.add(number) {
            room -= bytes;
        }
    }
    Arc::new(chosen.arrivals().collect())
}

/// Values that travel one after the other in the order of their making, and all arrive in time.
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
            *free_at = made_at.max(*free_at) + journey(self.trace, number);
            Some((number, *free_at))
        })
    }
}
