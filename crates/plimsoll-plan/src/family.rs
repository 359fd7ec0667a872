//! Families of plans: what a limit chooses from.
//!
//! The members do not depend on the limit. Decisions are made at a fixed grid of targets between the least that works and
//! the natural peak, each is played through a pool, and only a chain is kept in which bytes in use, bytes committed and
//! speed rise together. A limit takes the fastest member that fits it, so both peaks are monotone in the limit, and the
//! least limit is the first member's.

use crate::{Decisions, Trace, Weights, decide};

/// How many targets lie between the least and the natural peak.
const N_TARGETS: u64 = 24;
/// How closely the least target is looked for, as a share of what lies between it and the natural peak.
const N_HALVINGS: u32 = 9;
/// How values are compared: how much the time counts that one stays away, and how much that of moving it.
const WEIGHTS: [Weights; 3] = [
    Weights { patience: 0.0, moving: 1.0 },
    Weights { patience: 0.5, moving: 1.0 },
    Weights { patience: 1.0, moving: 1.0 },
];
/// Where values can be moved, all that are large are also tried: a value that is moved needs nothing else to come back.
const MOVING: Weights = Weights { patience: 0.5, moving: 0.0 };

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
    pub decisions: Option<Decisions>,
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
        mut play: impl FnMut(&Decisions) -> Result<Option<Played>, E>,
    ) -> Result<Family, E> {
        let natural = Member { decisions: None, played: natural, time: trace.natural_time() };
        let mut tried = vec![natural];
        let moving = trace.depot.map(|_| MOVING);
        for weights in WEIGHTS.into_iter().chain(moving) {
            for target in targets(trace, weights) {
                let Some(decisions) = decide(trace, target, weights) else { continue };
                if tried.iter().any(|member| member.decisions.as_ref() == Some(&decisions)) {
                    continue;
                }
                if let Some(played) = play(&decisions)? {
                    let time = trace.natural_time() + decisions.extra_time;
                    tried.push(Member { decisions: Some(decisions), played, time });
                }
            }
        }
        Ok(Family { members: chain(tried) })
    }

    /// The members, the leanest first.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The fastest member that commits no more than `limit` bytes.
    pub fn within(&self, limit: u64) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.played.committed <= limit)
    }

    /// The least that a step can be made to commit.
    pub fn least(&self) -> u64 {
        self.members.first().map_or(0, |member| member.played.committed)
    }
}

/// The grid of targets, from the least that works to just below the natural peak.
fn targets(trace: &Trace, weights: Weights) -> impl Iterator<Item = u64> + use<> {
    let most = trace.natural_peak();
    let (mut fails, mut works) = (0, most);
    for _ in 0..N_HALVINGS {
        let between = fails + (works - fails) / 2;
        match decide(trace, between, weights) {
            Some(_) => works = between,
            None => fails = between,
        }
    }
    (0..N_TARGETS).map(move |step| works + (most - works) / N_TARGETS * step)
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
