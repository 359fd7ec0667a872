//! The time of a step: ops in their order, and journeys to the depot and back beside them.
//!
//! Each direction carries one value at a time. A journey out begins when the value is made, and whoever lets the value's
//! block go waits until it is out; a journey back begins where the plan says so, or when backward asks, and backward waits
//! until the value is there. So a journey takes only the time that is waited for. Where nothing moves beside the ops, it
//! takes all of it.

use std::collections::HashMap;

use crate::Trace;

/// Something that backward waits for before the op at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A record runs again.
    Repeat(u32),
    /// A value is brought back.
    Bring(u32),
}

/// Where the block of a value that goes out is let go for the first time: before an op at a position, and before or after
/// values are brought back for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leave {
    pub position: u32,
    pub is_after_waits: bool,
    pub number: u32,
}

/// What happens in a step beside its own ops.
#[derive(Default)]
pub(crate) struct Happenings {
    /// In the order of positions.
    pub waits: Vec<(u32, Wait)>,
    /// One for each value that goes out.
    pub leaves: Vec<Leave>,
    /// Values (position, number) that begin to come back when the op at a position begins, in the order of positions.
    pub prefetched: Vec<(u32, u32)>,
}

/// The time that a value's journey takes in one direction, in nanoseconds.
pub(crate) fn journey(trace: &Trace, number: u32) -> u64 {
    let rate = trace.depot.map_or(1, |depot| depot.rate.max(1));
    trace.values[number as usize].bytes * 1000 / rate
}

/// The time of a step, in nanoseconds.
pub(crate) fn step_time(trace: &Trace, mut happenings: Happenings) -> u64 {
    happenings.leaves.sort_unstable();
    let goes_out = happenings.leaves.iter().map(|leave| (leave.number, 0)).collect();
    let mut clock = Clock { trace, now: 0, is_out_at: goes_out, is_back_at: HashMap::new(), free_at: [0; 2] };
    let mut waits = happenings.waits.into_iter().peekable();
    let mut leaves = happenings.leaves.into_iter().peekable();
    let mut prefetched = happenings.prefetched.into_iter().peekable();
    for (position, record) in (0u32..).zip(&trace.records) {
        while let Some(leave) = leaves.next_if(|leave| leave.position <= position && !leave.is_after_waits) {
            clock.leave(leave.number);
        }
        while let Some((_, wait)) = waits.next_if(|(at, _)| *at <= position) {
            clock.wait(wait);
        }
        while let Some(leave) = leaves.next_if(|leave| leave.position <= position) {
            clock.leave(leave.number);
        }
        while let Some((_, number)) = prefetched.next_if(|(at, _)| *at <= position) {
            let arrival = clock.begin(number, BACK);
            clock.is_back_at.insert(number, arrival);
        }
        clock.now += record.time;
        for number in trace.values_of(position) {
            if clock.is_out_at.contains_key(&number) {
                let arrival = clock.begin(number, OUT);
                clock.is_out_at.insert(number, arrival);
            }
        }
    }
    clock.now
}

/// The directions of journeys.
const OUT: usize = 0;
const BACK: usize = 1;

struct Clock<'a> {
    trace: &'a Trace,
    now: u64,
    /// When the values that go out are there.
    is_out_at: HashMap<u32, u64>,
    /// When those that are on their way back are here.
    is_back_at: HashMap<u32, u64>,
    /// When each direction is free.
    free_at: [u64; 2],
}

impl Clock<'_> {
    /// A value begins its journey; returns when that ends.
    fn begin(&mut self, number: u32, direction: usize) -> u64 {
        let arrival = self.now.max(self.free_at[direction]) + journey(self.trace, number);
        self.free_at[direction] = arrival;
        if self.trace.depot.is_some_and(|depot| !depot.is_beside) {
            self.now = arrival;
        }
        arrival
    }

    fn leave(&mut self, number: u32) {
        self.now = self.now.max(self.is_out_at[&number]);
    }

    fn wait(&mut self, wait: Wait) {
        match wait {
            Wait::Repeat(record) => self.now += self.trace.records[record as usize].time,
            Wait::Bring(number) => {
                let arrival = self.is_back_at.remove(&number).unwrap_or_else(|| self.begin(number, BACK));
                self.now = self.now.max(arrival);
            }
        }
    }
}
