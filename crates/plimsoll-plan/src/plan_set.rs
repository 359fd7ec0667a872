//! Plan sets: the candidates that a limit chooses from.
//!
//! The candidates do not depend on the limit. Decisions are made at a fixed grid of targets between the least that works
//! and the natural peak, each is dry-run through a pool, and only a sequence is kept in which bytes in use, bytes committed
//! and speed rise together. A limit takes the fastest candidate that fits it, so both peaks are monotone in the limit, and
//! the least limit is that of the first candidate.
//!
//! Candidates come from two sources: the greedy planner alone, and the greedy planner with what a [`Chain`] of blocks
//! prescribes. A candidate of the greedy planner alone is only left out for one that is expected to take neither more time
//! nor more bytes, and its leanest never; so blocks make a plan set better, and where a graph has none, everything is as
//! without them.
//! `docs/planners.md` has what each gains on which networks.

use std::sync::Arc;

use crate::greedy::TraceAnalysis;
use crate::{Chain, Decisions, Trace, Weights};

/// How many targets lie between the least and the natural peak, for each set of weights,
const N_TARGETS: u64 = 24;
/// and for what the blocks of a chain prescribe. These are denser towards the least, where time rises steeply.
const N_CHAIN_TARGETS: u64 = 64;
/// How precisely the least target is searched for, as a number of bisections below the natural peak.
const N_HALVINGS: u32 = 9;
/// The least gain: a candidate must need less than the next faster one by the natural peak divided by this.
const MIN_GAIN: u64 = 100;
/// The same for what blocks prescribe, which must differ by more: a dry run takes far longer than a decision.
const CHAIN_MIN_GAIN: u64 = 50;
/// How values are compared: the weight of their reuse distance, and that of the time of transfers.
const WEIGHTS: [Weights; 3] = [
    Weights { distance_weight: 0.0, offload_weight: 1.0 },
    Weights { distance_weight: 0.5, offload_weight: 1.0 },
    Weights { distance_weight: 1.0, offload_weight: 1.0 },
];
/// How values are compared where blocks prescribe what is evicted.
const CHAIN_WEIGHTS: Weights = Weights { distance_weight: 0.5, offload_weight: 1.0 };
/// With an offload store, transfers are also tried as if they were free, except for the time spent waiting for them.
const FREE_OFFLOAD_WEIGHTS: [Weights; 3] = [
    Weights { distance_weight: 0.0, offload_weight: 0.0 },
    Weights { distance_weight: 0.5, offload_weight: 0.0 },
    Weights { distance_weight: 1.0, offload_weight: 0.0 },
];

/// The peaks of a step that was dry-run through a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peaks {
    /// The most bytes in use.
    pub peak: u64,
    /// The most bytes committed.
    pub committed: u64,
}

/// One plan of a step.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it evicts; nothing for the natural step.
    pub decisions: Option<Arc<Decisions>>,
    /// The memory that it takes.
    pub peaks: Peaks,
    /// Its time by the cost model, in nanoseconds.
    pub time: u64,
}

/// Where candidates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planner {
    /// The greedy planner alone, op by op.
    Greedy,
    /// The greedy planner with what dynamic programming over a [`Chain`] of blocks prescribes.
    Chain,
}

impl Planner {
    /// All of them, which is what a limit chooses from.
    pub const ALL: [Planner; 2] = [Planner::Greedy, Planner::Chain];
}

/// The plans of a step, from the leanest and slowest to the natural one, which retains everything.
#[derive(Clone, Debug)]
pub struct PlanSet {
    candidates: Vec<Candidate>,
}

impl PlanSet {
    /// Makes the candidates: `dry_run` runs the step as decided through the pool of a ghost, and returns nothing if that is
    /// impossible.
    ///
    /// # Errors
    /// Those of `dry_run`.
    pub fn new<E>(
        trace: &Trace,
        natural: Peaks,
        dry_run: impl FnMut(&Arc<Decisions>) -> Result<Option<Peaks>, E>,
    ) -> Result<PlanSet, E> {
        PlanSet::by(&Planner::ALL, trace, natural, dry_run)
    }

    /// Like [`PlanSet::new`], with the candidates of some of the planners, to compare them.
    ///
    /// # Errors
    /// Those of `dry_run`.
    pub fn by<E>(
        planners: &[Planner],
        trace: &Trace,
        natural: Peaks,
        mut dry_run: impl FnMut(&Arc<Decisions>) -> Result<Option<Peaks>, E>,
    ) -> Result<PlanSet, E> {
        let time = trace.natural_time();
        let mut tried = vec![Candidate { decisions: None, peaks: natural, time }];
        for decisions in grid_decisions(trace, planners) {
            let (time, decisions) = (time + decisions.extra_time, Arc::new(decisions));
            if let Some(peaks) = dry_run(&decisions)? {
                tried.push(Candidate { decisions: Some(decisions), peaks, time });
            }
        }
        Ok(PlanSet { candidates: monotone(tried) })
    }

    /// The candidates, the leanest first.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The index of the fastest candidate that commits no more than `limit` bytes.
    pub fn within(&self, limit: u64) -> Option<usize> {
        self.candidates.iter().rposition(|candidate| candidate.peaks.committed <= limit)
    }

    /// The heap bytes that the plan set takes, roughly.
    pub fn heap_bytes(&self) -> usize {
        let decisions = self.candidates.iter().filter_map(|candidate| candidate.decisions.as_ref());
        self.candidates.len() * size_of::<Candidate>()
            + decisions.map(|decisions| decisions.heap_bytes()).sum::<usize>()
    }

    /// The fewest bytes that the step can be made to commit.
    pub fn least(&self) -> u64 {
        self.candidates.first().map_or(0, |candidate| candidate.peaks.committed)
    }
}

/// Decisions for the whole grid: those of the greedy planner alone, and those that follow the prescriptions of a chain,
/// without any that another is expected to beat.
pub(crate) fn grid_decisions(trace: &Trace, planners: &[Planner]) -> Vec<Decisions> {
    let analysis = TraceAnalysis::of(trace);
    // The leanest decisions of each planner are never left out: the least limit depends on how their blocks can be packed, of
    // which the expected peak says little.
    let (mut all, mut leanest) = (Vec::new(), Vec::new());
    for planner in planners {
        let found = match planner {
            Planner::Greedy => distinct(trace, greedy_decisions(trace, &analysis), MIN_GAIN),
            Planner::Chain => distinct(trace, chain_decisions(trace, &analysis), CHAIN_MIN_GAIN),
        };
        leanest.extend(found.iter().map(|decisions| decisions.expected_peak).min());
        all.extend(found);
    }
    all.sort_by_key(|decisions| (decisions.extra_time, decisions.expected_peak));
    let mut least = u64::MAX;
    all.retain(|decisions| {
        let is_leaner = decisions.expected_peak < least;
        least = least.min(decisions.expected_peak);
        is_leaner || leanest.contains(&decisions.expected_peak)
    });
    all
}

/// What the greedy planner decides alone, with each of its weights.
fn greedy_decisions(trace: &Trace, analysis: &TraceAnalysis<'_>) -> Vec<Decisions> {
    let free = trace.offload_store.iter().flat_map(|_| FREE_OFFLOAD_WEIGHTS);
    let shares = || (0..N_TARGETS).map(|step| (step, N_TARGETS));
    let decided = |weights| grid(trace, shares(), |target| analysis.decide(target, weights, &[]));
    WEIGHTS.into_iter().chain(free).flat_map(decided).collect()
}

/// What the greedy planner decides with the prescriptions of a chain; nothing where the step has no blocks.
fn chain_decisions(trace: &Trace, analysis: &TraceAnalysis<'_>) -> Vec<Decisions> {
    let chain = Chain::new(trace);
    if chain.is_empty() {
        return Vec::new();
    }
    let shares = (0..N_CHAIN_TARGETS).map(|step| (step * step, N_CHAIN_TARGETS * N_CHAIN_TARGETS));
    grid(trace, shares, |target| analysis.decide(target, CHAIN_WEIGHTS, &chain.best(target).evicted))
}

/// The decisions that differ from a faster one by at least the natural peak divided by `min_gain`; the fastest first.
fn distinct(trace: &Trace, mut all: Vec<Decisions>, min_gain: u64) -> Vec<Decisions> {
    all.sort_by_key(|decisions| (decisions.extra_time, decisions.expected_peak));
    let mut least = trace.natural_peak();
    let leanest = all.iter().map(|decisions| decisions.expected_peak).min();
    all.retain(|decisions| {
        let is_leaner = decisions.expected_peak + trace.natural_peak() / min_gain <= least
            || (Some(decisions.expected_peak) == leanest && decisions.expected_peak < least);
        if is_leaner {
            least = decisions.expected_peak;
        }
        is_leaner
    });
    all
}

/// Decisions for targets between the least that works and the natural peak, at these shares of the way.
fn grid(
    trace: &Trace,
    shares: impl Iterator<Item = (u64, u64)>,
    decide: impl Fn(u64) -> Option<Decisions>,
) -> Vec<Decisions> {
    let most = trace.natural_peak();
    let (mut fails, mut works) = (0, most);
    for _ in 0..N_HALVINGS {
        let between = fails + (works - fails) / 2;
        match decide(between) {
            Some(_) => works = between,
            None => fails = between,
        }
    }
    shares.filter_map(|(part, of)| decide(works + (most - works) / of * part)).collect()
}

/// The candidates that no other beats, in an order in which both peaks rise and time falls.
fn monotone(mut tried: Vec<Candidate>) -> Vec<Candidate> {
    tried.sort_by_key(|candidate| (candidate.time, candidate.peaks.committed, candidate.peaks.peak));
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in tried {
        let leaner = kept.last().is_none_or(|faster| {
            candidate.peaks.committed < faster.peaks.committed && candidate.peaks.peak <= faster.peaks.peak
        });
        if leaner {
            kept.push(candidate);
        }
    }
    kept.reverse();
    kept
}
