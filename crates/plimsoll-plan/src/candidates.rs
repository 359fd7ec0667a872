//! Candidates: the plans of a step, measured only as far as a limit asks.
//!
//! A [`Family`](crate::Family) plays every candidate and packs its blocks, which takes far longer than to decide about it. A
//! limit takes the fastest that fits, so nothing slower need be played, and nothing that is expected to exceed it. So a plan
//! for one limit plays few of them, and its answer is what the whole family says.

use std::sync::Arc;

use crate::family::candidates;
use crate::{Decisions, Played, Trace};

/// By which part of the expected peak a step may stay below it: what is expected above a limit by more is not played.
const TOLERANCE: u64 = 32;

/// How many steps a cache remembers: those of full batches, of the last one, and as many of the run before.
const N_CACHED: usize = 4;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The most bytes in use, which is more than every limit so far; where its blocks lie was not asked.
    Peak(u64),
    /// What it takes.
    Placed(Played),
    /// It cannot be made: there is no room for what it offloads.
    Impossible,
}

/// One way to make a step.
#[derive(Clone, Debug)]
struct Candidate {
    /// What it lets go; nothing for the natural step.
    decisions: Option<Arc<Decisions>>,
    expected_peak: u64,
    measured: Option<Measured>,
}

impl Candidate {
    /// A number of bytes below which it does not fit, as far as that is known.
    fn at_least(&self) -> Option<u64> {
        match self.measured {
            None => Some(self.expected_peak - self.expected_peak / TOLERANCE),
            Some(Measured::Peak(peak)) => Some(peak),
            Some(Measured::Placed(played)) => Some(played.committed),
            Some(Measured::Impossible) => None,
        }
    }
}

/// The ways to make a step, the fastest first, each measured when a limit first asks for it.
#[derive(Clone, Debug)]
pub struct Candidates {
    all: Vec<Candidate>,
}

impl Candidates {
    /// The candidates for a step that takes `natural` when everything is kept.
    pub fn new(trace: &Trace, natural: Played) -> Candidates {
        let mut all = vec![Candidate {
            decisions: None,
            expected_peak: natural.peak,
            measured: Some(Measured::Placed(natural)),
        }];
        // A trace knows nothing of what lies on the device beside the step.
        let outside = natural.peak.saturating_sub(trace.natural_peak());
        all.extend(candidates(trace).into_iter().map(|decisions| Candidate {
            expected_peak: decisions.expected_peak + outside,
            decisions: Some(Arc::new(decisions)),
            measured: None,
        }));
        Candidates { all }
    }

    /// The number of the fastest candidate that commits no more than `limit` bytes. `measure` plays one, and packs its blocks
    /// if its peak is no more than the limit.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn within<E>(
        &mut self,
        limit: u64,
        mut measure: impl FnMut(&Arc<Decisions>) -> Result<Measured, E>,
    ) -> Result<Option<usize>, E> {
        // Among candidates that fit, both peaks fall as time rises, as in a family. What cannot fit exceeds in both.
        let mut faster: Option<Played> = None;
        for (number, candidate) in self.all.iter_mut().enumerate() {
            if candidate.at_least().is_none_or(|bytes| bytes > limit) {
                continue;
            }
            if let (Some(decisions), None | Some(Measured::Peak(_))) =
                (&candidate.decisions, candidate.measured)
            {
                candidate.measured = Some(measure(decisions)?);
            }
            let Some(Measured::Placed(played)) = candidate.measured else { continue };
            let is_leaner =
                faster.is_none_or(|faster| played.committed < faster.committed && played.peak <= faster.peak);
            if is_leaner && played.committed <= limit {
                return Ok(Some(number));
            }
            if is_leaner {
                faster = Some(played);
            }
        }
        Ok(None)
    }

    /// The least limit that one of them fits, and its number. `measure` is given the limit, too.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn least<E>(
        &mut self,
        mut measure: impl FnMut(&Arc<Decisions>, u64) -> Result<Measured, E>,
    ) -> Result<(u64, usize), E> {
        let mut limit = 0;
        loop {
            let bounds = self.all.iter().filter_map(Candidate::at_least);
            // The natural step is placed and fits what it takes, so the search ends there at the latest.
            limit = bounds.filter(|&bytes| bytes > limit).min().unwrap_or(u64::MAX);
            if let Some(number) = self.within(limit, |decisions| measure(decisions, limit))? {
                return Ok((limit, number));
            }
        }
    }

    /// What a candidate lets go; nothing for the natural step.
    pub fn decisions(&self, number: usize) -> Option<&Arc<Decisions>> {
        self.all[number].decisions.as_ref()
    }

    /// The bytes of the heap that the candidates take, roughly.
    pub fn heap_bytes(&self) -> usize {
        let decisions = self.all.iter().filter_map(|candidate| candidate.decisions.as_ref());
        self.all.len() * size_of::<Candidate>()
            + decisions.map(|decisions| decisions.heap_bytes()).sum::<usize>()
    }
}

/// The candidates of the steps that were planned last: a run is dry-run under one limit after the other, and its steps are
/// the same each time.
#[derive(Debug, Default)]
pub struct CandidateCache {
    /// The latest first.
    steps: Vec<CachedStep>,
}

#[derive(Debug)]
struct CachedStep {
    trace: Trace,
    natural: Played,
    candidates: Candidates,
}

impl CandidateCache {
    /// The candidates for a step that takes `natural` when everything is kept, none of them measured.
    pub fn find(&mut self, trace: &Trace, natural: Played) -> Candidates {
        let is_same = |step: &CachedStep| step.natural == natural && step.trace == *trace;
        if let Some(step) = self.steps.iter().find(|step| is_same(step)) {
            return step.candidates.clone();
        }
        let candidates = Candidates::new(trace, natural);
        self.steps.truncate(N_CACHED - 1);
        self.steps.insert(0, CachedStep { trace: trace.clone(), natural, candidates: candidates.clone() });
        candidates
    }
}
