//! Families of plans: what a limit chooses from.
//!
//! The members do not depend on the limit. Decisions are made at a fixed grid of targets between the least that works and
//! the natural peak, each is played through a pool, and only a chain is kept in which bytes in use, bytes committed and
//! speed rise together. A limit takes the fastest member that fits it, so both peaks are monotone in the limit, and the
//! least limit is the first member's.
//!
//! Candidates are made in two ways: by the walk alone, and by the walk with what a [`Chain`] of blocks prescribes. What the
//! walk has made is only left out for something that takes neither more time nor more bytes; so blocks can make a family
//! better and never worse, and where a graph has none, everything is as without them.

use std::sync::Arc;

use crate::simulation::Known;
use crate::{Chain, Decisions, Trace, Weights};

/// How many targets lie between the least and the natural peak, for each way to compare values,
const N_TARGETS: u64 = 24;
/// and for what the blocks of a chain prescribe. These lie closer together towards the least, where time rises steeply.
const N_CHAIN_TARGETS: u64 = 64;
/// How closely the least target is looked for, as a share of what lies between it and the natural peak.
const N_HALVINGS: u32 = 9;
/// A member must need less than the next faster one by this part of the natural peak.
const TRIFLES: u64 = 100;
/// What blocks prescribe must differ by this part: to play a step takes far longer than to decide about it.
const CHAIN_TRIFLES: u64 = 50;
/// How values are compared: how much the time counts that one stays away, and how much that of moving it.
const WEIGHTS: [Weights; 3] = [
    Weights { patience: 0.0, moving: 1.0 },
    Weights { patience: 0.5, moving: 1.0 },
    Weights { patience: 1.0, moving: 1.0 },
];
/// How values are compared where blocks prescribe what they let go.
const BETWEEN: Weights = Weights { patience: 0.5, moving: 1.0 };
/// Where values can be moved, journeys are also tried as if they took no time, but for what is waited for.
const MOVING: [Weights; 3] = [
    Weights { patience: 0.0, moving: 0.0 },
    Weights { patience: 0.5, moving: 0.0 },
    Weights { patience: 1.0, moving: 0.0 },
];

/// What playing a step through a pool showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// The most bytes in use.
    pub peak: u64,
    /// The most bytes committed.
    pub committed: u64,
}

/// One way to make a step.
#[derive(Clone, Debug)]
pub struct Member {
    /// What it lets go; nothing for the natural step.
    pub decisions: Option<Arc<Decisions>>,
    /// What it takes.
    pub played: Played,
    /// Its time by the cost model, in nanoseconds.
    pub time: u64,
}

/// The ways to make a step, from the leanest and slowest to the natural one.
#[derive(Clone, Debug)]
pub struct Family {
    members: Vec<Member>,
}

impl Family {
    /// Makes the members: `play` runs the step as decided, through the pool of a ghost, and may find that it cannot.
    ///
    /// # Errors
    /// Those of `play`.
    pub fn new<E>(
        trace: &Trace,
        natural: Played,
        mut play: impl FnMut(&Arc<Decisions>) -> Result<Option<Played>, E>,
    ) -> Result<Family, E> {
        let time = trace.natural_time();
        let mut tried = vec![Member { decisions: None, played: natural, time }];
        for decisions in candidates(trace) {
            let (time, decisions) = (time + decisions.extra_time, Arc::new(decisions));
            if let Some(played) = play(&decisions)? {
                tried.push(Member { decisions: Some(decisions), played, time });
            }
        }
        Ok(Family { members: chain(tried) })
    }

    /// The members, the leanest first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The place among the members of the fastest that commits no more than `limit` bytes.
    pub fn within(&self, limit: u64) -> Option<usize> {
        self.members.iter().rposition(|member| member.played.committed <= limit)
    }

    /// The bytes of the heap that the family takes, roughly.
    pub fn heap_bytes(&self) -> usize {
        let decisions = self.members.iter().filter_map(|member| member.decisions.as_ref());
        self.members.len() * size_of::<Member>()
            + decisions.map(|decisions| decisions.heap_bytes()).sum::<usize>()
    }

    /// The least that a step can be made to commit.
    pub fn least(&self) -> u64 {
        self.members.first().map_or(0, |member| member.played.committed)
    }
}

/// Decisions for the whole grid: what the walk makes alone, and what it makes of the prescriptions of a chain, without what
/// another is expected to beat.
pub(crate) fn candidates(trace: &Trace) -> Vec<Decisions> {
    let known = Known::of(trace);
    let mut alone = Vec::new();
    let shares = || (0..N_TARGETS).map(|step| (step, N_TARGETS));
    for weights in WEIGHTS.into_iter().chain(trace.depot.iter().flat_map(|_| MOVING)) {
        alone.extend(grid(trace, shares(), |target| known.decide(target, weights, &[])));
    }
    let mut prescribed = Vec::new();
    let chain = Chain::new(trace);
    if !chain.is_empty() {
        let shares = (0..N_CHAIN_TARGETS).map(|step| (step * step, N_CHAIN_TARGETS * N_CHAIN_TARGETS));
        prescribed = grid(trace, shares, |target| known.decide(target, BETWEEN, &chain.best(target).let_go));
    }
    let mut all = unlike(trace, alone, TRIFLES);
    all.extend(unlike(trace, prescribed, CHAIN_TRIFLES));
    all.sort_by_key(|decisions| (decisions.extra_time, decisions.expected_peak));
    let mut least = u64::MAX;
    all.retain(|decisions| {
        let is_leaner = decisions.expected_peak < least;
        least = least.min(decisions.expected_peak);
        is_leaner
    });
    all
}

/// The decisions that others do not beat by more than a trifle, of which the natural peak has so many; the fastest first.
fn unlike(trace: &Trace, mut all: Vec<Decisions>, trifles: u64) -> Vec<Decisions> {
    all.sort_by_key(|decisions| (decisions.extra_time, decisions.expected_peak));
    let mut least = trace.natural_peak();
    let leanest = all.iter().map(|decisions| decisions.expected_peak).min();
    all.retain(|decisions| {
        let is_leaner = decisions.expected_peak + trace.natural_peak() / trifles <= least
            || (Some(decisions.expected_peak) == leanest && decisions.expected_peak < least);
        if is_leaner {
            least = decisions.expected_peak;
        }
        is_leaner
    });
    all
}

/// Decisions for targets that lie between the least that works and the natural peak, at these shares of the way.
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

/// The members that no other beats, in an order in which both peaks rise and time falls.
fn chain(mut tried: Vec<Member>) -> Vec<Member> {
    tried.sort_by_key(|member| (member.time, member.played.committed, member.played.peak));
    let mut chain: Vec<Member> = Vec::new();
    for member in tried {
        let leaner = chain.last().is_none_or(|faster| {
            member.played.committed < faster.played.committed && member.played.peak <= faster.played.peak
        });
        if leaner {
            chain.push(member);
        }
    }
    chain.reverse();
    chain
}
