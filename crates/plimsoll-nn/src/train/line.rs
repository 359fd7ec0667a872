//! The line: how the steps of a run stay under their device's limit.
//!
//! Before the first step of a signature (shapes and dtypes of the batch, number of parts) the step is rehearsed on a ghost of
//! the device as it is. If it fits as it is, nothing is decided. If not, a family of plans is made that let values go in
//! forward and compute them again in backward, or move them elsewhere and back where the device may; the limit of the moment takes the fastest that fits. The family does not
//! depend on the limit, so a limit that is changed between steps takes another member. A step that no plan can keep under
//! the limit is refused before it begins, with the least limit that works for it.

use std::io;
use std::sync::Arc;

use plimsoll_plan::{Family, Played, plan_offsets};
use plimsoll_tensor::{
    Course, DType, Decisions, Device, Error, ErrorKind, Generator, OffsetPlan, Planned, Result, Shape, Stats,
    Step, with_shadows,
};

use super::examples::Pair;
use super::step::Stepper;

/// The most bytes of the heap for what is known of steps, roughly; what was not asked for longest goes first.
const MOST_BYTES: usize = 8 << 20;

/// What is known of the steps of a run.
#[derive(Default)]
pub(super) struct Line {
    /// The latest last.
    known: Vec<(Signature, Known)>,
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
    /// What it can be made to take, and the way that was taken last: its number and where its blocks lie.
    Planned(Family, Option<(usize, OffsetPlan)>),
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
        let known = match self.line.take(&signature) {
            Some(known) => known,
            None => match self.placed(&device, pair, None) {
                Ok((natural, offsets)) => Known::Natural(natural, offsets),
                Err(error) if matches!(error.kind(), ErrorKind::Ghost { .. }) => Known::Unforeseen,
                Err(error) => return Err(error),
            },
        };
        let mut known = match known {
            Known::Natural(played, _) if played.committed > limit.get() => {
                Known::Planned(self.family(&device, pair)?, None)
            }
            known => known,
        };
        let course = self.within(&device, pair, limit.get(), &mut known);
        self.line.put(signature, known);
        course
    }

    /// The course that commits no more than `limit` bytes.
    fn within(&mut self, device: &Device, pair: &Pair, limit: u64, known: &mut Known) -> Result<Course> {
        let (family, taken) = match known {
            Known::Unforeseen => return Ok(Course::default()),
            Known::Natural(_, offsets) => {
                return Ok(Course { decisions: None, offsets: Some(offsets.clone()) });
            }
            Known::Planned(family, taken) => (family, taken),
        };
        let Some(way) = family.within(limit) else { return Err(self.refusal(device, pair, limit, family)?) };
        let decisions = family.members()[way].decisions.clone();
        let offsets = match taken {
            Some((last, offsets)) if *last == way => offsets.clone(),
            _ => self.placed(device, pair, decisions.as_ref())?.1,
        };
        *taken = Some((way, offsets.clone()));
        Ok(Course { decisions, offsets: Some(offsets) })
    }

    /// The error of a limit under which no way to make a step fits, with who holds what in the leanest one.
    fn refusal(&mut self, device: &Device, pair: &Pair, limit: u64, family: &Family) -> Result<Error> {
        let decisions = family.members().first().and_then(|member| member.decisions.clone());
        let course = Course { decisions, offsets: None };
        let stats =
            self.rehearse(device, pair, |stepper, ghost, pair| stepper.step_on(ghost, &course, pair))?.1;
        let natural = family.members().last().map_or(0, |member| member.played.committed);
        Ok(Error::limit(limit, family.least(), natural, stats.peak_rows))
    }

    /// The ways in which a step with this batch can be made.
    pub fn family(&mut self, device: &Device, pair: &Pair) -> Result<Family> {
        let natural = self.placed(device, pair, None)?.0;
        let observe = |stepper: &mut Stepper, ghost: &Device, pair: &Pair| {
            Ok(Step::observed(ghost, || stepper.step_inside(ghost, pair))?.1)
        };
        let trace = self.rehearse(device, pair, observe)?.0;
        Family::new(&trace, natural, |decisions| match self.placed(device, pair, Some(decisions)) {
            // What is moved elsewhere may leave holes there, too small for what comes next.
            Err(error) if decisions.offloaded_bytes > 0 && is_full(&error) => Ok(None),
            placed => placed.map(|(played, _)| Some(played)),
        })
    }

    /// Plans where the blocks of a step lie, and what it takes then.
    fn placed(
        &mut self,
        device: &Device,
        pair: &Pair,
        decisions: Option<&Arc<Decisions>>,
    ) -> Result<(Played, OffsetPlan)> {
        let course = Course { decisions: decisions.cloned(), offsets: None };
        let traced = |stepper: &mut Stepper, ghost: &Device, pair: &Pair| {
            ghost.pool().start_trace();
            let stepped = stepper.step_on(ghost, &course, pair);
            let trace = ghost.pool().take_trace();
            stepped.map(|()| plan_offsets(&trace).plan)
        };
        let offsets = self.rehearse(device, pair, traced)?.0;
        let course = Course { offsets: Some(offsets.clone()), ..course };
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
        let generator = Generator::current();
        let mut variables = self.model.variables();
        variables.extend(self.optimizer.variables());
        let shadows = Pair { inputs: pair.inputs.shadow(&ghost)?, labels: pair.labels.shadow(&ghost)? };
        let stepped = with_shadows(&variables, &ghost, || step(self, &ghost, &shadows));
        generator.make_current();
        Ok((stepped?, ghost.stats()))
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
            Known::Planned(family, taken) => {
                family.heap_bytes() + taken.as_ref().map_or(0, |(_, offsets)| of(offsets))
            }
        }
    }
}

impl Line {
    fn take(&mut self, signature: &Signature) -> Option<Known> {
        let at = self.known.iter().position(|(known, _)| known == signature)?;
        Some(self.known.remove(at).1)
    }

    fn put(&mut self, signature: Signature, known: Known) {
        self.known.push((signature, known));
        let mut bytes: usize = self.known.iter().map(|(_, known)| known.heap_bytes()).sum();
        while bytes > MOST_BYTES && self.known.len() > 1 {
            bytes -= self.known.remove(0).1.heap_bytes();
        }
    }
}
