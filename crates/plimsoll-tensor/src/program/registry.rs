//! Everything that keeps programs, so that all of them can be given back by one call.
//!
//! A function, or whatever else keeps programs, is listed while it lives. The list holds no function and keeps none alive: an
//! entry goes with its [`Listed`], and what it leads to is only looked for when [`clear_session`] is called.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, TryLockError, Weak};

use super::cache::{ProgramCache, ProgramKey};

/// Something that keeps programs.
pub(crate) trait KeepsPrograms: Send + Sync {
    /// Drops them, unless they are in use at this moment.
    fn clear_programs(&self);
}

impl<K: ProgramKey + Send, T: Send> KeepsPrograms for Mutex<ProgramCache<K, T>> {
    fn clear_programs(&self) {
        match self.try_lock() {
            Ok(mut programs) => programs.clear(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clear(),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

struct Registry {
    next: u64,
    listed: BTreeMap<u64, Weak<dyn KeepsPrograms>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { next: 0, listed: BTreeMap::new() });

/// An entry of the list; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Listed(u64);

impl Listed {
    /// Lists something that keeps programs.
    pub fn new(keeper: Weak<dyn KeepsPrograms>) -> Listed {
        let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        let number = registry.next;
        registry.next += 1;
        registry.listed.insert(number, keeper);
        Listed(number)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).listed.remove(&self.0);
    }
}

/// Drops all programs of all functions and sessions, with their plans and the constants that they own on devices. Functions stay
/// usable: they are recorded again when they are next called. Variables stay, whoever made them, and so do the programs of a
/// function that is being called at this moment.
#[doc(alias("clear_caches", "reset"))]
pub fn clear_session() {
    let listed: Vec<Weak<dyn KeepsPrograms>> = {
        let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        registry.listed.values().cloned().collect()
    };
    for keeper in listed.iter().filter_map(Weak::upgrade) {
        keeper.clear_programs();
    }
}
