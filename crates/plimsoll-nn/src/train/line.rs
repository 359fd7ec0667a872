//! The line: how the steps of a run stay under their device's limit.
//!
//! Before the first step of a signature (shapes and dtypes of the batch, number of parts) the step is rehearsed on a ghost of
//! the device as it is. If it fits as it is, nothing is decided. If not, a family of plans is made that let values go in
//! forward and compute them again in backward, or move them elsewhere and back where the device may; the limit of the moment takes the fastest that fits. The family does not
//! depend on the limit, so a limit that is changed between steps takes another member. A step that no plan can keep under
//! the limit is refused before it begins, with the least limit that works for it.

use std::io;

use plimsoll_plan::{Family, Member, Played};
use plimsoll_tensor::{
    Course, DType, Decisions, Device, Error, ErrorKind, Generator, Result, Shape, Step, Trace, with_shadows,
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
    can_offload: bool,
}

/// What is known of one kind of step.
enum Known {
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
            can_offload: device.can_offload(),
        };
        let known = match self.line.take(&signature) {
            Some(known) => known,
            None => Known::Natural(self.rehearse(&device, pair, Rehearsal::Natural)?.0),
        };
        let known = match known {
            Known::Natural(played) if played.committed > limit.get() => {
                Known::Planned(self.family(&device, pair)?)
            }
            known => known,
        };
        let course = known.within(limit.get());
        self.line.put(signature, known);
        course
    }

    /// The ways in which a step with this batch can be made.
    pub fn family(&mut self, device: &Device, pair: &Pair) -> Result<Family> {
        let (natural, trace) = self.rehearse(device, pair, Rehearsal::Observed)?;
        Family::new(&trace.unwrap_or_default(), natural, |decisions| {
            match self.rehearse(device, pair, Rehearsal::Planned(decisions)) {
                Ok((played, _)) => Ok(Some(played)),
                // What is moved elsewhere may leave holes there, too small for what comes next.
                Err(error) if decisions.offloaded_bytes > 0 && is_full(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// Makes a step on a ghost of the device as it is, with no limit; nothing real changes.
    fn rehearse(
        &mut self,
        device: &Device,
        pair: &Pair,
        rehearsal: Rehearsal<'_>,
    ) -> Result<(Played, Option<Trace>)> {
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
        Ok((Played { peak, committed: stats.peak_committed }, trace))
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

/// How a step is rehearsed.
enum Rehearsal<'a> {
    /// As it is.
    Natural,
    /// As it is, with notes for a planner.
    Observed,
    /// As decided.
    Planned(&'a Decisions),
}

impl Known {
    /// The course that commits no more than `limit` bytes.
    fn within(&self, limit: u64) -> Result<Course> {
        match self {
            Known::Natural(_) => Ok(Course::Free),
            Known::Planned(family) => match family.within(limit) {
                Some(Member { decisions: None, .. }) => Ok(Course::Free),
                Some(Member { decisions: Some(decisions), .. }) => {
                    Ok(Course::Planned(decisions.clone().into()))
                }
                None => {
                    let natural = family.members().last().map_or(0, |member| member.played.committed);
                    Err(Error::limit(limit, family.least(), natural))
                }
            },
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
