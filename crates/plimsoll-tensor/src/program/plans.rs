//! The ways to run a program: everything retained, or less memory for more time.
//!
//! Decisions are made by `plimsoll-plan` from the program's trace; each is a program again, whose memory is played on a ghost
//! of the device. The function is not called for any of it. The ways do not depend on a limit, so a limit that changes
//! takes another one.

use plimsoll_memory::OffsetPlan;
use plimsoll_plan::{Decisions, Family, plan_offsets};

use super::{Played, Program};
use crate::device::Device;
use crate::error::Result;

impl Program {
    /// Where the blocks of the program lie if they are planned, and what it takes then on a device as it is.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn placed(&self, device: &Device) -> Result<(Played, OffsetPlan)> {
        let offsets = plan_offsets(&self.requests(device)?).plan;
        Ok((self.play(device, Some(&offsets))?, offsets))
    }

    /// The ways to run the program on a device as it is, from the leanest to the one that retains everything.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn memory_plans(&self, device: &Device) -> Result<Family> {
        let trace = self.trace(device, device.stats().in_use);
        let natural = self.placed(device)?.0;
        Family::new(&trace, natural.in_bytes(), |decisions| match self.rematerialised(&trace, decisions) {
            Some(program) => Ok(Some(program.placed(device)?.0.in_bytes())),
            None => Ok(None),
        })
    }

    /// The program that a way of [`Program::memory_plans`] stands for.
    pub fn planned(&self, device: &Device, decisions: &Decisions) -> Option<Program> {
        self.rematerialised(&self.trace(device, 0), decisions)
    }
}

impl Played {
    /// The same for a planner.
    fn in_bytes(&self) -> plimsoll_plan::Played {
        plimsoll_plan::Played { peak: self.peak, committed: self.committed }
    }
}
