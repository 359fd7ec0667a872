//! `WatchGrowth`: says at the end of a run which lines left blocks behind at each step.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_report::{Growth, GrowthWatch};
use plimsoll_tensor::{Device, Result};

use crate::train::callback::{Callback, Requests};
use crate::train::event::StepEvent;
use crate::train::history::History;

/// Watches a device for memory that grows from step to step, and warns in the log at the end of the run. Clones share
/// what they have seen, so one that was kept can be asked for [`WatchGrowth::growth`].
///
/// It looks at all live blocks once in five steps, and changes neither bits nor bytes.
#[derive(Clone, Debug)]
pub struct WatchGrowth {
    device: Device,
    watch: Arc<Mutex<GrowthWatch>>,
}

impl WatchGrowth {
    /// Watches that device.
    pub fn new(device: &Device) -> WatchGrowth {
        WatchGrowth { device: device.clone(), watch: Arc::default() }
    }

    /// What had grown over ten steps at the last look, the most bytes a step first.
    pub fn growth(&self) -> Vec<Growth> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).growth()
    }
}

impl Callback for WatchGrowth {
    fn name(&self) -> &str {
        "watch_growth"
    }

    /// A GPU that goes on meanwhile is always as far: at the same mark of the next step.
    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, _event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).mark(self.device.pool());
        Ok(())
    }

    fn on_end(&mut self, _history: &History, _run: &mut Requests<'_>) -> Result<()> {
        let growth = self.growth();
        match growth.as_slice() {
            [] => {}
            [one] => log::warn!("memory grows: {one}"),
            [first, rest @ ..] => log::warn!("memory grows: {first}; and {} more lines", rest.len()),
        }
        Ok(())
    }
}
