//! Running a program under its device's limit.
//!
//! A program that does not fit is made to: decisions by `plimsoll-plan` about its trace give other programs that compute the
//! same with less memory and more time, and each is played on a ghost of the device. The function is not called for any of
//! it. The plans do not depend on the limit, so a limit that changes takes another one, and a limit that no plan fits is
//! refused before anything runs, with the least that works.

use plimsoll_memory::{OffsetPlan, Planned};
use plimsoll_plan::{Decisions, Family, plan_offsets};

use super::{Played, Program};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Program {
    /// Where the blocks of the program lie if they are planned, and what it takes then on its device as that is.
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

/// A program, and what is planned of it so far.
pub struct PlannedProgram {
    program: Program,
    /// What it takes when everything is retained, and where its blocks lie then.
    natural: Option<(Played, OffsetPlan)>,
    plans: Option<Family>,
    /// The plan that was run last: its number, its program, and where its blocks lie.
    taken: Option<(usize, Program, OffsetPlan)>,
    heap_bytes: usize,
}

impl PlannedProgram {
    /// A program of which nothing is planned yet.
    pub fn new(program: Program) -> PlannedProgram {
        let heap_bytes = program.heap_bytes();
        PlannedProgram { program, natural: None, plans: None, taken: None, heap_bytes }
    }

    /// The program, with everything retained.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The bytes of the heap that all this takes, roughly.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// Runs the program under its device's limit. Without one it is run as it was recorded.
    ///
    /// # Errors
    /// A limit that no plan fits, before anything runs; else as [`Program::run`].
    #[track_caller]
    pub fn run(&mut self, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
        match self.prepare()? {
            Some((program, offsets)) => program.run(arguments, Some(offsets)),
            None => self.program.run(arguments, None),
        }
    }

    /// Plans the program for the limit of its device as it is now; returns what will run, and where its blocks lie. Nothing
    /// is planned where there is no limit.
    ///
    /// # Errors
    /// A limit that no plan fits.
    pub fn prepare(&mut self) -> Result<Option<(&Program, &OffsetPlan)>> {
        let device = self.program.device.clone();
        let Some(limit) = device.pool().limit().map(|limit| limit.get()) else { return Ok(None) };
        if self.natural.is_none() {
            self.natural = Some(self.program.placed(&device)?);
            self.weigh();
        }
        if self.natural.as_ref().is_some_and(|(natural, _)| natural.committed <= limit) {
            return Ok(self.natural.as_ref().map(|(_, offsets)| (&self.program, offsets)));
        }
        if self.plans.is_none() {
            self.plans = Some(self.program.memory_plans(&device)?);
            self.weigh();
        }
        let Some(plans) = &self.plans else { unreachable!("they have just been made") };
        let Some(plan) = plans.within(limit) else { return Err(self.refusal(&device, limit, plans)?) };
        if self.taken.as_ref().is_none_or(|(last, ..)| *last != plan) {
            self.taken = self.take(&device, plans, plan)?;
            self.weigh();
        }
        let taken = self.taken.as_ref().map(|(_, program, offsets)| (program, offsets));
        Ok(taken.or(self.natural.as_ref().map(|(_, offsets)| (&self.program, offsets))))
    }

    /// The program of a plan and where its blocks lie; nothing for the one that retains everything.
    fn take(
        &self,
        device: &Device,
        plans: &Family,
        number: usize,
    ) -> Result<Option<(usize, Program, OffsetPlan)>> {
        let decisions = plans.members()[number].decisions.as_ref();
        let Some(program) = decisions.and_then(|decisions| self.program.planned(device, decisions)) else {
            return Ok(None);
        };
        let (_, offsets) = program.placed(device)?;
        Ok(Some((number, program, offsets)))
    }

    /// The error of a limit under which no plan fits, with who holds what in the leanest one.
    fn refusal(&self, device: &Device, limit: u64, plans: &Family) -> Result<Error> {
        let leanest = self.take(device, plans, 0)?;
        let program = leanest.as_ref().map_or(&self.program, |(_, program, _)| program);
        let natural = plans.members().last().map_or(0, |plan| plan.played.committed);
        Ok(Error::limit(limit, plans.least(), natural, program.play(device, None)?.owners))
    }

    /// Counts the bytes of the heap.
    fn weigh(&mut self) {
        let offsets = |offsets: &OffsetPlan| offsets.entries().len() * 2 * size_of::<Planned>();
        let natural = self.natural.as_ref().map_or(0, |(_, plan)| offsets(plan));
        let taken = self.taken.as_ref().map_or(0, |(_, program, plan)| program.heap_bytes() + offsets(plan));
        let plans = self.plans.as_ref().map_or(0, Family::heap_bytes);
        self.heap_bytes = self.program.heap_bytes() + natural + taken + plans;
    }
}
