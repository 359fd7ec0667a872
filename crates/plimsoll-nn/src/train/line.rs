//! The line: how the steps of a run stay under their device's limit.
//!
//! Before the first step of a signature (shapes and dtypes of the batch, number of parts) the step is rehearsed on a ghost of
//! the device as it is. If it fits as it is, nothing is decided. If not, a family of plans is made that let values go in
//! forward and compute them again in backward, or move them elsewhere and back where the device may; the limit of the moment takes the fastest that fits. The family does not
//! depend on the limit, so a limit that is changed between steps takes another member. A step that no plan can keep under
//! the limit is refused before it begins, with the least limit that works for it.
//!
//! Whether a plan fits is asked anew for each step: what others hold of the device (tensors of the user's, other models, steps
//! of other threads) is compared with what they held when the plan was made, so a refusal is never remembered.

use std::io;
use std::sync::Arc;

use plimsoll_memory::{LongList, TraceEvent, rounded_size};
use plimsoll_plan::{Candidates, Family, Measured, Played, Trace, plan_offsets};
use plimsoll_tensor::{
    Course, DType, Decisions, Device, Error, ErrorKind, OffsetPlan, Planned, Result, Shape, Stats, Step,
    Variable, with_shadows,
};

use super::examples::Pair;
use super::rehearsal::{self, RestoredGenerator};
use super::step::Stepper;

/// The most bytes of the heap for what is known of steps, roughly; what was not asked for longest goes first.
const MOST_BYTES: usize = 8 << 20;

/// What is known of the steps of a run.
#[derive(Default)]
pub(super) struct Line {
    /// The latest last.
    known: Vec<(Signature, Entry)>,
}

/// What is known of one kind of step, and what others held of the device when that was found out, in bytes.
struct Entry {
    known: Known,
    held_by_others: u64,
}

/// What tells one kind of step from another.
#[derive(Clone, Copy, PartialEq)]
struct Signature {
    inputs: (Shape, DType),
    labels: (Shape, DType),
    n_parts: usize,
    can_offload: bool,
    is_deterministic: bool,
}

/// What is known of one kind of step.
enum Known {
    /// It reads values, so it cannot be rehearsed without them: the guard keeps it under the limit.
    Unforeseen,
    /// What it takes when everything is kept, and where its blocks lie then.
    Natural(Played, OffsetPlan),
    /// The ways to make it, what it takes when everything is kept, and the way that was taken last: its number and where its
    /// blocks lie.
    Planned { candidates: Candidates, natural: Played, taken: Option<(usize, OffsetPlan)> },
}

/// A limit, and the one that leaves a step as much where others hold what they held when its figures were made.
#[derive(Clone, Copy)]
struct Limit {
    now: u64,
    then: u64,
}

impl Limit {
    /// Figures were made when others held `then` bytes, and they hold `now`. Less than a granule is no difference: bytes are
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

impl Stepper {
    /// The course that keeps a step with this batch under its device's limit.
    ///
    /// # Errors
    /// No course does.
    pub fn course(&mut self, pair: &Pair) -> Result<Course> {
        let device = pair.inputs.device();
        let Some(limit) = device.pool().limit() else { return Ok(Course::default()) };
        let signature = Signature {
            inputs: (*pair.inputs.shape(), pair.inputs.dtype()),
            labels: (*pair.labels.shape(), pair.labels.dtype()),
            n_parts: self.n_parts,
            can_offload: device.can_offload(),
            is_deterministic: device.is_deterministic(),
        };
        let held_by_others = self.held_by_others(&device);
        let mut entry = match self.line.take(&signature) {
            Some(entry) => entry,
            None => Entry { known: self.natural(&device, pair)?, held_by_others },
        };
        let granule = device.pool().granule();
        let then = entry.held_by_others;
        let mut course =
            self.within(&device, pair, Limit::new(limit.get(), then, held_by_others, granule), &mut entry)?;
        if course.is_none() && then != held_by_others {
            // Arithmetic over what others hold says that nothing fits; how it lies in memory may say otherwise.
            entry = Entry { known: self.natural(&device, pair)?, held_by_others };
            let limit = Limit { now: limit.get(), then: limit.get() };
            course = self.within(&device, pair, limit, &mut entry)?;
        }
        let course = course.map_or_else(|| Err(self.refusal(&device, pair, limit.get(), &mut entry)?), Ok);
        self.line.put(signature, entry);
        course
    }

    /// What a step takes that keeps everything.
    fn natural(&mut self, device: &Device, pair: &Pair) -> Result<Known> {
        match self.placed(device, pair, None) {
            Ok((natural, offsets)) => Ok(Known::Natural(natural, offsets)),
            Err(error) if matches!(error.kind(), ErrorKind::Ghost { .. }) => Ok(Known::Unforeseen),
            Err(error) => Err(error),
        }
    }

    /// The bytes of the device that are held by anything but the model and the optimizer.
    fn held_by_others(&self, device: &Device) -> u64 {
        let mut variables = self.model.variables();
        variables.extend(self.optimizer.variables());
        let masters: Vec<Variable> =
            variables.iter().filter_map(|variable| variable.master().cloned()).collect();
        let own = variables.iter().chain(&masters).filter(|variable| variable.device() == *device);
        device.pool().held().saturating_sub(own.map(|variable| rounded_size(variable.n_bytes() as u64)).sum())
    }

    /// The course that keeps the limit, if there is one.
    fn within(
        &mut self,
        device: &Device,
        pair: &Pair,
        limit: Limit,
        entry: &mut Entry,
    ) -> Result<Option<Course>> {
        if let Known::Natural(played, _) = entry.known
            && played.committed > limit.then
        {
            let candidates = rehearsal::candidates(self.observed(device, pair)?, played);
            entry.known = Known::Planned { candidates, natural: played, taken: None };
        }
        let (candidates, taken) = match &mut entry.known {
            Known::Unforeseen => return Ok(Some(Course::default())),
            Known::Natural(_, offsets) => {
                return Ok(Some(Course { decisions: None, offsets: Some(offsets.clone()) }));
            }
            Known::Planned { candidates, taken, .. } => (candidates, taken),
        };
        let mut last = None;
        let way = candidates.within(limit.then, |decisions| {
            let (measured, offsets) = self.measured(device, pair, decisions, limit)?;
            last = offsets.map(|offsets| (decisions.clone(), offsets));
            Ok::<_, Error>(measured)
        })?;
        let Some(way) = way else { return Ok(None) };
        let decisions = candidates.decisions(way).cloned();
        // The one that is taken was measured last, or at an earlier limit.
        let last = last.filter(|(last, _)| decisions.as_ref().is_some_and(|taken| Arc::ptr_eq(taken, last)));
        let offsets = match (taken.take(), last) {
            (_, Some((_, offsets))) => offsets,
            (Some((before, offsets)), None) if before == way => offsets,
            _ => self.placed(device, pair, decisions.as_ref())?.1,
        };
        *taken = Some((way, offsets.clone()));
        Ok(Some(Course { decisions, offsets: Some(offsets) }))
    }

    /// What a candidate takes, and where its blocks lie if its peak is within the limit.
    fn measured(
        &mut self,
        device: &Device,
        pair: &Pair,
        decisions: &Arc<Decisions>,
        limit: Limit,
    ) -> Result<(Measured, Option<OffsetPlan>)> {
        let traced = match self.traced(device, pair, Some(decisions)) {
            // What is moved elsewhere may leave holes there, too small for what comes next.
            Err(error) if decisions.offloaded_bytes > 0 && is_full(&error) => {
                return Ok((Measured::Impossible, None));
            }
            traced => traced?,
        };
        let peak = limit.figure_then(traced.1.peak_in_use);
        if peak > limit.then {
            return Ok((Measured::Peak(peak), None));
        }
        let (played, offsets) = self.packed(device, pair, Some(decisions), &traced.0)?;
        let committed = limit.figure_then(played.committed);
        Ok((Measured::Placed(Played { peak, committed }), Some(offsets)))
    }

    /// The error of a limit under which no way to make a step fits, with who holds what in the leanest one. The figures are
    /// those of now.
    fn refusal(&mut self, device: &Device, pair: &Pair, limit: u64, entry: &mut Entry) -> Result<Error> {
        let Known::Planned { candidates, natural, .. } = &mut entry.known else {
            unreachable!("a step is refused when all candidates are")
        };
        let (least, leanest) = candidates.least(|decisions, limit| {
            Ok::<_, Error>(self.measured(device, pair, decisions, Limit { now: limit, then: limit })?.0)
        })?;
        let course = Course { decisions: candidates.decisions(leanest).cloned(), offsets: None };
        let stats =
            self.rehearse(device, pair, |stepper, ghost, pair| stepper.step_on(ghost, &course, pair))?.1;
        Ok(Error::limit(limit, least, natural.committed, stats.peak_rows))
    }

    /// The ways in which a step with this batch can be made.
    pub fn family(&mut self, device: &Device, pair: &Pair) -> Result<Family> {
        let natural = self.placed(device, pair, None)?.0;
        let trace = self.observed(device, pair)?;
        Family::new(&trace, natural, |decisions| match self.placed(device, pair, Some(decisions)) {
            // What is moved elsewhere may leave holes there, too small for what comes next.
            Err(error) if decisions.offloaded_bytes > 0 && is_full(&error) => Ok(None),
            placed => placed.map(|(played, _)| Some(played)),
        })
    }

    /// What a planner needs to know of a step.
    fn observed(&mut self, device: &Device, pair: &Pair) -> Result<Trace> {
        let observe = |stepper: &mut Stepper, ghost: &Device, pair: &Pair| {
            Ok(Step::observed(ghost, || stepper.step_inside(ghost, pair))?.1)
        };
        Ok(self.rehearse(device, pair, observe)?.0)
    }

    /// Plans where the blocks of a step lie, and what it takes then.
    fn placed(
        &mut self,
        device: &Device,
        pair: &Pair,
        decisions: Option<&Arc<Decisions>>,
    ) -> Result<(Played, OffsetPlan)> {
        let (trace, _) = self.traced(device, pair, decisions)?;
        self.packed(device, pair, decisions, &trace)
    }

    /// What a step asks the pool for.
    fn traced(
        &mut self,
        device: &Device,
        pair: &Pair,
        decisions: Option<&Arc<Decisions>>,
    ) -> Result<(LongList<TraceEvent>, Stats)> {
        let course = Course { decisions: decisions.cloned(), offsets: None };
        self.rehearse(device, pair, |stepper, ghost, pair| {
            ghost.pool().start_trace();
            let stepped = stepper.step_on(ghost, &course, pair);
            let trace = ghost.pool().take_trace();
            stepped.map(|()| trace)
        })
    }

    /// Where the blocks lie that a step asked for, and what it takes then.
    fn packed(
        &mut self,
        device: &Device,
        pair: &Pair,
        decisions: Option<&Arc<Decisions>>,
        trace: &LongList<TraceEvent>,
    ) -> Result<(Played, OffsetPlan)> {
        let offsets = plan_offsets(trace).plan;
        let course = Course { decisions: decisions.cloned(), offsets: Some(offsets.clone()) };
        let stats =
            self.rehearse(device, pair, |stepper, ghost, pair| stepper.step_on(ghost, &course, pair))?.1;
        Ok((Played { peak: stats.peak_in_use, committed: stats.peak_committed }, offsets))
    }

    /// Makes a step on a ghost of the device as it is, with no limit; nothing real changes. Returns what the ghost's pool
    /// says of it, too.
    fn rehearse<R>(
        &mut self,
        device: &Device,
        pair: &Pair,
        step: impl FnOnce(&mut Stepper, &Device, &Pair) -> Result<R>,
    ) -> Result<(R, Stats)> {
        let ghost = device.ghost();
        ghost.set_limit(None)?;
        // Under the limit, free pages would go back before the step failed for want of them.
        ghost.trim();
        ghost.pool().reset_peaks();
        let _restore = RestoredGenerator::new();
        let mut variables = self.model.variables();
        variables.extend(self.optimizer.variables());
        let shadows = Pair { inputs: pair.inputs.shadow(&ghost)?, labels: pair.labels.shadow(&ghost)? };
        let stepped = with_shadows(&variables, &ghost, || step(self, &ghost, &shadows))?;
        Ok((stepped, ghost.stats()))
    }
}

/// Whether an error says that there was no room.
fn is_full(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::OutOfMemory(_) => true,
        ErrorKind::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
        _ => false,
    }
}

impl Known {
    /// The bytes of the heap that it takes, roughly.
    fn heap_bytes(&self) -> usize {
        let of = |offsets: &OffsetPlan| offsets.entries().len() * 2 * size_of::<Planned>();
        match self {
            Known::Unforeseen => 0,
            Known::Natural(_, offsets) => of(offsets),
            Known::Planned { candidates, taken, .. } => {
                candidates.heap_bytes() + taken.as_ref().map_or(0, |(_, offsets)| of(offsets))
            }
        }
    }
}

impl Line {
    fn take(&mut self, signature: &Signature) -> Option<Entry> {
        let at = self.known.iter().position(|(known, _)| known == signature)?;
        Some(self.known.remove(at).1)
    }

    fn put(&mut self, signature: Signature, entry: Entry) {
        self.known.push((signature, entry));
        let mut bytes: usize = self.known.iter().map(|(_, entry)| entry.known.heap_bytes()).sum();
        while bytes > MOST_BYTES && self.known.len() > 1 {
            bytes -= self.known.remove(0).1.known.heap_bytes();
        }
    }
}
