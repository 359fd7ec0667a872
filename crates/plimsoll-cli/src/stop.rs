//! Ctrl-C: the present step ends, then the run does. A second one ends the program at once, and so does the first while there
//! is no step to finish: before the first one, when files are read and the run is planned, and after the last. A loop that
//! waits for its data ends the wait.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure};
use crate::terminal::warn;

static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether steps are running, after each of which the flag is checked.
static STEPPING: AtomicBool = AtomicBool::new(false);

/// Whether the run was asked to stop.
pub fn is_stop_requested() -> bool {
    STOP_REQUESTED.load(Ordering::SeqCst)
}

/// Runs a loop of steps, which checks the flag after each of them.
pub fn between_steps<R>(steps: impl FnOnce() -> R) -> R {
    STEPPING.store(true, Ordering::SeqCst);
    let result = steps();
    STEPPING.store(false, Ordering::SeqCst);
    result
}

/// Listens for Ctrl-C and for the signals that ask a program to end.
///
/// # Errors
/// A system that does not let the program listen.
pub fn listen() -> Result<(), Failure> {
    static LISTENING: OnceLock<Result<(), String>> = OnceLock::new();
    let heard = || {
        if !STEPPING.load(Ordering::SeqCst) {
            warn("interrupted");
            std::process::exit(Exit::Interrupted as i32);
        }
        if STOP_REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(Exit::Interrupted as i32);
        }
        warn("interrupted: the present step is finished first; once more ends at once");
    };
    // A step that never comes, because its data do not, is no step to finish.
    plimsoll::data::stop_waiting_when(is_stop_requested);
    let why = |error| match error {
        ctrlc::Error::System(error) => error.to_string(),
        other => other.to_string(),
    };
    let listening = LISTENING.get_or_init(|| ctrlc::set_handler(heard).map_err(why));
    listening.clone().map_err(|error| {
        Failure::other(format!(
            "cannot listen for Ctrl-C, for which a thread is needed: {error}; a higher limit may help (`ulimit -u`, \
             `ulimit -v`)"
        ))
    })
}
