//! Graphs of the emulated GPU: a list of launches of its own, issued anew each time.
//!
//! What a replay does follows from the captured list and its patches alone, never from what was asked for when it is launched:
//! a parameter that should have been patched and was not shows as wrong numbers.

use std::cell::Cell;

use crate::backend::{Backend, Executable, Launches, dispatch_all};
use crate::error::{Error, Result};

/// A moment at which a graph fails, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphFailure {
    /// When it is captured.
    Capture,
    /// When a parameter is patched.
    Patch,
    /// When it is launched.
    Launch,
}

thread_local! {
    static FAILURE: Cell<Option<GraphFailure>> = const { Cell::new(None) };
}

/// Makes graphs that this thread uses fail at that moment, until it is told otherwise.
pub fn fail_graphs(failure: Option<GraphFailure>) {
    FAILURE.set(failure);
}

fn check(moment: GraphFailure) -> Result<()> {
    match FAILURE.get() == Some(moment) {
        true => Err(Error::new(format!("a failure of {moment:?} that a test asked for"))),
        false => Ok(()),
    }
}

struct Replay(Launches);

pub(super) fn capture(launches: &Launches) -> Result<Box<dyn Executable>> {
    check(GraphFailure::Capture)?;
    Ok(Box::new(Replay(launches.clone())))
}

impl Executable for Replay {
    fn patch(&mut self, number: usize, launches: &mut Launches) -> Result<()> {
        check(GraphFailure::Patch)?;
        self.0.take_params_of(number, launches);
        Ok(())
    }

    fn launch(&mut self, backend: &dyn Backend) -> Result<()> {
        check(GraphFailure::Launch)?;
        dispatch_all(backend, &mut self.0)
    }
}
