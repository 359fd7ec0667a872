//! Running a program under the limits of its devices.
//!
//! A program that does not fit is rematerialised: decisions by `plimsoll-plan` about its trace give other programs that
//! compute the same with less memory and more time, and each is dry-run on a ghost of the device. The function is not
//! called for any of it. The plans do not depend on the limit, so a limit that changes takes another plan, and a limit that
//! no plan fits is refused before anything runs, with the least that works. A program of several ranks has a plan when all of
//! them have one: see `agreement.rs`.

use std::io;
use std::sync::Arc;

use plimsoll_memory::{Bytes, OffsetPlan, Rows};
use plimsoll_plan::{Decisions, LazyPlanSet, Measured, Peaks, PlanSet, Trace, plan_offsets};
use smallvec::SmallVec;

use super::footprint::OnDevice;
use super::graphs::ProgramGraphs;
use super::{Agreed, Argument, Choice, Footprint, Peers, Program};
use crate::base::error::{Error, ErrorKind, Result};
use crate::device::Device;
use crate::eager::context;
use crate::eager::tensor::Tensor;

impl Program {
    /// Where the blocks of the program lie on its first device if they are planned, and what it takes then of that device as it
    /// is.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn placed(&self, device: &Device) -> Result<(Footprint, OffsetPlan)> {
        self.on(0).placed(device)
    }

    /// The plans to run the program with less memory of its first device as that is, from the leanest to the one that
    /// retains everything.
    ///
    /// # Errors
    /// Memory beyond all addresses of the device.
    pub fn memory_plans(&self, device: &Device) -> Result<PlanSet> {
        let trace = self.trace(device, device.stats().in_use);
        let natural = self.placed(device)?.0;
        PlanSet::new(&trace, natural.peaks(), |decisions| match self.rematerialised(&trace, decisions) {
            Some(program) => {
                Ok(program.on(0).placed_if_possible(device)?.map(|(footprint, _)| footprint.peaks()))
            }
            None => Ok(None),
        })
    }

    /// The program of a plan of [`Program::memory_plans`].
    pub fn planned(&self, device: &Device, decisions: &Decisions) -> Option<Program> {
        self.rematerialised(&self.trace(device, 0), decisions)
    }
}

impl OnDevice<'_> {
    fn placed(self, device: &Device) -> Result<(Footprint, OffsetPlan)> {
        let offsets = plan_offsets(&self.requests(device)?).plan;
        Ok((self.footprint(device, Some(&offsets))?, offsets))
    }

    /// Like [`Program::placed`]; nothing if there is no room for what is offloaded.
    fn placed_if_possible(self, device: &Device) -> Result<Option<(Footprint, OffsetPlan)>> {
        match self.placed(device) {
            Err(error) if self.program.n_copies > 0 && is_full(&error) => Ok(None),
            placed => placed.map(Some),
        }
    }

    /// The same device's view of a program that was made from this one.
    fn of(self, program: &Program) -> OnDevice<'_> {
        OnDevice { program, number: self.number }
    }
}

impl Footprint {
    /// The same for a planner.
    fn peaks(&self) -> Peaks {
        Peaks { peak: self.peak, committed: self.committed }
    }
}

/// A program, and its plans so far.
pub struct PlannedProgram {
    /// They go before the program, whose ops have the kernels that they launch.
    graphs: ProgramGraphs,
    program: Program,
    /// The program as it was recorded, where passes have changed it; none if there are no passes, or they changed nothing.
    recorded: Option<Program>,
    has_passes: bool,
    /// What is known of its memory on each of its devices, once a limit of that device has been met,
    known: SmallVec<[Option<Known>; 1]>,
    /// and what other ranks have agreed to there.
    agreed: SmallVec<[Option<AgreedPlan>; 1]>,
    /// What runs where the limits of several devices need other plans than the natural one.
    combined: Option<Combined>,
    /// Whether it was run before.
    has_run: bool,
    heap_bytes: usize,
}

/// What ranks have agreed on for a device.
#[derive(Clone, Copy)]
struct AgreedPlan {
    /// The limit of the device then.
    limit: Option<u64>,
    /// The number of the plan that all of them run; where each runs its own, the first one.
    number: usize,
}

/// What is known of a program's memory on a device.
struct Known {
    /// What it takes when everything is retained, and where its blocks lie then.
    natural: Peaks,
    offsets: OffsetPlan,
    /// What the device held when that was found out.
    held: u64,
    plans: Option<Plans>,
}

/// The plans to run a program with less memory of a device.
struct Plans {
    trace: Trace,
    plan_set: LazyPlanSet,
    /// The one that was run last: its number, its program, and its offsets.
    taken: Option<(usize, Program, OffsetPlan)>,
}

/// A program that is rematerialised for several devices: what is decided about one changes nothing on the others.
struct Combined {
    /// The plan that is chosen for each device.
    chosen: SmallVec<[Option<usize>; 1]>,
    program: Program,
}

/// Where the blocks of a program lie on each of its devices, as far as that is planned.
pub type Offsets<'a> = SmallVec<[Option<&'a OffsetPlan>; 1]>;

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
        let (heap_bytes, n_devices) = (program.heap_bytes(), program.devices.len());
        let (recorded, has_passes, combined) = (None, false, None);
        let known = (0..n_devices).map(|_| None).collect();
        let (agreed, graphs, has_run) =
            (SmallVec::from_elem(None, n_devices), ProgramGraphs::default(), false);
        PlannedProgram { program, recorded, has_passes, known, agreed, combined, graphs, has_run, heap_bytes }
    }

    /// A program that is changed by passes, which keep its bits and never raise its peak.
    ///
    /// # Errors
    /// Memory beyond all addresses of a device.
    pub fn with_passes(recorded: Program) -> Result<PlannedProgram> {
        let mut planned = match recorded.with_passes()? {
            Some(program) => PlannedProgram { recorded: Some(recorded), ..PlannedProgram::new(program) },
            None => PlannedProgram::new(recorded),
        };
        planned.has_passes = true;
        planned.heap_bytes = planned.count_heap_bytes();
        Ok(planned)
    }

    /// The program that runs, with everything retained.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program as it was recorded.
    pub fn recorded(&self) -> &Program {
        self.recorded.as_ref().unwrap_or(&self.program)
    }

    /// Takes over the numbers, tensors and variables of a recording that is like the program's; what is planned stays.
    ///
    /// # Errors
    /// Memory beyond all addresses of a device.
    pub fn adopt(&mut self, recorded: Program) -> Result<()> {
        if self.has_passes {
            let passed = PlannedProgram::with_passes(recorded)?;
            // Numbers that differ may have made calls differ that were equal before.
            if !passed.program.is_alike(&self.program) {
                *self = passed;
                return Ok(());
            }
            self.recorded = passed.recorded;
            self.take_numbers(passed.program);
        } else {
            self.take_numbers(recorded);
        }
        Ok(())
    }

    fn take_numbers(&mut self, recorded: Program) {
        let plans = self.known.iter_mut().flatten().filter_map(|known| known.plans.as_mut());
        let taken = plans.filter_map(|plans| plans.taken.as_mut()).map(|(_, program, _)| program);
        let combined = self.combined.iter_mut().map(|combined| &mut combined.program);
        taken.chain(combined).for_each(|program| program.adopt(&recorded));
        self.program = recorded;
        self.heap_bytes = self.count_heap_bytes();
    }

    /// The bytes of the heap that all this takes.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// The bytes of devices that it alone owns: constants, and what the driver takes for its CUDA graphs at most.
    pub(super) fn device_bytes(&self) -> u64 {
        self.program.graph_bytes() + self.graphs.bytes(&self.program)
    }

    /// Runs the program under the limits of its devices. Without one it is run as it was recorded.
    ///
    /// # Errors
    /// A limit that no plan fits, before anything runs; else as [`Program::run`].
    #[track_caller]
    pub fn run(&mut self, arguments: &[&Tensor]) -> Result<Vec<Tensor>> {
        let _line = context::at_callers_line();
        self.run_passed(Argument::all(arguments))
    }

    /// Like [`PlannedProgram::run`], with arguments that can be donated.
    pub(crate) fn run_passed(&mut self, arguments: Vec<Argument>) -> Result<Vec<Tensor>> {
        if !std::mem::replace(&mut self.has_run, true) {
            self.program.compile_ahead();
        }
        self.graphs.begin_run(&self.program)?;
        let is_planned = self.prepare_for(&arguments)?.is_some();
        // Planning may have taken the program as it was recorded, so what it is compared with comes after.
        let verifies = |device: &Device| device.verifies() && !device.is_ghost();
        let reference = match self.program.devices.iter().any(verifies) {
            true => Some(self.program.reference(arguments.clone())?),
            false => None,
        };
        let (program, offsets) = match is_planned {
            true => self.taken(),
            false => (&self.program, Offsets::new()),
        };
        let runs_as_graph = reference.is_none() && program.device().cuda_graphs();
        let reference = reference.as_ref().map(|reference| (&self.program, reference));
        let as_graph = self.graphs.get().filter(|_| runs_as_graph);
        program.run_checked(arguments, &offsets, reference, as_graph)
    }

    /// Plans the program for the limits of its devices as they are now; returns what will run, and where its blocks lie.
    /// Nothing is planned where there is no limit.
    ///
    /// # Errors
    /// A limit that no plan fits.
    pub fn prepare(&mut self) -> Result<Option<(&Program, Offsets<'_>)>> {
        self.prepare_for(&[])
    }

    /// Like [`PlannedProgram::prepare`], for arguments that are there already, as far as there are any.
    pub(crate) fn prepare_for(&mut self, arguments: &[Argument]) -> Result<Option<(&Program, Offsets<'_>)>> {
        let is_planned = self.choose_plan(arguments).inspect_err(|refused| self.tell_refusal(refused))?;
        Ok(is_planned.then(|| self.taken()))
    }

    /// Tells whoever records the device's pool that a program was refused for its limit, and who holds what meanwhile.
    fn tell_refusal(&self, refused: &Error) {
        let device = self.program.device();
        if let (Some(least), true) = (least_of(refused), device.pool().has_sink()) {
            device.pool().mark_shortage(least);
            device.tell_holders(None);
        }
    }

    /// Whether a plan is needed, once one that fits is chosen. A fused call needs all that it reads at once, where the calls that
    /// it was made of need it one after the other: where no plan of the program fits, the program as it was recorded may fit,
    /// and is taken from then on.
    fn choose_plan(&mut self, arguments: &[Argument]) -> Result<bool> {
        match self.plan(arguments) {
            Err(refused) if self.recorded.is_some() && refused.is_out_of_memory() => {
                let mut unchanged = PlannedProgram::new(self.recorded().clone());
                match unchanged.plan(arguments) {
                    Ok(is_planned) => {
                        *self = unchanged;
                        Ok(is_planned)
                    }
                    Err(other) if least_of(&other) < least_of(&refused) => Err(other),
                    Err(_) => Err(refused),
                }
            }
            planned => planned,
        }
    }

    /// The least limit of its first device, as that is, that a plan of it fits.
    pub(crate) fn least_limit(&self, device: &Device) -> Result<u64> {
        let least = self.program.memory_plans(device)?.least();
        let least = match &self.recorded {
            Some(recorded) => least.min(recorded.memory_plans(device)?.least()),
            None => least,
        };
        Ok(device.pool().limit_for(least))
    }

    /// Plans the program as it is; whether there is a limit to plan it for.
    fn plan(&mut self, arguments: &[Argument]) -> Result<bool> {
        let limit = |device: &Device| device.pool().limit().map(|limit| limit.get());
        let limits: SmallVec<[Option<u64>; 1]> = self.program.devices.iter().map(limit).collect();
        let peers = self.program.agreement.as_ref().map(|agreement| agreement.peers.clone());
        if limits.iter().all(Option::is_none) && peers.is_none() {
            return Ok(false);
        }
        let called = self.program.call_devices(arguments)?;
        let mut planned = Ok(());
        for (number, limit) in limits.into_iter().enumerate() {
            let device = &called.devices[number];
            planned = match &peers {
                None => self.fit_own(number, device, limit, 0).map(drop),
                Some(peers) => self.fit_with(&**peers, number, device, limit),
            };
            if planned.is_err() {
                break;
            }
        }
        if planned.is_ok() {
            self.combine();
        }
        self.heap_bytes = self.count_heap_bytes();
        planned.map(|()| self.known.iter().any(Option::is_some))
    }

    /// Plans for a device together with the other ranks. What was agreed on holds until the limit changes, which it does on all
    /// ranks between the same steps.
    fn fit_with(
        &mut self,
        peers: &dyn Peers,
        number: usize,
        device: &Device,
        limit: Option<u64>,
    ) -> Result<()> {
        if let Some(agreed) = self.agreed[number].filter(|agreed| agreed.limit == limit) {
            let taken = self.fit_own(number, device, limit, agreed.number)?;
            return match taken == agreed.number || !peers.share_plans() {
                true => Ok(()),
                false => Err(Error::device(
                    "plan",
                    "the plan that all ranks run does not fit any more, because this one holds more than before",
                )),
            };
        }
        let program = self.program.planning_trace(number as u8, device).digest();
        let mut first = 0;
        loop {
            let fitted = self.fit_own(number, device, limit, first);
            let plan = match &fitted {
                Ok(taken) => Ok(*taken),
                Err(refusal) => match least_of(refusal) {
                    Some(least) => Err(least),
                    None => return fitted.map(drop),
                },
            };
            match peers.agree(&Choice { program, limit, plan }, device.is_ghost())? {
                Agreed::Yes => {
                    let number_of_all = fitted.map(|taken| if peers.share_plans() { taken } else { 0 })?;
                    self.agreed[number] = Some(AgreedPlan { limit, number: number_of_all });
                    return Ok(());
                }
                Agreed::From(number) => first = number,
                Agreed::Refused { rank, least } => {
                    return Err(self.refusal_of_ranks(fitted.err(), (rank, least), limit));
                }
            }
        }
    }

    /// The error of a limit that a rank cannot keep: this one, if it has a refusal of its own.
    fn refusal_of_ranks(&self, own: Option<Error>, (rank, least): (usize, u64), limit: Option<u64>) -> Error {
        let (natural, rows) = match own.as_ref().map(limit_error) {
            Some(Some(ErrorKind::Limit { natural, rows, .. })) => (*natural, *rows),
            _ => (least, Rows::default()),
        };
        let refusal = Error::limit(limit.unwrap_or(least), least, natural, rows);
        if own.is_some() { refusal } else { Error::within(format!("rank {rank} failed"), refusal) }
    }

    /// Finds the fastest plan, from that number on, that fits the limit of a device as it is; returns its number. Without a limit
    /// every plan fits, and the natural one runs as it was recorded.
    ///
    /// # Errors
    /// A limit that no plan fits.
    fn fit_own(&mut self, number: usize, device: &Device, limit: Option<u64>, first: usize) -> Result<usize> {
        let known = self.known[number].take();
        if limit.is_none() && first == 0 {
            return Ok(0);
        }
        // The device as it is for this call may be a ghost without a limit.
        let capacity = self.program.devices[number].pool().capacity().map_or(u64::MAX, Bytes::get);
        let (known, refusal) = self.fit(known, number as u8, device, capacity, first)?;
        let taken = known.taken().map_or(0, |(number, ..)| *number);
        self.known[number] = Some(known);
        refusal.map_or(Ok(taken), Err)
    }

    /// Finds the fastest plan, from that number on, that fits the capacity of a device as it is; what is known of it then, and the
    /// refusal if there is none.
    fn fit(
        &self,
        known: Option<Known>,
        number: u8,
        device: &Device,
        capacity: u64,
        first: usize,
    ) -> Result<(Known, Option<Error>)> {
        let (program, held) = (self.program.on(number), device.pool().held());
        let mut known = match known {
            Some(known) => known,
            None => Known::new(program, device, held)?,
        };
        let then = Limit::new(capacity, known.held, held, device.pool().granule());
        let mut fits = known.fit(program, device, then, first)?;
        if !fits && known.held != held {
            // Arithmetic over what is held says that nothing fits; how it lies in memory may say otherwise.
            known = Known::new(program, device, held)?;
            fits = known.fit(program, device, Limit { now: capacity, then: capacity }, first)?;
        }
        if fits {
            return Ok((known, None));
        }
        let refusal = known.refusal(program, device, capacity, first)?;
        let several = self.program.devices.len() > 1;
        let name = self.program.devices[usize::from(number)].name();
        let refusal = if several { Error::within(format!("the limit of {name}"), refusal) } else { refusal };
        Ok((known, Some(refusal)))
    }

    /// The plans that are chosen for the devices, by their numbers; none where the natural one is.
    fn chosen(&self) -> SmallVec<[Option<usize>; 1]> {
        self.known.iter().map(|known| Some(known.as_ref()?.taken()?.0)).collect()
    }

    /// Rematerialises the program for all devices whose limits need it, if these are several.
    fn combine(&mut self) {
        let chosen = self.chosen();
        if chosen.iter().flatten().count() < 2 {
            self.combined = None;
            return;
        }
        if self.combined.as_ref().is_some_and(|combined| combined.chosen == chosen) {
            return;
        }
        let plans = self.known.iter().flatten().filter_map(|known| known.plans.as_ref());
        let mut decided = plans.filter_map(|plans| {
            let decisions = plans.plan_set.decisions(plans.taken.as_ref()?.0)?;
            Some((&plans.trace, &**decisions))
        });
        let Some((trace, decisions)) = decided.next() else { unreachable!("two plans are chosen") };
        let (mut trace, mut decisions) = (trace.clone(), decisions.clone());
        for (others_trace, others) in decided {
            trace.join(others_trace);
            decisions.join(others);
        }
        let program = self.program.rematerialised(&trace, &decisions);
        let program = program.unwrap_or_else(|| unreachable!("each device's part could be made"));
        self.combined = Some(Combined { chosen, program });
    }

    /// What runs under the limits for which it was prepared.
    fn taken(&self) -> (&Program, Offsets<'_>) {
        let program = match (&self.combined, self.known.iter().flatten().find_map(Known::taken)) {
            (Some(combined), _) => &combined.program,
            (None, Some((_, program, _))) => program,
            (None, None) => &self.program,
        };
        (program, self.known.iter().map(|known| known.as_ref().map(Known::taken_offsets)).collect())
    }

    fn count_heap_bytes(&self) -> usize {
        let plans = |plans: &Plans| {
            let taken = plans.taken.as_ref();
            let taken = taken.map_or(0, |(_, program, offsets)| program.heap_bytes() + offsets.heap_bytes());
            taken + plans.plan_set.heap_bytes() + plans.trace.heap_bytes()
        };
        let known = |known: &Known| known.offsets.heap_bytes() + known.plans.as_ref().map_or(0, plans);
        let combined = self.combined.as_ref().map_or(0, |combined| combined.program.heap_bytes());
        let recorded = self.recorded.as_ref().map_or(0, Program::heap_bytes);
        self.program.heap_bytes()
            + recorded
            + combined
            + self.known.iter().flatten().map(known).sum::<usize>()
    }
}

impl Known {
    /// The plan that is chosen, if it is not the natural one.
    fn taken(&self) -> Option<&(usize, Program, OffsetPlan)> {
        self.plans.as_ref()?.taken.as_ref()
    }

    /// The offsets of the chosen plan.
    fn taken_offsets(&self) -> &OffsetPlan {
        self.taken().map_or(&self.offsets, |(_, _, offsets)| offsets)
    }

    fn new(program: OnDevice<'_>, device: &Device, held: u64) -> Result<Known> {
        let (natural, offsets) = program.placed(device)?;
        Ok(Known { natural: natural.peaks(), offsets, held, plans: None })
    }

    /// Chooses the fastest plan, from that number on, that fits a limit; whether there is one.
    fn fit(&mut self, on: OnDevice<'_>, device: &Device, limit: Limit, first: usize) -> Result<bool> {
        let program = on.program;
        if first == 0 && self.natural.committed <= limit.then {
            self.plans.iter_mut().for_each(|plans| plans.taken = None);
            return Ok(true);
        }
        let plans = self.plans.get_or_insert_with(|| {
            let trace = program.planning_trace(on.number, device);
            let plan_set = program.devices[usize::from(on.number)].lazy_plan_set(&trace, self.natural);
            Plans { trace, plan_set, taken: None }
        });
        let mut last = None;
        let Plans { trace, plan_set, taken } = plans;
        let number = plan_set.within(first, limit.then, |decisions| {
            let (measured, placed) = measure(on, trace, device, decisions, limit)?;
            last = placed.map(|(planned, offsets)| (decisions.clone(), planned, offsets));
            Ok::<_, Error>(measured)
        })?;
        let Some(number) = number else { return Ok(false) };
        let decisions = plan_set.decisions(number);
        // The one that is chosen was measured last, or at an earlier limit.
        let last = last.filter(|(last, ..)| decisions.is_some_and(|taken| Arc::ptr_eq(taken, last)));
        *taken = match (taken.take(), last) {
            (_, Some((_, planned, offsets))) => Some((number, planned, offsets)),
            (Some(before), None) if before.0 == number => Some(before),
            _ => match decisions.and_then(|taken| program.rematerialised(trace, taken)) {
                Some(planned) => {
                    let (_, offsets) = on.of(&planned).placed(device)?;
                    Some((number, planned, offsets))
                }
                None => None,
            },
        };
        Ok(true)
    }

    /// The error of a limit under which no plan fits, with who holds what in the leanest one. The figures are those of now.
    fn refusal(&mut self, on: OnDevice<'_>, device: &Device, capacity: u64, first: usize) -> Result<Error> {
        let Some(Plans { trace, plan_set, .. }) = &mut self.plans else {
            unreachable!("a program is refused when all its plans are")
        };
        let least = plan_set.least(first, |decisions, limit| {
            Ok::<_, Error>(measure(on, trace, device, decisions, Limit { now: limit, then: limit })?.0)
        })?;
        let (least, leanest) = least.unwrap_or((u64::MAX, 0));
        let leanest =
            plan_set.decisions(leanest).and_then(|decisions| on.program.rematerialised(trace, decisions));
        let owners = on.of(leanest.as_ref().unwrap_or(on.program)).footprint(device, None)?.owners;
        let pool = on.program.devices[usize::from(on.number)].pool();
        let limit = pool.limit().map_or(capacity, Bytes::get);
        Ok(Error::limit(limit, pool.limit_for(least), self.natural.committed, owners))
    }
}

/// What a candidate takes, with its program and offsets if its peak is within the limit.
fn measure(
    on: OnDevice<'_>,
    trace: &Trace,
    device: &Device,
    decisions: &Decisions,
    limit: Limit,
) -> Result<(Measured, Option<(Program, OffsetPlan)>)> {
    let Some(planned) = on.program.rematerialised(trace, decisions) else {
        return Ok((Measured::Impossible, None));
    };
    let peak = match on.of(&planned).footprint(device, None) {
        Err(error) if planned.n_copies > 0 && is_full(&error) => return Ok((Measured::Impossible, None)),
        footprint => limit.figure_then(footprint?.peak),
    };
    if peak > limit.then {
        return Ok((Measured::Peak(peak), None));
    }
    let Some((footprint, offsets)) = on.of(&planned).placed_if_possible(device)? else {
        return Ok((Measured::Impossible, None));
    };
    let committed = limit.figure_then(footprint.committed);
    let measured = Measured::Placed(Peaks { peak, committed });
    Ok((measured, Some((planned, offsets))))
}

/// The least limit that works, if an error says that none of a program's plans fits.
fn least_of(error: &Error) -> Option<u64> {
    match limit_error(error) {
        Some(ErrorKind::Limit { least, .. }) => Some(*least),
        _ => None,
    }
}

/// What an error says of a limit that none of a program's plans fits, on whichever device or rank.
fn limit_error(error: &Error) -> Option<&ErrorKind> {
    match error.kind() {
        kind @ ErrorKind::Limit { .. } => Some(kind),
        ErrorKind::Within { source, .. } => source.downcast_ref().and_then(limit_error),
        _ => None,
    }
}

/// Whether an error says that there was no room: offloaded values may leave gaps in the store, too small for what comes
/// next.
fn is_full(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::OutOfMemory(_) => true,
        ErrorKind::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    }
}
