//! Going through a run on ghosts without going through all of it.
//!
//! A ghost's pool answers requests as the real one would, so a run on ghosts has the peaks of the real one. It need not be as
//! long: a pool's answers depend on its state and on nothing else (see `Pool::fingerprint`), and a step asks for the same
//! blocks whenever its batch has the same shape, because no shape and no workspace depends on a value. So a step that finds
//! the pool as an earlier one of its kind found it does what that one did, and so do all that follow it: from then on
//! steps go round in a circle, and whatever a circle can reach has been reached. Whole rounds are passed over; the
//! steps that are left, the short batch, the evaluation and the saving are gone through again, from the state in which the
//! real run comes to them. The same holds for the batches of an evaluation, and for epochs.
//!
//! To be sure that it is a circle, not only the pool's state must be as before but also the number of requests that led to it;
//! what else decides about requests, such as what an optimizer or a plan for the limit keeps, is made in the first step of its
//! kind. Batches are passed over only as far as the data are sure that they are alike. Callbacks are not told of what is
//! passed over: one that takes memory of the device only at certain steps is not foreseen.

use std::cell::RefCell;

use plimsoll_plan::{Candidates, Played, Trace};
use plimsoll_tensor::{Bytes, Device, Generator, Repeated};

use crate::plan::Study;

thread_local! {
    /// The rehearsal that is going on.
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
    /// The steps that were planned last in rehearsals: a run is rehearsed under one limit after the other, and its steps are
    /// the same each time.
    static PLANNED: RefCell<Vec<PlannedStep>> = const { RefCell::new(Vec::new()) };
}

/// How many planned steps are remembered: those of full batches, of the last one, and as many of the run before.
const N_PLANNED: usize = 4;

/// A step, what it takes when everything is kept, and the ways to make it.
struct PlannedStep {
    trace: Trace,
    natural: Played,
    candidates: Candidates,
}

/// A ghost on which a run is rehearsed, and what is noted about it.
struct Stage {
    ghost: Device,
    study: Option<Study>,
    /// What the rounds that were passed over would have done to keep the limit.
    passed: Effort,
}

impl Stage {
    /// What has been done so far, by rounds that were gone through and by those that were not.
    fn effort(&self) -> Effort {
        let gone = Effort { repeated: self.ghost.repeated(), offloaded: self.ghost.offloaded() };
        gone.plus(self.passed, 1)
    }
}

/// What is done to keep a limit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Effort {
    /// What is computed again.
    pub repeated: Repeated,
    /// What is moved out of the device's memory.
    pub offloaded: Bytes,
}

impl Effort {
    /// This, and so many times another.
    fn plus(self, other: Effort, times: u64) -> Effort {
        let (repeated, offloaded) = (other.repeated, other.offloaded);
        Effort {
            repeated: Repeated {
                ops: self.repeated.ops + times * repeated.ops,
                flops: self.repeated.flops + times * repeated.flops,
            },
            offloaded: Bytes::new(self.offloaded.get() + times * offloaded.get()),
        }
    }

    /// What was done since there was only that.
    fn since(self, before: Effort) -> Effort {
        Effort {
            repeated: Repeated {
                ops: self.repeated.ops - before.repeated.ops,
                flops: self.repeated.flops - before.repeated.flops,
            },
            offloaded: Bytes::new(self.offloaded.get() - before.offloaded.get()),
        }
    }
}

/// What is left of a rehearsal.
pub(crate) struct Rehearsed {
    /// What was noted, if anything was.
    pub study: Option<Study>,
    /// What the whole run does to keep the limit.
    pub effort: Effort,
}

/// Calls `run`, which makes a whole run, with `ghost` as the current device and repetitions passed over. With a study, the
/// pool's trace is taken to it piece by piece.
pub(crate) fn rehearse<R>(ghost: &Device, study: Option<Study>, run: impl FnOnce() -> R) -> (R, Rehearsed) {
    /// Ends the rehearsal, also if the run panics, and takes up the one around it.
    struct Restored(Option<Stage>);
    impl Drop for Restored {
        fn drop(&mut self) {
            STAGE.set(self.0.take());
        }
    }
    let _on = ghost.enter();
    if study.is_some() {
        ghost.pool().start_trace();
    }
    let stage = Stage { ghost: ghost.clone(), study, passed: Effort::default() };
    let restored = Restored(STAGE.replace(Some(stage)));
    let result = run();
    let stage = STAGE.take();
    drop(restored);
    let effort = stage.as_ref().map_or_else(Effort::default, Stage::effort);
    let study = stage.and_then(|stage| stage.study).map(|mut study| {
        study.take_in(&ghost.pool().take_trace());
        study
    });
    (result, Rehearsed { study, effort })
}

/// Puts this thread's generator back where it was: what is rehearsed takes no draws, also if it panics.
pub(crate) struct RestoredGenerator(Generator);

impl RestoredGenerator {
    pub fn new() -> RestoredGenerator {
        RestoredGenerator(Generator::current())
    }
}

impl Drop for RestoredGenerator {
    fn drop(&mut self) {
        self.0.make_current();
    }
}

/// The ways to make a step, which rehearsals decide about once for all limits.
pub(super) fn candidates(trace: Trace, natural: Played) -> Candidates {
    if !is_on() {
        return Candidates::new(&trace, natural);
    }
    PLANNED.with_borrow_mut(|planned| {
        let same = |step: &PlannedStep| step.natural == natural && step.trace == trace;
        if let Some(step) = planned.iter().find(|step| same(step)) {
            return step.candidates.clone();
        }
        let candidates = Candidates::new(&trace, natural);
        planned.truncate(N_PLANNED - 1);
        planned.insert(0, PlannedStep { trace, natural, candidates: candidates.clone() });
        candidates
    })
}

/// Whether the run that goes on is a rehearsal.
pub(super) fn is_on() -> bool {
    STAGE.with_borrow(Option::is_some)
}

/// The rounds of a loop so far, by the states in which they found the pool, with what had been done by then.
pub(super) struct Rounds {
    found: Vec<(Found, Effort)>,
    /// The requests that had been made when the last round began.
    n_requests: u64,
}

/// What a round finds.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    fingerprint: u64,
    /// The requests of the round before.
    n_requests: u64,
}

impl Rounds {
    /// A loop that begins.
    pub fn begin() -> Rounds {
        Rounds { found: Vec::new(), n_requests: 0 }
    }

    /// A round begins, with which `n_left` rounds of one kind are to come: how many of them can be passed over. At least one
    /// is always left, and none is passed over but in rehearsals.
    pub fn pass_over(&mut self, n_left: u64) -> u64 {
        STAGE.with_borrow_mut(|stage| stage.as_mut().map_or(0, |stage| self.pass_over_on(stage, n_left)))
    }

    fn pass_over_on(&mut self, stage: &mut Stage, n_left: u64) -> u64 {
        let (found, now) = (self.look_at(stage), stage.effort());
        let earlier = self.found.iter().rposition(|(earlier, _)| *earlier == found);
        self.found.push((found, now));
        let Some(earlier) = earlier else { return 0 };
        let circle = (self.found.len() - 1 - earlier) as u64;
        let n_circles = n_left.saturating_sub(1) / circle;
        // Each circle does again what this one did.
        stage.passed = stage.passed.plus(now.since(self.found[earlier].1), n_circles);
        n_circles * circle
    }

    fn look_at(&mut self, stage: &mut Stage) -> Found {
        let pool = stage.ghost.pool();
        if let Some(study) = &mut stage.study {
            study.take_in(&pool.take_trace());
            pool.start_trace();
        }
        let n_requests = pool.stats().n_acquired;
        let before = std::mem::replace(&mut self.n_requests, n_requests);
        Found { fingerprint: pool.fingerprint(), n_requests: n_requests - before }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::{Result, Tensor};

    use super::*;

    #[test]
    fn nothing_is_passed_over_outside_rehearsals() {
        let mut rounds = Rounds::begin();
        assert!(!is_on());
        assert_eq!([rounds.pass_over(9), rounds.pass_over(9), rounds.pass_over(9)], [0; 3]);
    }

    #[test]
    fn rounds_that_go_in_a_circle_are_passed_over_in_whole_circles() -> Result<()> {
        let ghost = Device::ghost_cpu();
        let (passed, _) = rehearse(&ghost, None, || -> Result<Vec<u64>> {
            assert!(is_on());
            let _model = Tensor::zeros([1000])?;
            let mut rounds = Rounds::begin();
            let (mut kept, mut passed) = (Vec::new(), Vec::new());
            for round in 0..8u64 {
                passed.push(rounds.pass_over(20 - round));
                // Every other round leaves a block behind, which the next one drops.
                match round.is_multiple_of(2) {
                    true => kept.push(Tensor::zeros([100_000])?),
                    false => kept.clear(),
                }
            }
            Ok(passed)
        });
        let passed = passed?;
        assert!(!is_on());
        let first = passed.iter().position(|&n| n > 0).expect("it is a circle");
        // Of the rounds to come, at least one is left, and as many as make the circle whole.
        assert_eq!(passed[first], (20 - first as u64 - 1) / 2 * 2, "{passed:?}");
        Ok(())
    }
}
