//! Signals while somebody waits without the GIL: what a handler raised is kept until the wait has ended.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::exits;

static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Whether a signal wants the program to stop; to be asked now and then, with no lock held: a handler may do anything.
pub fn is_asked() -> bool {
    let Some(Err(raised)) = exits::try_attached(|py| py.check_signals()) else { return false };
    *RAISED.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
    true
}

/// What ended a wait, if a signal did.
pub fn take() -> Option<PyErr> {
    RAISED.lock().unwrap_or_else(PoisonError::into_inner).take()
}
