//! The cost of evicting a value: which values may be evicted, how each is restored, and which is cheapest.

use super::{GreedyPlanner, MIN_EVICT_BYTES, Strategy};
use crate::Input;
use crate::clock::transfer_time;
use crate::offload_schedule::MIN_OFFLOAD_BYTES;

impl GreedyPlanner<'_> {
    pub(super) fn may_evict(&self, number: u32) -> bool {
        let is_large = self.trace.values[number as usize].bytes >= MIN_EVICT_BYTES;
        is_large && (self.recomputable[number as usize] || self.may_offload(number))
    }

    /// Whether a value can be offloaded: there is room, and it was not evicted with another strategy.
    fn may_offload(&self, number: u32) -> bool {
        let bytes = self.trace.values[number as usize].bytes;
        self.strategies[number as usize].is_none()
            && bytes >= MIN_OFFLOAD_BYTES
            && self
                .trace
                .offload_store
                .is_some_and(|store| self.decisions.offloaded_bytes + bytes <= store.capacity)
    }

    /// Whether a value that is not resident is in the offload store at a position.
    pub(super) fn is_offloaded(&self, number: u32, position: u32) -> bool {
        self.strategies[number as usize] == Some(Strategy::Offload)
            && !self.resident[number as usize]
            && self.trace.values[number as usize].dead_from > position
    }

    /// When the first offload of a value could have ended, in the time of the step that retains everything.
    pub(super) fn offloaded_at(&self, number: u32) -> u64 {
        if let Some(&arrival) = self.offload_schedule.get(&number) {
            return arrival;
        }
        let made = self.time_before[self.trace.values[number as usize].record as usize + 1];
        made.max(self.offload_free_at) + transfer_time(self.trace, number)
    }

    /// The cost of offloading a value whose memory is needed elsewhere at a position, if that has not happened yet, and of
    /// reloading it when it is fetched.
    fn offload_time(&self, number: u32, position: u32, next: u32) -> f64 {
        let whole = transfer_time(self.trace, number);
        let overlaps = self.trace.offload_store.is_some_and(|store| store.overlaps);
        let weigh = |late: u64| {
            let waited = if overlaps { late.min(whole) } else { 0 };
            waited as f64 + self.weights.offload_weight * (whole - waited) as f64
        };
        let now = self.time_before[position as usize];
        let reload = weigh(whole.saturating_sub(self.time_before[next as usize] - now));
        match self.strategies[number as usize] {
            Some(_) => reload,
            None => reload + weigh(self.offloaded_at(number).saturating_sub(now)),
        }
    }

    /// Whether a value can be read at a position without being restored.
    pub(super) fn is_available(&self, number: u32, position: u32) -> bool {
        let value = &self.trace.values[number as usize];
        value.dead_from > position
            && (self.resident[number as usize] || value.backward_only_from.is_none_or(|from| from > position))
    }

    /// The value that is cheapest to evict from `position` on, other than those that are in use, and its strategy.
    pub(super) fn cheapest(&mut self, position: u32, in_use: &[u32]) -> Option<(u32, Strategy)> {
        let mut best: Option<(f64, u32, Strategy)> = None;
        for at in 0..self.evictable.len() {
            let number = self.evictable[at];
            let value = &self.trace.values[number as usize];
            if !self.resident[number as usize] || !value.may_be_evicted(position) || in_use.contains(&number)
            {
                continue;
            }
            let Some(next) = value.next_fetch(position) else { continue };
            let distance =
                (self.time_before[next as usize] - self.time_before[position as usize]) as f64 + 1.0;
            let Some((time, strategy)) = self.cheaper_strategy(number, position, next) else { continue };
            let score = time / value.bytes as f64 / distance.powf(self.weights.distance_weight);
            if best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, number, strategy));
            }
        }
        best.map(|(_, number, strategy)| (number, strategy))
    }

    /// How a value that is evicted at a position is restored at the next fetch, at the least weighted time.
    fn cheaper_strategy(&mut self, number: u32, position: u32, next: u32) -> Option<(f64, Strategy)> {
        let offload = || (self.offload_time(number, position, next), Strategy::Offload);
        if self.strategies[number as usize] == Some(Strategy::Offload) {
            return Some(offload());
        }
        let offload = self.may_offload(number).then(offload);
        let recompute = self.recomputable[number as usize]
            .then(|| (self.recompute_time(number, next) as f64, Strategy::Recompute));
        match (offload, recompute) {
            (Some(offload), Some(recompute)) => {
                Some(if offload.0 < recompute.0 { offload } else { recompute })
            }
            (offload, recompute) => offload.or(recompute),
        }
    }

    /// The time that recomputing a value at a later position will take, as things stand.
    fn recompute_time(&mut self, number: u32, position: u32) -> u64 {
        self.stamp += 1;
        let (mut open, mut time) = (std::mem::take(&mut self.open), 0);
        open.push(number);
        while let Some(number) = open.pop() {
            let record = self.trace.values[number as usize].record;
            if std::mem::replace(&mut self.mark[record as usize], self.stamp) == self.stamp {
                continue;
            }
            let record = &self.trace.records[record as usize];
            time += record.time.max(1);
            for &input in &record.inputs {
                let Input::Value(input) = input else { continue };
                if self.is_offloaded(input, position) {
                    time += transfer_time(self.trace, input);
                } else if !(self.resident[input as usize]
                    && self.trace.values[input as usize].dead_from > position)
                {
                    open.push(input);
                }
            }
        }
        self.open = open;
        time
    }
}
