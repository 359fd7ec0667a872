//! Ctrl-C: the present step ends, then the run does. A second one ends the program at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};
use crate::terminal::warn;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether somebody has asked the run to end.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Listens for Ctrl-C and for the signals that ask a program to end.
///
/// # Errors
/// A system that does not let the program listen.
pub fn listen() -> Result<(), Failure> {
    static LISTENING: OnceLock<Result<(), String>> = OnceLock::new();
    let heard = || {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
        warn("interrupted: the present step is finished first; once more ends at once");
    };
    let listening = LISTENING.get_or_init(|| ctrlc::set_handler(heard).map_err(|error| error.to_string()));
    listening.clone().map_err(|error| Failure::other(format!("cannot listen for Ctrl-C: {error}")))
}
