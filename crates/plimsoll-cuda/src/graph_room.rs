//! The room that a device has for executables, which all its programs share.
//!
//! What a driver takes for executables lies outside every pool, so it is bounded here, in launches: all executables of a device
//! together have no more than the room. A program that finds no room runs launch by launch, unless another one has not run for
//! long: then that one's executables go. Capturing costs as much as several runs, so this happens seldom.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A program that has not run for so many runs of the device's programs may lose its executables to another one,
const IDLE_RUNS: u64 = 64;
/// and no other program does so for so many runs.
const RUNS_APART: u64 = 256;

/// What the room asks of a program.
pub(crate) trait Program: Send {
    /// Whether it has executables.
    fn has_executables(&self) -> bool;

    /// Its latest run, by the number that the room gave it.
    fn last_run(&self) -> u64;

    /// Destroys its executables.
    fn clear(&mut self);
}

/// How many launches the executables of a device have, and may have.
#[derive(Default)]
pub struct GraphRoom {
    max_launches: AtomicUsize,
    n_launches: AtomicUsize,
    peak_launches: AtomicUsize,
    /// The runs that began: what time is told by.
    n_runs: AtomicU64,
    programs: Mutex<Programs>,
}

#[derive(Default)]
struct Programs {
    all: Vec<Weak<Mutex<dyn Program>>>,
    /// Before this run no program loses its executables.
    next_eviction: u64,
}

/// A part of the room, which is free again when this is dropped.
pub(crate) struct Share {
    room: Arc<GraphRoom>,
    n_launches: usize,
}

impl GraphRoom {
    /// Sets the most launches that executables may have together. Where there are more, all of them go; they are made anew as
    /// far as there is room.
    pub fn set_max_launches(&self, most: usize) {
        self.max_launches.store(most, Ordering::Relaxed);
        if self.n_launches() > most {
            let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
            let all: Vec<_> = programs.all.iter().filter_map(Weak::upgrade).collect();
            drop(programs);
            for program in all {
                program.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
        }
    }

    /// Takes over what a device had at its peak of which this one is a copy.
    pub fn take_over(&self, other: &GraphRoom) {
        self.peak_launches.fetch_max(other.peak_launches(), Ordering::Relaxed);
    }

    /// The launches that executables have now.
    pub fn n_launches(&self) -> usize {
        self.n_launches.load(Ordering::Relaxed)
    }

    /// The most launches that executables ever had at a time: a driver keeps what it has taken.
    pub fn peak_launches(&self) -> usize {
        self.peak_launches.load(Ordering::Relaxed)
    }

    /// A run begins; its number.
    pub(crate) fn begin_run(&self) -> u64 {
        self.n_runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes a program that may have executables.
    pub(crate) fn add(&self, program: Weak<Mutex<dyn Program>>) {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.all.retain(|known| known.strong_count() > 0);
        programs.all.push(program);
    }

    /// Room for so many launches, if there is any or can be made. Programs that run at this moment keep what they have.
    pub(crate) fn take(self: &Arc<GraphRoom>, n_launches: usize) -> Option<Share> {
        loop {
            let taken = self.n_launches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                Some(taken + n_launches).filter(|&sum| sum <= self.max_launches.load(Ordering::Relaxed))
            });
            if let Ok(before) = taken {
                self.peak_launches.fetch_max(before + n_launches, Ordering::Relaxed);
                return Some(Share { room: self.clone(), n_launches });
            }
            if n_launches > self.max_launches.load(Ordering::Relaxed) || !self.evict() {
                return None;
            }
        }
    }

    /// Destroys the executables of the program that has not run for longest, if that is long; whether there was one.
    fn evict(&self) -> bool {
        let now = self.n_runs.load(Ordering::Relaxed);
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if now < programs.next_eviction {
            return false;
        }
        let all: Vec<_> = programs.all.iter().filter_map(Weak::upgrade).collect();
        // Whoever asks has its own locked, and so has every program that runs.
        let idle = all.iter().filter_map(|program| program.try_lock().ok());
        let idle = idle.filter(|program| program.has_executables() && now - program.last_run() > IDLE_RUNS);
        match idle.min_by_key(|program| program.last_run()) {
            Some(mut program) => {
                program.clear();
                programs.next_eviction = now + RUNS_APART;
                true
            }
            None => false,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.n_launches.fetch_sub(self.n_launches, Ordering::Relaxed);
    }
}

impl fmt::Debug for GraphRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.max_launches.load(Ordering::Relaxed);
        write!(f, "GraphRoom({} of {most} launches)", self.n_launches())
    }
}
