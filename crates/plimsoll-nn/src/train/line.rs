//! The line: how the steps of a run stay under their device's limit.
//!
//! Before the first step of a signature (shapes and dtypes of the batch, number of parts) the step is rehearsed on a ghost of
//! the device as it is. If it fits as it is, nothing is decided. If not, a family of plans is made that let values go in
//! forward and compute them again in backward; the limit of the moment takes the fastest that fits. The family does not
//! depend on the limit, so a limit that is changed between steps takes another member. A step that no plan can keep under
//! the limit is refused before it begins, with the least limit that works for it.

use plimsoll_plan::{Family, Played};
use plimsoll_tensor::{
    Course, DType, Decisions, Device, Error, ErrorKind, Generator, Result, Rows, Shape, Step, Trace,
    with_shadows,
};

use super::examples::Pair;
use super::step::Stepper;

/// How many signatures a run remembers plans for.
const MOST_SIGNATURES: usize = 64;

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
}

/// What is known of one kind of step.
enum Known {
    /// It reads values, so it cannot be rehearsed without them: the guard keeps it under the limit.
    Unforeseen,
    /// What it takes when everything is kept.
    Natural(Played),
    /// What it can be made to take.
    Planned(Family),
}

impl Stepper {
    /// The course that keeps a step with this batch under its device's limit.
    ///
    /// # Errors
    /// No course does.
    pub fn course(&mut self, pair: &Pair) -> Result<Course> {
        let device = pair.inputs.device();
        let Some(limit) = device.pool().limit() else { return Ok(Course::Free) };
        let signature = Signature {
            inputs: (*pair.inputs.shape(), pair.inputs.dtype()),
            labels: (*pair.labels.shape(), pair.labels.dtype()),
            n_parts: self.n_parts,
        };
        let known = match self.line.take(&signature) {
            Some(known) => known,
            None => match self.rehearse(&device, pair, Rehearsal::Natural) {
                Ok(rehearsed) => Known::Natural(rehearsed.played),
                Err(error) if matches!(error.kind(), ErrorKind::Ghost { .. }) => Known::Unforeseen,
                Err(error) => return Err(error),
            },
        };
        let known = match known {
            Known::Natural(played) if played.committed > limit.get() => {
                Known::Planned(self.family(&device, pair)?)
            }
            known => known,
        };
        let course = match known.within(limit.get()) {
            Some(course) => Ok(course),
            None => Err(self.refusal(&device, pair, limit.get(), &known)?),
        };
        self.line.put(signature, known);
        course
    }

    /// The error of a limit under which no way to make a step fits, with who holds what in the leanest one.
    fn refusal(&mut self, device: &Device, pair: &Pair, limit: u64, known: &Known) -> Result<Error> {
        let Known::Planned(family) = known else { unreachable!("what has no family is not refused") };
        let leanest = family.members().first().and_then(|member| member.decisions.as_ref());
        let rehearsal = leanest.map_or(Rehearsal::Natural, Rehearsal::Planned);
        let rows = self.rehearse(device, pair, rehearsal)?.rows;
        let natural = family.members().last().map_or(0, |member| member.played.committed);
        Ok(Error::limit(limit, family.least(), natural, rows))
    }

    /// The ways in which a step with this batch can be made.
    pub fn family(&mut self, device: &Device, pair: &Pair) -> Result<Family> {
        let observed = self.rehearse(device, pair, Rehearsal::Observed)?;
        Family::new(&observed.trace.unwrap_or_default(), observed.played, |decisions| {
            Ok(Some(self.rehearse(device, pair, Rehearsal::Planned(decisions))?.played))
        })
    }

    /// Makes a step on a ghost of the device as it is, with no limit; nothing real changes.
    fn rehearse(&mut self, device: &Device, pair: &Pair, rehearsal: Rehearsal<'_>) -> Result<Rehearsed> {
        let ghost = device.ghost();
        ghost.set_limit(None)?;
        // Under the limit, free pages would go back before the step failed for want of them.
        ghost.trim();
        ghost.pool().reset_peaks();
        let generator = Generator::current();
        let mut variables = self.model.variables();
        variables.extend(self.optimizer.variables());
        let shadows = Pair { inputs: pair.inputs.shadow(&ghost), labels: pair.labels.shadow(&ghost) };
        let played = with_shadows(&variables, &ghost, || match rehearsal {
            Rehearsal::Natural => self.step_on(&ghost, &Course::Free, &shadows).map(|()| None),
            Rehearsal::Planned(decisions) => {
                let course = Course::Planned(decisions.clone().into());
                self.step_on(&ghost, &course, &shadows).map(|()| None)
            }
            Rehearsal::Observed => {
                let ((), trace) = Step::observed(&ghost, || self.step_inside(&ghost, &shadows))?;
                Ok(Some(trace))
            }
        });
        generator.make_current();
        let trace = played?;
        let stats = ghost.stats();
        let natural = |trace: &Trace| trace.natural_peak();
        let peak = trace.as_ref().map_or(stats.peak_in_use, natural);
        Ok(Rehearsed {
            played: Played { peak, committed: stats.peak_committed },
            rows: stats.peak_rows,
            trace,
        })
    }
}

/// How a step is rehearsed.
enum Rehearsal<'a> {
    /// As it is.
    Natural,
    /// As it is, with notes for a planner.
    Observed,
    /// As decided.
    Planned(&'a Decisions),
}

/// What a rehearsal showed.
struct Rehearsed {
    played: Played,
    /// Who held the bytes at the peak.
    rows: Rows,
    /// The notes, if they were taken.
    trace: Option<Trace>,
}

impl Known {
    /// The course that commits no more than `limit` bytes, if there is one.
    fn within(&self, limit: u64) -> Option<Course> {
        match self {
            Known::Natural(_) | Known::Unforeseen => Some(Course::Free),
            Known::Planned(family) => family.within(limit).map(|member| match &member.decisions {
                None => Course::Free,
                Some(decisions) => Course::Planned(decisions.clone().into()),
            }),
        }
    }
}

impl Line {
    fn take(&mut self, signature: &Signature) -> Option<Known> {
        let at = self.known.iter().position(|(known, _)| known == signature)?;
        Some(self.known.remove(at).1)
    }

    fn put(&mut self, signature: Signature, known: Known) {
        if self.known.len() == MOST_SIGNATURES {
            self.known.remove(0);
        }
        self.known.push((signature, known));
    }
}
