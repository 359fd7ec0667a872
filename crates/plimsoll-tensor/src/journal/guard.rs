//! The guard: what keeps the line where no plan does.
//!
//! When the pool cannot give a block, the guard lets kept values go that nobody but the journal holds, the cheapest per
//! byte first, until the block fits. Its choices use costs by formula and the order of the records, never time or
//! addresses, so a ghost makes the same ones. It never thrashes: the work that it causes in a step is bounded by
//! [`MOST_REPEATS`] times the step's own, and then the pool's refusal stands.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use plimsoll_memory::{Bytes, Reclaim};

use crate::journal::{Journal, Source, State};
use crate::storage::Storage;

/// Smaller values are not worth letting go.
const LEAST_BYTES: u64 = 4096;

/// How often the work of a step so far may be repeated, all together, on account of the guard.
const MOST_REPEATS: u64 = 8;

/// Lets values of a device's journals go when its pool is full.
#[derive(Default)]
pub(crate) struct Guard {
    journals: Mutex<Vec<Weak<Journal>>>,
}

impl Guard {
    /// Watches one journal more, for as long as it lives; whether it is the first one ever.
    pub fn watch(&self, journal: &Arc<Journal>) -> bool {
        let mut journals = self.lock();
        let is_first = journals.capacity() == 0;
        journals.retain(|journal| journal.strong_count() > 0);
        journals.push(Arc::downgrade(journal));
        is_first
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Journal>>> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Guard {
    fn reclaim(&self, need: Bytes) -> bool {
        let journals: Vec<Arc<Journal>> = self.lock().iter().filter_map(Weak::upgrade).collect();
        journals.iter().any(|journal| journal.make_room(need.get()))
    }
}

impl Journal {
    /// Lets values go that are worth at least `need` bytes together, or all there are; whether that was anything.
    fn make_room(&self, need: u64) -> bool {
        let mut freed: Vec<Arc<Storage>> = Vec::new();
        let mut bytes = 0;
        {
            let mut state = self.lock();
            let lasting = state.lasting();
            while bytes < need && state.repeated < MOST_REPEATS * state.work {
                let Some(number) = state.cheapest(&lasting) else { break };
                let roots = state.roots(number as u32, &lasting);
                let value = &mut state.values[number];
                value.roots = roots;
                bytes += value.bytes;
                freed.extend(value.kept.take());
            }
        }
        freed.iter().for_each(|storage| storage.unkeep());
        bytes > 0
    }
}

impl State {
    /// The value that is best let go: one that the journal alone holds and that can be made again, with the least work
    /// per byte.
    fn cheapest(&self, lasting: &[bool]) -> Option<usize> {
        let candidates = self.values.iter().enumerate().filter(|(_, value)| {
            value.bytes >= LEAST_BYTES
                && lasting[value.record as usize]
                && value.kept.as_ref().is_some_and(|kept| Arc::strong_count(kept) == 1)
        });
        let scored = candidates.filter_map(|(number, value)| {
            let work = self.work_of(number as u32)?;
            // Older values wait longer for backward: the younger one of two equals stays.
            Some((work as f64 / value.bytes as f64, number))
        });
        scored.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, number)| number)
    }

    /// The work of making a value again, from what is there, as a number of bytes and operations; nothing if that cannot
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
                    Source::Value(input) if self.values[*input as usize].living.strong_count() == 0 => {
                        open.push(*input);
                    }
                    Source::Value(_) => {}
                    Source::Outside(outside) => _ = outside.present()?,
                }
            }
        }
        Some(work)
    }
}
