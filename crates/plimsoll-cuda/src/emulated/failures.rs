//! Failures that tests ask for.

use std::cell::Cell;

use crate::error::{Error, Result};

/// A moment at which the emulated GPU fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// When a kernel is compiled and loaded.
    Build,
    /// When launches are captured and made into a graph.
    Capture,
    /// When a parameter of a graph is patched.
    Patch,
    /// When a graph is launched.
    Launch,
}

thread_local! {
    static FAILURE: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// Makes emulated GPUs that this thread uses fail at that moment, until it is told otherwise.
pub fn fail_at(failure: Option<Failure>) {
    FAILURE.set(failure);
}

pub(super) fn check(moment: Failure) -> Result<()> {
    match FAILURE.get() == Some(moment) {
        true => Err(Error::new(format!("a failure of {moment:?} that a test asked for"))),
        false => Ok(()),
    }
}
