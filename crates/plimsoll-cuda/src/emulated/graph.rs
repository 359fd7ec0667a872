//! Graphs of the emulated GPU: a list of launches of its own, issued anew each time.
//!
//! What a replay does follows from the captured list and its patches alone, never from what was asked for when it is launched:
//! a parameter that should have been patched and was not shows as wrong numbers.

use super::failures::{Failure, check};
use crate::backend::{Backend, Executable, Launches, dispatch_all};
use crate::error::Result;

struct Replay(Launches);

pub(super) fn capture(launches: &Launches) -> Result<Box<dyn Executable>> {
    check(Failure::Capture)?;
    Ok(Box::new(Replay(launches.clone())))
}

impl Executable for Replay {
    fn patch(&mut self, number: usize, launches: &mut Launches) -> Result<()> {
        check(Failure::Patch)?;
        self.0.take_params_of(number, launches);
        Ok(())
    }

    fn launch(&mut self, backend: &dyn Backend) -> Result<()> {
        check(Failure::Launch)?;
        dispatch_all(backend, &mut self.0)
    }
}
