//! The programs of a function, by what determines its ops.
//!
//! A cache owns programs and their plans, and the variables that its function makes; it owns no function. Whoever calls one
//! passes it to be recorded, and says by [`Recording`] how far earlier recordings can be relied on. The least recently used
//! programs are dropped first when they take too much of the heap.

use super::{OwnedVariables, PlannedProgram, Program};
use crate::base::error::{ErrorKind, Result};

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

/// The programs of a function by key, each with something that belongs to it.
pub struct ProgramCache<K, T> {
    /// The latest last.
    known: Vec<Entry<K, T>>,
    owned: OwnedVariables,
    /// Why the function runs eagerly, if it does.
    eager: Option<String>,
    most_bytes: usize,
}

struct Entry<K, T> {
    key: K,
    program: PlannedProgram,
    with: T,
    n_calls: u64,
    /// Whether its numbers have changed between recordings.
    changes: bool,
}

impl<K: PartialEq, T> ProgramCache<K, T> {
    /// An empty cache for programs of at most so many heap bytes, roughly; at least one is kept.
    pub fn new(most_bytes: usize) -> ProgramCache<K, T> {
        ProgramCache { known: Vec::new(), owned: OwnedVariables::default(), eager: None, most_bytes }
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
        let at = self.known.iter().rposition(|entry| entry.key == key);
        let is_reliable = |entry: &Entry<K, T>| match recording {
            Recording::Once => true,
            Recording::Checked => !(entry.changes || entry.n_calls.is_power_of_two()),
            Recording::EachCall => false,
        };
        if let Some(at) = at.filter(|&at| is_reliable(&self.known[at])) {
            let entry = self.known.remove(at);
            return Ok(Some(self.put(entry)));
        }
        let (program, with) = match record(&mut self.owned) {
            Ok(recorded) => recorded,
            Err(error) if matches!(error.kind(), ErrorKind::ReadsValue { .. }) => {
                return Ok(self.fall_back_to_eager(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let is_alike = |entry: &Entry<K, T>| entry.key == key && entry.program.program().is_alike(&program);
        let Some(alike) = self.known.iter().rposition(is_alike) else {
            return match at.filter(|_| recording == Recording::Checked) {
                Some(at) => {
                    let difference = self.known[at].program.program().difference(&program);
                    let difference =
                        difference.unwrap_or_else(|| "it makes other requests for memory".to_owned());
                    Ok(self
                        .fall_back_to_eager(format!("it does not do the same at every call: {difference}")))
                }
                None => {
                    let program = PlannedProgram::new(program);
                    Ok(Some(self.put(Entry { key, program, with, n_calls: 0, changes: false })))
                }
            };
        };
        let mut entry = self.known.remove(alike);
        if recording == Recording::Checked && !entry.changes {
            let difference = entry.program.program().difference(&program);
            entry.changes = difference.is_some();
            if let Some(difference) = difference {
                log::warn!(
                    "a function is recorded at every call from now on, because numbers in it change: {difference}; a variable \
                     that is assigned between calls would make that unnecessary"
                );
            }
        }
        entry.program.adopt(program);
        Ok(Some(self.put(Entry { with, ..entry })))
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
    }

    /// Puts an entry last; the least recently used ones are dropped if they take too much.
    fn put(&mut self, entry: Entry<K, T>) -> (&mut PlannedProgram, &mut T) {
        self.known.push(entry);
        let bytes = |entry: &Entry<K, T>| entry.program.heap_bytes();
        let mut all: usize = self.known.iter().map(bytes).sum();
        while all > self.most_bytes && self.known.len() > 1 {
            all -= bytes(&self.known.remove(0));
        }
        let Some(last) = self.known.last_mut() else { unreachable!("it has just been put there") };
        (&mut last.program, &mut last.with)
    }
}
