//! Lazy plan sets: the plans of a step, measured only as far as a limit needs.
//!
//! A [`PlanSet`](crate::PlanSet) dry-runs every candidate and packs its blocks, which takes far longer than deciding about
//! it. A limit takes the fastest candidate that fits, so nothing slower need be measured, and nothing that is expected to
//! exceed it. A plan for one limit therefore measures few candidates, and its answer is that of the whole plan set.

use std::sync::Arc;

use crate::plan_set::grid_decisions;
use crate::{Decisions, Peaks, Planner, Trace};

/// A step may need less than its expected peak by this part of it: a candidate expected above a limit by more is not
/// measured.
const TOLERANCE: u64 = 32;

/// How many steps a cache remembers: those of full batches, of the last batch, and as many of the previous run.
const N_CACHED: usize = 4;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The peak of bytes in use, which exceeds every limit so far; its blocks were not packed.
    Peak(u64),
    /// The memory that it takes with its blocks packed.
    Placed(Peaks),
    /// It is impossible: the offload store is too small for it.
    Impossible,
}

/// One plan of a step, measured or not.
#[derive(Clone, Debug)]
struct LazyCandidate {
    /// What it evicts; nothing for the natural step.
    decisions: Option<Arc<Decisions>>,
    expected_peak: u64,
    measured: Option<Measured>,
}

impl LazyCandidate {
    /// A lower bound of the bytes that it commits, as far as that is known.
    fn at_least(&self) -> Option<u64> {
        match self.measured {
            None => Some(self.expected_peak - self.expected_peak / TOLERANCE),
            Some(Measured::Peak(peak)) => Some(peak),
            Some(Measured::Placed(peaks)) => Some(peaks.committed),
            Some(Measured::Impossible) => None,
        }
    }
}

/// The plans of a step, the fastest first, each measured when a limit first needs it.
#[derive(Clone, Debug)]
pub struct LazyPlanSet {
    all: Vec<LazyCandidate>,
}

impl LazyPlanSet {
    /// The plans of a step that takes `natural` when everything is retained.
    pub fn new(trace: &Trace, natural: Peaks) -> LazyPlanSet {
        let mut all = vec![LazyCandidate {
            decisions: None,
            expected_peak: natural.peak,
            measured: Some(Measured::Placed(natural)),
        }];
        // A trace does not know what else is in use on the device.
        let outside = natural.peak.saturating_sub(trace.natural_peak());
        all.extend(grid_decisions(trace, &Planner::ALL).into_iter().map(|decisions| LazyCandidate {
            expected_peak: decisions.expected_peak + outside,
            decisions: Some(Arc::new(decisions)),
            measured: None,
        }));
        LazyPlanSet { all }
    }

    /// The number of the fastest candidate, from the one numbered `first` on, that commits no more than `limit` bytes. `measure`
    /// dry-runs one, and packs its blocks if its peak is no more than the limit.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn within<E>(
        &mut self,
        first: usize,
        limit: u64,
        mut measure: impl FnMut(&Arc<Decisions>) -> Result<Measured, E>,
    ) -> Result<Option<usize>, E> {
        // Among candidates that fit, both peaks fall as time rises, as in a plan set. What cannot fit exceeds both.
        let mut faster: Option<Peaks> = None;
        for (number, candidate) in self.all.iter_mut().enumerate().skip(first) {
            if candidate.at_least().is_none_or(|bytes| bytes > limit) {
                continue;
            }
            if let (Some(decisions), None | Some(Measured::Peak(_))) =
                (&candidate.decisions, candidate.measured)
            {
                candidate.measured = Some(measure(decisions)?);
            }
            let Some(Measured::Placed(peaks)) = candidate.measured else { continue };
            let is_leaner =
                faster.is_none_or(|faster| peaks.committed < faster.committed && peaks.peak <= faster.peak);
            if is_leaner && peaks.committed <= limit {
                return Ok(Some(number));
            }
            if is_leaner {
                faster = Some(peaks);
            }
        }
        Ok(None)
    }

    /// The least limit that a candidate from the one numbered `first` on fits, and the number of that candidate; nothing if all of
    /// them are impossible, which the natural one never is. `measure` is given the limit, too.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn least<E>(
        &mut self,
        first: usize,
        mut measure: impl FnMut(&Arc<Decisions>, u64) -> Result<Measured, E>,
    ) -> Result<Option<(u64, usize)>, E> {
        let mut limit = 0;
        loop {
            let bounds = self.all.iter().skip(first).filter_map(LazyCandidate::at_least);
            // A candidate that is placed fits what it takes, so the search ends.
            let Some(next) = bounds.filter(|&bytes| bytes > limit).min() else { return Ok(None) };
            limit = next;
            if let Some(number) = self.within(first, limit, |decisions| measure(decisions, limit))? {
                return Ok(Some((limit, number)));
            }
        }
    }

    /// What a candidate evicts; nothing for the natural step.
    pub fn decisions(&self, number: usize) -> Option<&Arc<Decisions>> {
        self.all[number].decisions.as_ref()
    }

    /// The heap bytes that the plans take.
    pub fn heap_bytes(&self) -> usize {
        let decisions = self.all.iter().filter_map(|candidate| candidate.decisions.as_ref());
        let one = |decisions: &Arc<Decisions>| size_of::<Decisions>() + decisions.heap_bytes();
        self.all.capacity() * size_of::<LazyCandidate>() + decisions.map(one).sum::<usize>()
    }
}

/// The plans of the steps that were planned last: a run is dry-run under one limit after the other, and its steps are the
/// same each time.
#[derive(Debug, Default)]
pub struct PlanSetCache {
    /// The latest first.
    steps: Vec<CachedStep>,
}

#[derive(Debug)]
struct CachedStep {
    trace: Trace,
    natural: Peaks,
    plans: LazyPlanSet,
}

impl PlanSetCache {
    /// The plans of a step that takes `natural` when everything is retained, none of them measured.
    pub fn find(&mut self, trace: &Trace, natural: Peaks) -> LazyPlanSet {
        let is_same = |step: &CachedStep| step.natural == natural && step.trace == *trace;
        if let Some(step) = self.steps.iter().find(|step| is_same(step)) {
            return step.plans.clone();
        }
        let plans = LazyPlanSet::new(trace, natural);
        self.steps.truncate(N_CACHED - 1);
        self.steps.insert(0, CachedStep { trace: trace.clone(), natural, plans: plans.clone() });
        plans
    }
}
