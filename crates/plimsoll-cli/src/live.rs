//! `train --live [PORT]`: the page of a run that goes on, in a browser on the same machine.

use std::path::Path;
use std::sync::Arc;

use plimsoll::Result;
use plimsoll::nn::train::{Callback, Requests, StepEvent};
use plimsoll::report::LiveView;

use crate::failure::Failure;
use crate::terminal;

/// Serves a recording, and is told of steps.
#[derive(Clone, Debug)]
pub struct Live(Arc<LiveView>);

impl Live {
    /// Begins to serve the profile of that path, and says where.
    ///
    /// # Errors
    /// A port that is taken.
    pub fn start(profile: &Path, port: u16) -> std::result::Result<Live, Failure> {
        let view = LiveView::start(profile, port).map_err(|error| {
            Failure::other(format!("--live {port}: {error}; without a port any that is free is taken"))
        })?;
        terminal::warn(&format!("live: {}", view.url()));
        Ok(Live(Arc::new(view)))
    }
}

impl Callback for Live {
    fn name(&self) -> &str {
        "live"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.0.step(event.step);
        Ok(())
    }
}
