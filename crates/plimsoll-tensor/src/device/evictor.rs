//! The evictor of a device: whom it asks for memory when its pool is full.
//!
//! It knows who can evict something and for which thread, and nothing of what that is: the logs of steps, in `remat`, choose
//! among their values. Between two requests it holds no log alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use plimsoll_memory::{Bytes, Reclaim};

use crate::base::error::{Error, Result};

/// What can free memory of a device that is full.
pub(crate) trait Evict: Send + Sync {
    /// Evicts values of at least `need` bytes together, or all that can be; whether that was anything.
    ///
    /// # Errors
    /// A value could not be offloaded.
    fn evict(&self, need: u64) -> Result<bool>;
}

/// Evicts values of a device's step logs when its pool is full. Each thread's requests are met by its own logs: a block that
/// another thread frees is reused after that thread's step, and what a thread recomputes should not depend on who else runs.
#[derive(Default)]
pub(crate) struct Evictor {
    step_logs: Mutex<Vec<(ThreadId, Weak<dyn Evict>)>>,
    /// Why a value could not be offloaded when the pool was full.
    failure: Mutex<Option<Error>>,
}

impl Evictor {
    /// Watches one log more, for as long as it lives; whether it is the first one ever.
    pub fn watch(&self, step_log: Weak<dyn Evict>) -> bool {
        let mut step_logs = self.lock();
        let is_first = step_logs.capacity() == 0;
        step_logs.retain(|(_, step_log)| step_log.strong_count() > 0);
        step_logs.push((thread::current().id(), step_log));
        is_first
    }

    /// Why a value could not be offloaded, if that is why memory is full.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(ThreadId, Weak<dyn Evict>)>> {
        self.step_logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Evictor {
    fn reclaim(&self, need: Bytes) -> bool {
        let this_thread = thread::current().id();
        let step_logs: Vec<Arc<dyn Evict>> = {
            let step_logs = self.lock();
            let own = step_logs.iter().filter(|(thread, _)| *thread == this_thread);
            own.filter_map(|(_, step_log)| step_log.upgrade()).collect()
        };
        let made = step_logs
            .iter()
            .map(|step_log| step_log.evict(need.get()))
            .find(|made| !matches!(made, Ok(false)));
        match made {
            None => false,
            Some(Ok(made)) => made,
            Some(Err(failure)) => {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                false
            }
        }
    }
}
