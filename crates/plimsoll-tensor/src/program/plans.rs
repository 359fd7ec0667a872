//! Running a program under its device's limit.
//!
//! A program that does not fit is made to: decisions by `plimsoll-plan` about its trace give other programs that compute the
//! same with less memory and more time, and each is played on a ghost of the device. The function is not called for any of
//! it. The plans do not depend on the limit, so a limit that changes takes another one, and a limit that no plan fits is
//! refused before anything runs, with the least that works.

use std::io;
use std::sync::Arc;

use plimsoll_memory::{OffsetPlan, Planned};
use plimsoll_plan::{Candidates, Decisions, Family, Measured, Trace, plan_offsets};

use super::{Argument, Played, Program};
use crate::context;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
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
            Some(program) => Ok(program.placed_if_possible(device)?.map(|(played, _)| played.in_bytes())),
            None => Ok(None),
        })
    }

    /// Like [`Program::placed`]; nothing if there is no room for what is moved out of the device's memory.
    fn placed_if_possible(&self, device: &Device) -> Result<Option<(Played, OffsetPlan)>> {
        match self.placed(device) {
            Err(error) if self.n_copies > 0 && is_full(&error) => Ok(None),
            placed => placed.map(Some),
        }
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
    /// What is known of its memory, once a limit has asked.
    known: Option<Known>,
    heap_bytes: usize,
}

/// What is known of a program's memory.
struct Known {
    /// What it takes when everything is retained, and where its blocks lie then.
    natural: plimsoll_plan::Played,
    offsets: OffsetPlan,
    /// What the device held when that was found out.
    held: u64,
    plans: Option<Plans>,
}

/// The ways to run a program with less memory.
struct Plans {
    trace: Trace,
    candidates: Candidates,
    /// The one that was run last: its number, its program, and where its blocks lie.
    taken: Option<(usize, Program, OffsetPlan)>,
}

/// A limit, and the one that leaves a program as much where the device holds what it held when the figures were made.
#[derive(Clone, Copy)]
struct Limit {
    now: u64,
    then: u64,
}

impl Limit {
    /// Figures were made when `then` bytes were held, and `now` are. Less than a granule is no difference: bytes are
    /// committed in granules.
    fn new(limit: u64, then: u64, now: u64, granule: u64) -> Limit {
        let granules = |bytes: u64| bytes / granule * granule;
        let then = match then.checked_sub(now) {
            Some(less) => limit.saturating_add(granules(less)),
            None => limit.saturating_sub(granules(now - then)),
        };
        Limit { now: limit, then }
    }

    /// A figure that is made now, as it would have been then.
    fn figure_then(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.then).saturating_sub(self.now)
    }
}

impl PlannedProgram {
    /// A program of which nothing is planned yet.
    pub fn new(program: Program) -> PlannedProgram {
        let heap_bytes = program.heap_bytes();
        PlannedProgram { program, known: None, heap_bytes }
    }

    /// The program, with everything retained.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Takes over the numbers, tensors and variables of a recording that is like the program's; what is planned stays.
    pub fn adopt(&mut self, recorded: Program) {
        let plans = self.known.as_mut().and_then(|known| known.plans.as_mut());
        if let Some((_, taken, _)) = plans.and_then(|plans| plans.taken.as_mut()) {
            taken.adopt(&recorded);
        }
        self.program = recorded;
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
        let _line = context::at_callers_line();
        self.run_passed(Argument::all(arguments))
    }

    /// Like [`PlannedProgram::run`], with arguments that can be given away.
    pub(crate) fn run_passed(&mut self, arguments: Vec<Argument>) -> Result<Vec<Tensor>> {
        let device = &self.program.device;
        let reference = match device.verifies() && !device.is_ghost() {
            true => Some(self.program.reference(arguments.clone())?),
            false => None,
        };
        let is_planned = self.prepare_for(&arguments)?.is_some();
        let taken = self.known.as_ref().filter(|_| is_planned);
        let (program, offsets) = match taken {
            None => (&self.program, None),
            Some(known) => match known.plans.as_ref().and_then(|plans| plans.taken.as_ref()) {
                Some((_, program, offsets)) => (program, Some(offsets)),
                None => (&self.program, Some(&known.offsets)),
            },
        };
        let reference = reference.as_ref().map(|reference| (&self.program, reference));
        program.run_checked(arguments, offsets, reference)
    }

    /// Plans the program for the limit of its device as it is now; returns what will run, and where its blocks lie. Nothing
    /// is planned where there is no limit.
    ///
    /// # Errors
    /// A limit that no plan fits.
    pub fn prepare(&mut self) -> Result<Option<(&Program, &OffsetPlan)>> {
        self.prepare_for(&[])
    }

    /// Like [`PlannedProgram::prepare`], for arguments that are there already, as far as there are any.
    pub(crate) fn prepare_for(&mut self, arguments: &[Argument]) -> Result<Option<(&Program, &OffsetPlan)>> {
        let Some(limit) = self.program.device.pool().limit().map(|limit| limit.get()) else {
            return Ok(None);
        };
        let ground = self.program.ground(arguments)?;
        let device = ground.device.clone();
        let held = device.pool().held();
        let mut known = match self.known.take() {
            Some(known) => known,
            None => Known::new(&self.program, &device, held)?,
        };
        let then = Limit::new(limit, known.held, held, device.pool().granule());
        let mut fits = known.fit(&self.program, &device, then)?;
        if !fits && known.held != held {
            // Arithmetic over what is held says that nothing fits; how it lies in memory may say otherwise.
            known = Known::new(&self.program, &device, held)?;
            fits = known.fit(&self.program, &device, Limit { now: limit, then: limit })?;
        }
        if !fits {
            let refusal = known.refusal(&self.program, &device, limit)?;
            self.know(known);
            return Err(refusal);
        }
        self.know(known);
        let Some(known) = &self.known else { unreachable!("it has just been put there") };
        Ok(Some(match known.plans.as_ref().and_then(|plans| plans.taken.as_ref()) {
            Some((_, program, offsets)) => (program, offsets),
            None => (&self.program, &known.offsets),
        }))
    }

    fn know(&mut self, known: Known) {
        let offsets = |offsets: &OffsetPlan| offsets.entries().len() * 2 * size_of::<Planned>();
        let plans = known.plans.as_ref().map_or(0, |plans| {
            let taken = plans.taken.as_ref();
            let taken = taken.map_or(0, |(_, program, plan)| program.heap_bytes() + offsets(plan));
            taken + plans.candidates.heap_bytes() + plans.trace.heap_bytes()
        });
        self.heap_bytes = self.program.heap_bytes() + offsets(&known.offsets) + plans;
        self.known = Some(known);
    }
}

impl Known {
    fn new(program: &Program, device: &Device, held: u64) -> Result<Known> {
        let (natural, offsets) = program.placed(device)?;
        Ok(Known { natural: natural.in_bytes(), offsets, held, plans: None })
    }

    /// Takes the fastest way that fits a limit; whether there is one.
    fn fit(&mut self, program: &Program, device: &Device, limit: Limit) -> Result<bool> {
        if self.natural.committed <= limit.then {
            self.plans.iter_mut().for_each(|plans| plans.taken = None);
            return Ok(true);
        }
        let plans = self.plans.get_or_insert_with(|| {
            let trace = program.trace(device, device.stats().in_use);
            let candidates = program.device.candidates(&trace, self.natural);
            Plans { trace, candidates, taken: None }
        });
        let mut last = None;
        let Plans { trace, candidates, taken } = plans;
        let way = candidates.within(limit.then, |decisions| {
            let (measured, placed) = measure(program, trace, device, decisions, limit)?;
            last = placed.map(|(planned, offsets)| (decisions.clone(), planned, offsets));
            Ok::<_, Error>(measured)
        })?;
        let Some(way) = way else { return Ok(false) };
        let decisions = candidates.decisions(way);
        // The one that is taken was measured last, or at an earlier limit.
        let last = last.filter(|(last, ..)| decisions.is_some_and(|taken| Arc::ptr_eq(taken, last)));
        *taken = match (taken.take(), last) {
            (_, Some((_, planned, offsets))) => Some((way, planned, offsets)),
            (Some(before), None) if before.0 == way => Some(before),
            _ => match decisions.and_then(|taken| program.rematerialised(trace, taken)) {
                Some(planned) => {
                    let (_, offsets) = planned.placed(device)?;
                    Some((way, planned, offsets))
                }
                None => None,
            },
        };
        Ok(true)
    }

    /// The error of a limit under which no plan fits, with who holds what in the leanest one. The figures are those of now.
    fn refusal(&mut self, program: &Program, device: &Device, limit: u64) -> Result<Error> {
        let Some(Plans { trace, candidates, .. }) = &mut self.plans else {
            unreachable!("a program is refused when all its plans are")
        };
        let (least, leanest) = candidates.least(|decisions, limit| {
            Ok::<_, Error>(measure(program, trace, device, decisions, Limit { now: limit, then: limit })?.0)
        })?;
        let leanest =
            candidates.decisions(leanest).and_then(|decisions| program.rematerialised(trace, decisions));
        let owners = leanest.as_ref().unwrap_or(program).play(device, None)?.owners;
        Ok(Error::limit(limit, least, self.natural.committed, owners))
    }
}

/// What a candidate takes, with its program and where its blocks lie if its peak is within the limit.
fn measure(
    program: &Program,
    trace: &Trace,
    device: &Device,
    decisions: &Decisions,
    limit: Limit,
) -> Result<(Measured, Option<(Program, OffsetPlan)>)> {
    let Some(planned) = program.rematerialised(trace, decisions) else {
        return Ok((Measured::Impossible, None));
    };
    let peak = match planned.play(device, None) {
        Err(error) if planned.n_copies > 0 && is_full(&error) => return Ok((Measured::Impossible, None)),
        played => limit.figure_then(played?.peak),
    };
    if peak > limit.then {
        return Ok((Measured::Peak(peak), None));
    }
    let Some((played, offsets)) = planned.placed_if_possible(device)? else {
        return Ok((Measured::Impossible, None));
    };
    let committed = limit.figure_then(played.committed);
    let measured = Measured::Placed(plimsoll_plan::Played { peak, committed });
    Ok((measured, Some((planned, offsets))))
}

/// Whether an error says that there was no room: what is moved elsewhere may leave holes there, too small for what comes next.
fn is_full(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::OutOfMemory(_) => true,
        ErrorKind::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    }
}
