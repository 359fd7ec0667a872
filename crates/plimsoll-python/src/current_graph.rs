//! The graph that ops are added to instead of being run.
//!
//! While a graph is the current one of a thread, or eager execution is disabled for all, every op that goes through the edge is
//! called with that graph entered. So a graph is never left open behind a Python frame, and no order of scopes matters.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use plimsoll::Graph;

/// The graph of all threads where eager execution is disabled.
static DEFAULT: Mutex<Option<Graph>> = Mutex::new(None);
static HAS_DEFAULT: AtomicBool = AtomicBool::new(false);

thread_local!(
    /// The graphs that this thread has made current, by number, the last of which counts.
    static CURRENT: RefCell<Vec<(u64, Graph)>> = const { RefCell::new(Vec::new()) }
);

/// The graph that ops of this thread are added to, if they are not run at once.
pub fn current() -> Option<Graph> {
    let own = CURRENT.with(|current| current.borrow().last().map(|(_, graph)| graph.clone()));
    match own {
        None if HAS_DEFAULT.load(Ordering::Relaxed) => {
            DEFAULT.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
        own => own,
    }
}

/// Makes a graph the current one of this thread; returns the number with which that ends.
pub fn enter(graph: &Graph) -> u64 {
    CURRENT.with(|current| {
        let mut current = current.borrow_mut();
        let number = current.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        current.push((number, graph.clone()));
        number
    })
}

/// Ends what [`enter`] began; tells whether it was open on this thread.
pub fn leave(number: u64) -> bool {
    let ended = CURRENT.with(|current| {
        let mut current = current.borrow_mut();
        let at = current.iter().position(|(open, _)| *open == number)?;
        Some(current.remove(at))
    });
    ended.is_some()
}

/// The graph of all threads that have none of their own, or none.
pub fn set_default(graph: Option<Graph>) {
    HAS_DEFAULT.store(graph.is_some(), Ordering::Relaxed);
    let before = std::mem::replace(&mut *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner), graph);
    drop(before);
}
