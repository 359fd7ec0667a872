//! Which values are evicted when eager code reaches its limit, where there is no plan.
//!
//! When the pool cannot give a block, the device's [`Evictor`](crate::device::evictor::Evictor) asks the logs of the thread. A
//! log frees retained values that nobody but itself holds, the cheapest to recompute per byte first, until the block fits. Its
//! choices use costs by formula and the order of the records, never time or addresses, so a ghost makes the same ones. It
//! never thrashes: the work that it causes in a step is bounded by [`MAX_RECOMPUTE_FACTOR`] times the step's own. Then, or when
//! nothing is left that can be recomputed, it offloads values, and where the device has nowhere to offload to, the pool's
//! refusal stands.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use crate::base::error::Result;
use crate::device::evictor::Evict;
use crate::device::offload_store::MIN_OFFLOADED_BYTES;
use crate::device::storage::Storage;
use crate::remat::{Source, StepLog, StepLogState, Value};

/// Smaller values are not worth evicting.
const MIN_EVICTED_BYTES: u64 = 4096;

/// How many times the work of a step so far may be recomputed, all together, on account of the evictor.
const MAX_RECOMPUTE_FACTOR: u64 = 8;

/// How many operations take as long as reloading a byte.
const OPERATIONS_PER_RELOADED_BYTE: u64 = 100;

impl Evict for StepLog {
    fn evict(&self, need: u64) -> Result<bool> {
        let (mut evicted, mut bytes) = (Vec::new(), 0);
        {
            let mut state = self.lock();
            let recomputable = state.recomputable();
            let mut cheapest = state.by_cost(&recomputable);
            while bytes < need && state.recomputed < MAX_RECOMPUTE_FACTOR * state.work {
                let Some(number) = state.next_cheapest(&mut cheapest) else { break };
                let recompute_inputs = state.recompute_inputs(number as u32, &recomputable);
                let value = &mut state.values[number];
                value.recompute_inputs = recompute_inputs;
                bytes += value.bytes;
                evicted.extend(value.retained.take());
            }
        }
        evicted.iter().for_each(|storage: &Arc<Storage>| storage.remove_slot());
        drop(evicted);
        while bytes < need {
            let Some((number, storage)) = self.lock().oldest() else { break };
            self.offload(number, &storage)?;
            bytes += storage.n_bytes() as u64;
            let mut state = self.lock();
            state.values[number as usize].retained = None;
            state.offload_recompute_input(number, &storage);
            drop(state);
            storage.remove_slot();
        }
        Ok(bytes > 0)
    }
}

/// What it costs to evict a value. Among equals the older one is evicted, for which backward asks later.
#[derive(Clone, Copy, PartialEq)]
struct Cost {
    work_per_byte: f64,
    number: usize,
}

impl Eq for Cost {}

impl Ord for Cost {
    fn cmp(&self, other: &Cost) -> Ordering {
        self.work_per_byte.total_cmp(&other.work_per_byte).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Cost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Value {
    /// Whether the log alone holds the value.
    fn is_alone(&self) -> bool {
        self.retained.as_ref().is_some_and(|retained| Arc::strong_count(retained) == 1)
    }
}

impl StepLogState {
    /// The values that can be evicted, with their costs: those that the log alone holds and that can be recomputed.
    fn by_cost(&self, recomputable: &[bool]) -> BinaryHeap<Reverse<Cost>> {
        let candidates = self.values.iter().enumerate().filter(|(_, value)| {
            value.bytes >= MIN_EVICTED_BYTES
                && recomputable[value.record as usize]
                && value.is_alone()
                && value.offloaded.is_none()
        });
        candidates.filter_map(|(number, _)| self.cost_of(number).map(Reverse)).collect()
    }

    /// The value that is best evicted: the one with the least work per byte as things stand.
    ///
    /// Evicting a value can only make others dearer, so a cost that was found before is at most what it is now: the first
    /// whose cost has not changed is the cheapest of all.
    fn next_cheapest(&self, by_cost: &mut BinaryHeap<Reverse<Cost>>) -> Option<usize> {
        loop {
            let Reverse(before) = by_cost.pop()?;
            match self.cost_of(before.number) {
                Some(now) if now > before => by_cost.push(Reverse(now)),
                Some(_) => return Some(before.number),
                None => {}
            }
        }
    }

    /// The work of recomputing a value, per byte; nothing if that cannot be done.
    fn cost_of(&self, number: usize) -> Option<Cost> {
        let work = self.work_of(number as u32)?;
        Some(Cost { work_per_byte: work as f64 / self.values[number].bytes as f64, number })
    }

    /// The value that is best offloaded: the oldest one that the log alone holds, be it also to recompute others from, for
    /// which backward asks last. It must have been offloaded already, or the device must have an offload store.
    fn oldest(&self) -> Option<(u32, Arc<Storage>)> {
        let mut values = self.values.iter().enumerate();
        values.find_map(|(number, value)| {
            let retained = value.retained.as_ref()?;
            let may_offload =
                value.bytes >= MIN_OFFLOADED_BYTES && retained.device().offload_store().is_some();
            let is_alone = || Arc::strong_count(retained) == 1 + self.n_uses_as_recompute_input(retained);
            ((value.offloaded.is_some() || may_offload) && is_alone())
                .then(|| (number as u32, retained.clone()))
        })
    }

    /// The work of recomputing a value, from what is there, as a number of bytes and operations; nothing if that cannot
    /// be done.
    fn work_of(&self, target: u32) -> Option<u64> {
        let (mut seen, mut open, mut work) = (HashSet::new(), vec![target], 0);
        while let Some(number) = open.pop() {
            let at = self.values[number as usize].record;
            if !seen.insert(at) {
                continue;
            }
            let record = &self.records[at as usize];
            work += record.work;
            for input in &record.inputs {
                match &input.source {
                    Source::Value(input) => {
                        let value = &self.values[*input as usize];
                        match (value.weak.strong_count(), value.weak_offloaded.strong_count()) {
                            (0, 0) => open.push(*input),
                            (0, _) => work += OPERATIONS_PER_RELOADED_BYTE * value.bytes,
                            _ => {}
                        }
                    }
                    Source::Outside(outside) => _ = outside.present()?,
                }
            }
        }
        Some(work)
    }
}
