//! Warnings of the libraries, on stderr.

use log::{LevelFilter, Log, Metadata, Record};

use crate::terminal::warn;

/// Writes warnings and errors on stderr.
struct Warnings;

impl Log for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            warn(&format!("{}: {}", record.level().as_str().to_lowercase(), record.args()));
        }
    }

    fn flush(&self) {}
}

/// Shows warnings from here on. A program that has a logger of its own keeps it.
pub fn show() {
    if log::set_logger(&Warnings).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
