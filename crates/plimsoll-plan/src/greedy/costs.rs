//! The cost of evicting a value: which values may be evicted, how each is restored, and which is cheapest.
//!
//! What recomputing a value takes is found by a walk over the records that lead to it, and only grows while values are evicted. So
//! the time of an earlier walk, or that of the value's own record, is a bound, and the cheapest value is found by walking for those
//! alone whose bound is below what the cheapest really costs. Whenever something is restored, bounds are forgotten.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{GreedyPlanner, MIN_EVICT_BYTES, Strategy};
use crate::clock::transfer_time;
use crate::offload_schedule::MIN_OFFLOAD_BYTES;
use crate::{Input, Trace};

/// Values that may be evicted, in no order; each has a number that says which could be first.
pub(super) struct Evictable {
    numbers: Vec<u32>,
    /// For each value, where it is among them; nowhere if it is not.
    places: Vec<u32>,
    orders: Vec<u32>,
    n_ordered: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Evictable {
    pub fn new(n_values: usize) -> Evictable {
        Evictable {
            numbers: Vec::new(),
            places: vec![NOWHERE; n_values],
            orders: vec![NOWHERE; n_values],
            n_ordered: 0,
        }
    }

    /// Adds a value, unless it is there.
    pub fn add(&mut self, number: u32) {
        if self.places[number as usize] == NOWHERE {
            self.places[number as usize] = self.numbers.len() as u32;
            self.numbers.push(number);
        }
        if self.orders[number as usize] == NOWHERE {
            self.orders[number as usize] = self.n_ordered;
            self.n_ordered += 1;
        }
    }

    /// Adds a value if it was there before.
    pub fn add_again(&mut self, number: u32) {
        if self.orders[number as usize] != NOWHERE {
            self.add(number);
        }
    }

    /// Removes a value, if it is there.
    pub fn remove(&mut self, number: u32) {
        let place = std::mem::replace(&mut self.places[number as usize], NOWHERE);
        if place != NOWHERE {
            self.numbers.swap_remove(place as usize);
            if let Some(&moved) = self.numbers.get(place as usize) {
                self.places[moved as usize] = place;
            }
        }
    }
}

/// What is known of the times of recomputations, and what finding them needs.
pub(super) struct Costs {
    /// For each value, the time of a walk,
    bounds: Vec<Bound>,
    /// which is a bound as long as nothing was restored since.
    epoch: u32,
    /// Offers and values that a search has yet to look at; reused, because searches are many.
    offers: Vec<Offer>,
    open: Vec<u32>,
    /// The walk that has come to a record last.
    marks: Vec<u32>,
    n_walks: u32,
}

/// The least time of recomputing a value for a fetch, as of an epoch.
#[derive(Clone, Copy)]
struct Bound {
    time: u64,
    next: u32,
    epoch: u32,
}

impl Costs {
    pub fn new(trace: &Trace) -> Costs {
        Costs {
            bounds: vec![Bound { time: 0, next: 0, epoch: 0 }; trace.values.len()],
            epoch: 1,
            offers: Vec::new(),
            open: Vec::new(),
            marks: vec![0; trace.records.len()],
            n_walks: 0,
        }
    }

    /// Values were restored, so that others may be cheaper than they were.
    pub fn forget(&mut self) {
        self.epoch += 1;
    }
}

/// A value that may be evicted, and what that costs: exactly, or at least.
#[derive(Clone, Copy)]
struct Offer {
    score: f64,
    is_exact: bool,
    order: u32,
    number: u32,
    next: u32,
    strategy: Strategy,
}

/// The best is the greatest: of least cost, and then the one that could be evicted first. One that may cost less than it says comes
/// before those that cost as much.
impl Ord for Offer {
    fn cmp(&self, other: &Offer) -> Ordering {
        let key = |offer: &Offer| (offer.is_exact, offer.order);
        other.score.total_cmp(&self.score).then_with(|| key(other).cmp(&key(self)))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Offer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Offer) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Offer {}

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
        let mut offers = std::mem::take(&mut self.costs.offers);
        offers.clear();
        let offered = self.evictable.numbers.iter().filter(|number| !in_use.contains(number));
        offers.extend(offered.filter_map(|&number| self.offer_at_least(number, position)));
        let mut offers = BinaryHeap::from(offers);
        let mut best = None;
        while let Some(offer) = offers.pop() {
            if offer.is_exact {
                best = Some((offer.number, offer.strategy));
                break;
            }
            let exact = self.cheaper_strategy(offer.number, position, offer.next);
            offers.extend(exact.map(|(time, strategy)| {
                let score = self.score(offer.number, time, self.distance(position, offer.next));
                Offer { score, is_exact: true, strategy, ..offer }
            }));
        }
        self.costs.offers = offers.into_vec();
        #[cfg(test)]
        assert_eq!(best, tests::cheapest_of_all(self, position, in_use));
        best
    }

    /// What evicting a value costs at least, if it may be evicted at a position.
    fn offer_at_least(&self, number: u32, position: u32) -> Option<Offer> {
        let value = &self.trace.values[number as usize];
        if !self.resident[number as usize] || !value.may_be_evicted(position) {
            return None;
        }
        let next = value.next_fetch(position)?;
        let offloads = self.strategies[number as usize] == Some(Strategy::Offload);
        let offload =
            (offloads || self.may_offload(number)).then(|| self.offload_time(number, position, next));
        let recompute = (!offloads && self.recomputable[number as usize]).then(|| {
            let Bound { time, next: known_next, epoch } = self.costs.bounds[number as usize];
            let is_known = (known_next, epoch) == (next, self.costs.epoch);
            let own = || self.trace.records[value.record as usize].time.max(1);
            (if is_known { time } else { own() }) as f64
        });
        let time = match (offload, recompute) {
            (Some(offload), Some(recompute)) => offload.min(recompute),
            (offload, recompute) => offload.or(recompute)?,
        };
        let score = self.least_score(number, time, self.distance(position, next));
        let order = self.evictable.orders[number as usize];
        Some(Offer { score, is_exact: false, order, number, next, strategy: Strategy::Recompute })
    }

    /// The time until a value is fetched.
    fn distance(&self, position: u32, next: u32) -> f64 {
        (self.time_before[next as usize] - self.time_before[position as usize]) as f64 + 1.0
    }

    /// What makes one value cheaper to evict than another.
    fn score(&self, number: u32, time: f64, distance: f64) -> f64 {
        let bytes = self.trace.values[number as usize].bytes as f64;
        time / bytes / distance.powf(self.weights.distance_weight)
    }

    /// A number that the score does not fall below, found without a power where that is known otherwise.
    fn least_score(&self, number: u32, time: f64, distance: f64) -> f64 {
        let power = match self.weights.distance_weight {
            0.0 => 1.0,
            0.5 => distance.sqrt(),
            1.0 => distance,
            _ => return self.score(number, time, distance),
        };
        // More than a power and two divisions can be rounded by.
        const MARGIN: f64 = 1.0 + 8.0 * f64::EPSILON;
        time / self.trace.values[number as usize].bytes as f64 / (power * MARGIN)
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
    fn recompute_time(&mut self, target: u32, position: u32) -> u64 {
        self.costs.n_walks += 1;
        let walk = self.costs.n_walks;
        let (mut open, mut time) = (std::mem::take(&mut self.costs.open), 0);
        open.push(target);
        while let Some(number) = open.pop() {
            let record = self.trace.values[number as usize].record;
            if std::mem::replace(&mut self.costs.marks[record as usize], walk) == walk {
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
        self.costs.open = open;
        self.costs.bounds[target as usize] = Bound { time, next: position, epoch: self.costs.epoch };
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::nets::named;
    use crate::{OffloadStore, Weights, decide};

    /// What `cheapest` finds, by walking for every value.
    pub fn cheapest_of_all(
        planner: &mut GreedyPlanner<'_>,
        position: u32,
        in_use: &[u32],
    ) -> Option<(u32, Strategy)> {
        let mut numbers = planner.evictable.numbers.clone();
        numbers.sort_unstable_by_key(|&number| planner.evictable.orders[number as usize]);
        let mut best: Option<(f64, u32, Strategy)> = None;
        for number in numbers {
            let value = &planner.trace.values[number as usize];
            let may_be = planner.resident[number as usize] && value.may_be_evicted(position);
            let Some(next) = value.next_fetch(position).filter(|_| may_be && !in_use.contains(&number))
            else {
                continue;
            };
            let Some((time, strategy)) = planner.cheaper_strategy(number, position, next) else { continue };
            let score = planner.score(number, time, planner.distance(position, next));
            if best.is_none_or(|(least, ..)| score < least) {
                best = Some((score, number, strategy));
            }
        }
        best.map(|(_, number, strategy)| (number, strategy))
    }

    /// Each eviction of these plans is compared with what a search of all values finds.
    #[test]
    fn bounds_find_what_a_search_of_all_values_finds() {
        let stores = [None, Some(1_000), Some(50_000)].map(|rate| {
            rate.map(|bytes_per_us| OffloadStore { capacity: 6 << 20, bytes_per_us, overlaps: true })
        });
        let mut n_evicted = 0;
        for (_, net) in named() {
            for offload_store in stores {
                let trace = Trace { offload_store, ..net.trace() };
                for percent in (10..100).step_by(15) {
                    for distance_weight in [0.0, 0.3, 0.5, 1.0] {
                        let target = trace.natural_peak() * percent / 100;
                        let decided =
                            decide(&trace, target, Weights { distance_weight, offload_weight: 1.0 });
                        n_evicted += decided.map_or(0, |decisions| decisions.n_evicted());
                    }
                }
            }
        }
        assert!(n_evicted > 5_000, "{n_evicted}");
    }
}
