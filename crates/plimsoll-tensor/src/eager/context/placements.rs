//! The placement log: which op ran on which device.

use std::marker::PhantomData;

use plimsoll_memory::Site;

use super::CONTEXT;
use crate::base::labels::site;
use crate::device::Device;

/// One line of the placement log: which op ran where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The op.
    pub op: &'static str,
    /// The name of the device.
    pub device: String,
    /// The user's line and layer.
    pub site: Site,
}

/// A log of the ops that run on this thread from its start on. An op is listed once: by the innermost log that is open.
#[must_use = "the log ends when this is dropped"]
pub struct PlacementLog {
    number: u64,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl PlacementLog {
    /// Starts a log.
    pub fn start() -> PlacementLog {
        let number = CONTEXT.with(|context| context.placements.borrow_mut().begin(Vec::new()));
        PlacementLog { number, stays_on_its_thread: PhantomData }
    }

    /// Ends the log; returns which ops ran where.
    pub fn end(self) -> Vec<Placement> {
        self.take()
    }

    fn take(&self) -> Vec<Placement> {
        let ended = CONTEXT.try_with(|context| context.placements.borrow_mut().end(self.number));
        ended.ok().flatten().unwrap_or_default()
    }
}

impl Drop for PlacementLog {
    fn drop(&mut self) {
        self.take();
    }
}

/// Runs `f` and lists which op ran on which device.
pub fn log_placements<R>(f: impl FnOnce() -> R) -> (R, Vec<Placement>) {
    let log = PlacementLog::start();
    let result = f();
    (result, log.end())
}

pub(crate) fn log_placement(op: &'static str, device: &Device) {
    CONTEXT.with(|context| {
        if context.placements.borrow().innermost().is_none() {
            return;
        }
        let placement = Placement { op, device: device.name().to_owned(), site: site(op) };
        if let Some(log) = context.placements.borrow_mut().innermost_mut() {
            log.push(placement);
        }
    });
}
