//! The time of a step: ops in their order, with transfers to the offload store and back.
//!
//! The link carries one value at a time in each direction. An offload begins when the value is made, and freeing the
//! value's block waits until the offload has ended; a reload begins where the plan prefetches it, or when backward fetches
//! the value, and backward waits until it has ended. So only the time spent waiting for a transfer counts. Where transfers
//! do not overlap with compute, all of it does.

use std::collections::HashMap;

use crate::Trace;

/// Something that backward waits for before the op at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A record is recomputed.
    Recompute(u32),
    /// A value is reloaded.
    Reload(u32),
}

/// Where the block of an offloaded value is freed for the first time: before the op at a position, and before or after
/// values are restored for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FirstEviction {
    pub position: u32,
    pub is_after_waits: bool,
    pub number: u32,
}

/// What happens in a step besides its own ops.
#[derive(Default)]
pub(crate) struct Events {
    /// In the order of positions.
    pub waits: Vec<(u32, Wait)>,
    /// One for each value that is offloaded.
    pub evictions: Vec<FirstEviction>,
    /// Values (position, number) whose reload begins when the op at a position begins, in the order of positions.
    pub prefetched: Vec<(u32, u32)>,
}

/// The time of a transfer of a value in one direction, in nanoseconds.
pub(crate) fn transfer_time(trace: &Trace, number: u32) -> u64 {
    let bytes_per_us = trace.offload_store.map_or(1, |store| store.bytes_per_us.max(1));
    trace.values[number as usize].bytes * 1000 / bytes_per_us
}

/// The time of a step, in nanoseconds.
pub(crate) fn step_time(trace: &Trace, mut events: Events) -> u64 {
    events.evictions.sort_unstable();
    let offloaded = events.evictions.iter().map(|eviction| (eviction.number, 0)).collect();
    let mut clock =
        Clock { trace, now: 0, offloaded_at: offloaded, reloaded_at: HashMap::new(), free_at: [0; 2] };
    let mut waits = events.waits.into_iter().peekable();
    let mut evictions = events.evictions.into_iter().peekable();
    let mut prefetched = events.prefetched.into_iter().peekable();
    for (position, record) in (0u32..).zip(&trace.records) {
        while let Some(eviction) =
            evictions.next_if(|eviction| eviction.position <= position && !eviction.is_after_waits)
        {
            clock.evict(eviction.number);
        }
        while let Some((_, wait)) = waits.next_if(|(at, _)| *at <= position) {
            clock.wait(wait);
        }
        while let Some(eviction) = evictions.next_if(|eviction| eviction.position <= position) {
            clock.evict(eviction.number);
        }
        while let Some((_, number)) = prefetched.next_if(|(at, _)| *at <= position) {
            let arrival = clock.begin(number, BACK);
            clock.reloaded_at.insert(number, arrival);
        }
        clock.now += record.time;
        for number in trace.values_of(position) {
            if clock.offloaded_at.contains_key(&number) {
                let arrival = clock.begin(number, OUT);
                clock.offloaded_at.insert(number, arrival);
            }
        }
    }
    clock.now
}

/// The directions of transfers.
const OUT: usize = 0;
const BACK: usize = 1;

struct Clock<'a> {
    trace: &'a Trace,
    now: u64,
    /// When the offload of each value ends.
    offloaded_at: HashMap<u32, u64>,
    /// When the reload of each value that is in flight ends.
    reloaded_at: HashMap<u32, u64>,
    /// When each direction is free.
    free_at: [u64; 2],
}

impl Clock<'_> {
    /// Begins the transfer of a value; returns when it ends.
    fn begin(&mut self, number: u32, direction: usize) -> u64 {
        let arrival = self.now.max(self.free_at[direction]) + transfer_time(self.trace, number);
        self.free_at[direction] = arrival;
        if self.trace.offload_store.is_some_and(|store| !store.overlaps) {
            self.now = arrival;
        }
        arrival
    }

    fn evict(&mut self, number: u32) {
        self.now = self.now.max(self.offloaded_at[&number]);
    }

    fn wait(&mut self, wait: Wait) {
        match wait {
            Wait::Recompute(record) => self.now += self.trace.records[record as usize].time,
            Wait::Reload(number) => {
                let arrival = self.reloaded_at.remove(&number).unwrap_or_else(|| self.begin(number, BACK));
                self.now = self.now.max(arrival);
            }
        }
    }
}
