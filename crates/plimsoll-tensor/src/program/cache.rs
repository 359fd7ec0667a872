//! The programs of a function, by what determines its ops.
//!
//! A cache owns programs and their plans, and the variables that its function makes; it owns no function. Whoever calls one
//! passes it to be recorded, and says by [`Recording`] how far earlier recordings can be relied on. It is bounded in bytes of
//! the heap, plans and keys included; the least recently used programs are dropped first. It refuses to be empty after a
//! call: the program that was found last stays, however large it is.

use std::sync::Arc;

use super::retrace::Retraces;
use super::{CachedProgram, OwnedVariables, PlannedProgram, Program};
use crate::base::error::{ErrorKind, Result};
use crate::device::why_alive::{HolderId, WhyAlive};
use crate::eager::op::Meta;

/// How far a program that was recorded before can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// For good: the function is declared to do the same each time.
    Once,
    /// As `tf.function`: it should do the same each time, which is checked by recording it again at calls 2, 4, 8 and so
    /// on. One whose numbers differ is recorded at each call from then on; one that does something else runs eagerly.
    Checked,
    /// Not at all: the function is recorded at each call, and what is planned holds for recordings that are alike.
    EachCall,
}

/// What determines the ops of a function: programs are found by it.
pub trait ProgramKey: PartialEq {
    /// The bytes of the heap behind it.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The first argument in which another key differs, and how; nothing if they differ in something else, or if keys do not
    /// know their arguments.
    fn differing_argument(&self, _other: &Self) -> Option<(usize, String)> {
        None
    }
}

impl ProgramKey for Vec<Meta> {
    fn heap_bytes(&self) -> usize {
        self.capacity() * size_of::<Meta>()
    }
}

/// The programs of a function by key, each with something that belongs to it.
pub struct ProgramCache<K, T> {
    /// Boxed, because programs come and go: only their addresses move.
    known: Vec<Box<Entry<K, T>>>,
    owned: OwnedVariables,
    /// Why the function runs eagerly, if it does.
    eager: Option<String>,
    most_bytes: usize,
    /// How many times a program has been looked for.
    clock: u64,
    n_evicted: u64,
    retraces: Retraces,
    has_passes: bool,
}

struct Entry<K, T> {
    key: K,
    program: PlannedProgram,
    with: T,
    n_calls: u64,
    n_hits: u64,
    /// When it was last looked for.
    last_used: u64,
    /// Whether its numbers have changed between recordings.
    changes: bool,
}

impl<K: ProgramKey, T> Entry<K, T> {
    fn heap_bytes(&self) -> usize {
        size_of::<Entry<K, T>>() + self.key.heap_bytes() + self.program.heap_bytes()
    }
}

impl<K: ProgramKey, T> ProgramCache<K, T> {
    /// An empty cache for programs of at most so many heap bytes; at least one is kept.
    pub fn new(most_bytes: usize) -> ProgramCache<K, T> {
        ProgramCache {
            known: Vec::new(),
            owned: OwnedVariables::default(),
            eager: None,
            most_bytes,
            clock: 0,
            n_evicted: 0,
            retraces: Retraces::default(),
            has_passes: std::env::var_os("PLIMSOLL_PASSES").is_none_or(|set| set != "0"),
        }
    }

    /// Whether programs that are recorded from now on are changed by passes, which keep their bits and never raise their peaks. They
    /// are unless told otherwise, here or by `PLIMSOLL_PASSES=0`.
    pub fn set_passes(&mut self, has_passes: bool) {
        self.has_passes = has_passes;
        self.clear();
    }

    /// Why the function runs eagerly, if it does.
    pub fn eager_reason(&self) -> Option<&str> {
        self.eager.as_deref()
    }

    /// How many programs there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The variables that the function makes.
    pub fn owned(&self) -> &OwnedVariables {
        &self.owned
    }

    /// The most bytes of the heap that programs may take.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Bounds the programs by other bytes of the heap from now on.
    pub fn set_most_bytes(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
        self.evict();
    }

    /// The bytes of the heap that programs take: with their plans and keys.
    pub fn heap_bytes(&self) -> usize {
        self.known.iter().map(|entry| entry.heap_bytes()).sum()
    }

    /// How many programs were dropped because there was no room for them.
    pub fn n_evicted(&self) -> u64 {
        self.n_evicted
    }

    /// What is kept, with the keys as `describe` says, the latest first.
    pub fn programs(&self, describe: impl Fn(&K) -> String) -> Vec<CachedProgram> {
        let mut known: Vec<&Entry<K, T>> = self.known.iter().map(|entry| &**entry).collect();
        known.sort_by_key(|entry| std::cmp::Reverse(entry.last_used));
        let cached = |entry: &Entry<K, T>| CachedProgram {
            signature: describe(&entry.key),
            heap_bytes: entry.heap_bytes() as u64,
            device_bytes: entry.program.device_bytes(),
            n_calls: entry.n_calls,
            n_hits: entry.n_hits,
        };
        known.into_iter().map(cached).collect()
    }

    /// The programs as holders of tensors from outside.
    pub fn holders(&self, why: &WhyAlive) -> Vec<HolderId> {
        let captured = |entry: &Entry<K, T>| Arc::as_ptr(&entry.program.recorded().captured) as usize;
        self.known.iter().filter_map(|entry| why.holder_at(captured(entry))).collect()
    }

    /// Drops all programs and what is planned of them. The variables that the function has made stay, and so does what is known
    /// of how it must run.
    pub fn clear(&mut self) {
        self.known = Vec::new();
    }

    /// The program for a key, recorded by `record` if it is not there or cannot be relied on. Nothing if the function has
    /// none and runs eagerly, as [`ProgramCache::eager_reason`] says.
    ///
    /// # Errors
    /// Those of `record`, but for a value that the function reads.
    pub fn find(
        &mut self,
        key: K,
        recording: Recording,
        record: impl FnOnce(&mut OwnedVariables) -> Result<(Program, T)>,
    ) -> Result<Option<(&mut PlannedProgram, &mut T)>> {
        if self.eager.is_some() {
            return Ok(None);
        }
        let at = self.known.iter().position(|entry| entry.key == key);
        let is_reliable = |entry: &Entry<K, T>| match recording {
            Recording::Once => true,
            Recording::Checked => !(entry.changes || entry.n_calls.is_power_of_two()),
            Recording::EachCall => false,
        };
        if let Some(at) = at.filter(|&at| is_reliable(&self.known[at])) {
            let mut entry = self.known.swap_remove(at);
            entry.n_hits += 1;
            self.retraces.found();
            return Ok(Some(self.put(entry)));
        }
        let (program, with) = match record(&mut self.owned) {
            Ok(recorded) => recorded,
            Err(error) if matches!(error.kind(), ErrorKind::ReadsValue { .. }) => {
                return Ok(self.fall_back_to_eager(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let is_alike = |entry: &Entry<K, T>| entry.key == key && entry.program.recorded().is_alike(&program);
        let Some(alike) = self.known.iter().position(|entry| is_alike(entry)) else {
            return match at.filter(|_| recording == Recording::Checked) {
                Some(at) => {
                    let difference = self.known[at].program.recorded().difference(&program);
                    let difference =
                        difference.unwrap_or_else(|| "it makes other requests for memory".to_owned());
                    Ok(self
                        .fall_back_to_eager(format!("it does not do the same at every call: {difference}")))
                }
                None => {
                    self.note_new(&key);
                    let program = match self.has_passes {
                        true => PlannedProgram::with_passes(program)?,
                        false => PlannedProgram::new(program),
                    };
                    let (n_calls, n_hits, last_used, changes) = (0, 0, 0, false);
                    let entry = Entry { key, program, with, n_calls, n_hits, last_used, changes };
                    Ok(Some(self.put(Box::new(entry))))
                }
            };
        };
        let mut entry = self.known.swap_remove(alike);
        self.retraces.found();
        if recording == Recording::Checked && !entry.changes {
            let difference = entry.program.recorded().difference(&program);
            entry.changes = difference.is_some();
            if let Some(difference) = difference {
                log::warn!(
                    "a function is recorded at every call from now on, because numbers in it change: {difference}; a variable \
                     that is assigned between calls would make that unnecessary"
                );
            }
        }
        entry.program.adopt(program)?;
        entry.with = with;
        Ok(Some(self.put(entry)))
    }

    /// A program is recorded for a key that is not known; many in a row are worth a warning.
    fn note_new(&mut self, key: &K) {
        let latest = self.known.iter().max_by_key(|entry| entry.last_used);
        let difference = latest.and_then(|entry| key.differing_argument(&entry.key));
        self.retraces.recorded(difference);
    }

    /// From now on the function runs eagerly, which is logged once.
    fn fall_back_to_eager<R>(&mut self, reason: String) -> Option<R> {
        log::warn!("a function runs eagerly from now on: {reason}");
        self.known.clear();
        self.eager = Some(reason);
        None
    }

    /// The program that was found last was run.
    pub fn called(&mut self) {
        self.known.iter_mut().last().into_iter().for_each(|entry| entry.n_calls += 1);
        // It may have been planned meanwhile.
        self.evict();
    }

    /// Puts an entry last; the least recently used ones are dropped if they take too much.
    fn put(&mut self, mut entry: Box<Entry<K, T>>) -> (&mut PlannedProgram, &mut T) {
        self.clock += 1;
        entry.last_used = self.clock;
        self.known.push(entry);
        self.evict();
        let Some(last) = self.known.last_mut() else { unreachable!("it has just been put there") };
        (&mut last.program, &mut last.with)
    }

    /// Drops the least recently used programs but the last one, until the others are within the bound.
    fn evict(&mut self) {
        let mut all = self.heap_bytes();
        while all > self.most_bytes && self.known.len() > 1 {
            let n_older = self.known.len() - 1;
            let oldest = (0..n_older).min_by_key(|&at| self.known[at].last_used).unwrap_or(0);
            // The one that was used last stays at the end.
            let dropped = self.known.remove(oldest);
            all -= dropped.heap_bytes();
            self.n_evicted += 1;
        }
    }
}
