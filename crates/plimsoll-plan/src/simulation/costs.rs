//! What it costs to let a value go: which can, how each comes back, and which is best away.

use super::{LEAST_BYTES, Walk, Way};
use crate::Input;
use crate::clock::journey;
use crate::outbound::LEAST_MOVED_BYTES;

impl Walk<'_> {
    pub(super) fn may_go(&self, number: u32) -> bool {
        let is_large = self.trace.values[number as usize].bytes >= LEAST_BYTES;
        is_large && (self.repeatable[number as usize] || self.may_move(number))
    }

    /// Whether a value can be moved: there is room, and it has not gone another way.
    fn may_move(&self, number: u32) -> bool {
        let bytes = self.trace.values[number as usize].bytes;
        self.ways[number as usize].is_none()
            && bytes >= LEAST_MOVED_BYTES
            && self.trace.depot.is_some_and(|depot| self.decisions.offloaded_bytes + bytes <= depot.room)
    }

    /// Whether a value that is not here is in the depot at a position.
    pub(super) fn is_moved(&self, number: u32, position: u32) -> bool {
        self.ways[number as usize] == Some(Way::Moved)
            && !self.here[number as usize]
            && self.trace.values[number as usize].gone_from > position
    }

    /// When the block of a value that goes out for the first time could be let go, in the time of the step that keeps
    /// everything.
    pub(super) fn out_at(&self, number: u32) -> u64 {
        if let Some(&arrival) = self.outbound.get(&number) {
            return arrival;
        }
        let made = self.time_before[self.trace.values[number as usize].record as usize + 1];
        made.max(self.out_free_at) + journey(self.trace, number)
    }

    /// What moving a value costs whose block is needed elsewhere at a position, out if it is not yet there, and back when
    /// it is asked for.
    fn time_to_move(&self, number: u32, position: u32, next: u32) -> f64 {
        let whole = journey(self.trace, number);
        let is_beside = self.trace.depot.is_some_and(|depot| depot.is_beside);
        let weigh = |late: u64| {
            let waited = if is_beside { late.min(whole) } else { 0 };
            waited as f64 + self.weights.moving * (whole - waited) as f64
        };
        let now = self.time_before[position as usize];
        let back = weigh(whole.saturating_sub(self.time_before[next as usize] - now));
        match self.ways[number as usize] {
            Some(_) => back,
            None => back + weigh(self.out_at(number).saturating_sub(now)),
        }
    }

    /// Whether a value can be read at a position without being made again.
    pub(super) fn is_available(&self, number: u32, position: u32) -> bool {
        let value = &self.trace.values[number as usize];
        value.gone_from > position
            && (self.here[number as usize] || value.alone_from.is_none_or(|from| from > position))
    }

    /// The value that is best away from `position` on, other than those that are in use, and how it comes back.
    pub(super) fn cheapest(&mut self, position: u32, in_use: &[u32]) -> Option<(u32, Way)> {
        let mut best: Option<(f64, u32, Way)> = None;
        for at in 0..self.held.len() {
            let number = self.held[at];
            let value = &self.trace.values[number as usize];
            if !self.here[number as usize] || !value.may_be_away(position) || in_use.contains(&number) {
                continue;
            }
            let Some(next) = value.next_fetch(position) else { continue };
            let away = (self.time_before[next as usize] - self.time_before[position as usize]) as f64 + 1.0;
            let Some((time, way)) = self.cheaper_way(number, position, next) else { continue };
            let score = time / value.bytes as f64 / away.powf(self.weights.patience);
            if best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, number, way));
            }
        }
        best.map(|(_, number, way)| (number, way))
    }

    /// How a value that goes at a position comes back at the next one at which it is asked for, at the least time as that
    /// is weighed.
    fn cheaper_way(&mut self, number: u32, position: u32, next: u32) -> Option<(f64, Way)> {
        let moved = || (self.time_to_move(number, position, next), Way::Moved);
        if self.ways[number as usize] == Some(Way::Moved) {
            return Some(moved());
        }
        let moved = self.may_move(number).then(moved);
        let repeated = self.repeatable[number as usize]
            .then(|| (self.time_to_repeat(number, next) as f64, Way::Repeated));
        match (moved, repeated) {
            (Some(moved), Some(repeated)) => Some(if moved.0 < repeated.0 { moved } else { repeated }),
            (moved, repeated) => moved.or(repeated),
        }
    }

    /// The time that making a value again at a later position will take, as things stand.
    fn time_to_repeat(&mut self, number: u32, position: u32) -> u64 {
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
                if self.is_moved(input, position) {
                    time += journey(self.trace, input);
                } else if !(self.here[input as usize]
                    && self.trace.values[input as usize].gone_from > position)
                {
                    open.push(input);
                }
            }
        }
        self.open = open;
        time
    }
}
