//! Warnings of the framework, for Python's `logging`.
//!
//! A warning may come from any thread, with locks held, so it waits here; whoever next comes back to Python hands it over to the
//! logger `plimsoll`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

static WAITING: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
static ARE_WAITING: AtomicBool = AtomicBool::new(false);
/// More than this are not kept: nobody comes back to Python.
const MOST: usize = 1000;

struct Waiting;

impl Log for Waiting {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.enabled(record.metadata()) && waiting.len() < MOST {
            waiting.push((record.level(), record.args().to_string()));
            ARE_WAITING.store(true, Ordering::Release);
        }
    }

    fn flush(&self) {}
}

/// Hands what waits to Python's logging.
///
/// # Errors
/// What a handler of the user's raises.
pub fn hand_over(py: Python<'_>) -> PyResult<()> {
    if !ARE_WAITING.load(Ordering::Acquire) {
        return Ok(());
    }
    let waiting = {
        ARE_WAITING.store(false, Ordering::Release);
        std::mem::take(&mut *WAITING.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let logger = py.import("logging")?.call_method1("getLogger", ("plimsoll",))?;
    for (level, text) in waiting {
        let method = if level == Level::Error { "error" } else { "warning" };
        logger.call_method1(method, ("%s", text))?;
    }
    Ok(())
}

/// Lets warnings wait from now on.
pub fn begin() {
    // Another extension of the process may log with a logger of its own; then that one has our warnings.
    if log::set_logger(&Waiting).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
