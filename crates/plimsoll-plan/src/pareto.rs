//! The ways to keep the values of a block that no other way beats.
//!
//! A way is a set of values that forward lets go. It is judged by three figures: the bytes that still wait for backward, the
//! bytes that the block needs while its own ops run, chains that are repeated included, and the extra time. All three come
//! from the walk over the block alone.
//!
//! Ways are found by that walk, too, at a grid of bytes that may wait and of bytes that may be needed: where little must go,
//! these are the cheap ops. There are the two simple ones, to keep everything and to keep nothing but what the block
//! reads. And there is what differs from the best of all these in one value, or in what stays of it once it has been made
//! again, for as long as a fixed number of trials lasts.

use std::collections::HashSet;

use crate::excerpt::Excerpt;
use crate::simulation::Known;
use crate::{Decisions, Weights};

/// The bytes that may wait for backward are tried in steps of this share of a block's bytes.
const SHARE: u64 = 8;
/// How closely the least is looked for.
const N_HALVINGS: u32 = 6;
/// Of the ways of a block, the fastest is kept for each of so many shares of the bytes that wait,
const N_HELD: u64 = 32;
/// and of the bytes that are needed.
const N_NEEDED: u64 = 8;
/// The next target below what a way needs, as a share of what lies between the least and the natural need.
const STEP: u64 = 32;
/// How the walk compares values: by cost per byte alone, and by how long they stay away as well.
const WEIGHTS: [Weights; 2] =
    [Weights { patience: 0.0, moving: 1.0 }, Weights { patience: 1.0, moving: 1.0 }];

/// How much is tried.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// How many shares of a block's bytes are tried as those that may wait for backward.
    n_shares: u64,
    /// How many targets are tried for what a block needs at most, between the least that works and the natural one.
    n_targets: u64,
    /// How many ways are tried with one value more or less.
    n_trials: usize,
}

impl Effort {
    /// For a block by itself.
    pub const BLOCK: Effort = Effort { n_shares: SHARE, n_targets: 4, n_trials: 400 };
    /// For a few blocks that are taken as one. Only what keeps little of them is new.
    pub const SPAN: Effort = Effort { n_shares: SHARE, n_targets: 4, n_trials: 100 };
}

/// One way to keep the values of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    /// The values that forward lets go, in order, counted from the first that the block makes.
    pub let_go: Vec<u32>,
    /// The bytes that wait for backward.
    pub held: u64,
    /// The most bytes in use while the block's own ops run, without those that wait in earlier blocks.
    pub need: u64,
    /// The extra time.
    pub time: u64,
}

impl Keeping {
    /// Whether another way is at least as good in every respect.
    fn is_beaten_by(&self, other: &Keeping) -> bool {
        other.held <= self.held && other.need <= self.need && other.time <= self.time
    }
}

/// The ways to keep an excerpt's values that no other beats, the fastest first.
pub(crate) fn ways(excerpt: &mut Excerpt, effort: Effort) -> Vec<Keeping> {
    excerpt.demand_nothing();
    let natural = excerpt.trace.natural_peak();
    // Under this target nothing needs to go, whatever is made again.
    let roomy = 2 * natural + excerpt.bytes;
    let own = excerpt.own_values();
    let mut search = Search { excerpt, own, found: Vec::new(), tried: HashSet::new() };
    let least = search.least_need(natural);
    let n_targets = effort.n_targets;
    let tight = (0..n_targets).map(|step| least + (natural - least) / n_targets * step);
    for target in [roomy].into_iter().chain(tight) {
        search.consider(Vec::new(), target);
        search.consider(search.own.clone(), target);
        search.consider_shares(effort.n_shares, target);
    }
    search.try_neighbours(effort.n_trials, (natural - least) / STEP);
    search.finish()
}

/// What has been found so far.
struct Search<'a> {
    excerpt: &'a mut Excerpt,
    /// The values that can be let go.
    own: Vec<u32>,
    /// The ways that none of the others beats, each with the target under which it was found.
    found: Vec<(Keeping, u64)>,
    tried: HashSet<(Vec<u32>, u64)>,
}

impl Search<'_> {
    /// What the walk decides about the block alone.
    fn walk(&self, target: u64, weights: Weights, let_go: &[u32]) -> Option<Decisions> {
        Known::of(&self.excerpt.trace).decide(target, weights, let_go)
    }

    /// The least that a block can be made to need, or a little more.
    fn least_need(&self, natural: u64) -> u64 {
        let (mut fails, mut works) = (0, natural);
        for _ in 0..N_HALVINGS {
            let between = fails + (works - fails) / 2;
            match self.walk(between, WEIGHTS[0], &[]) {
                Some(_) => works = between,
                None => fails = between,
            }
        }
        works
    }

    /// Judges the way that lets these values go, and what else a target asks for.
    fn consider(&mut self, let_go: Vec<u32>, target: u64) {
        if self.tried.contains(&(let_go.clone(), target)) {
            return;
        }
        let decisions = self.walk(target, WEIGHTS[1], &let_go);
        self.tried.insert((let_go, target));
        let Some(decisions) = decisions else { return };
        let let_go = dropped(&decisions);
        let gone: u64 = let_go.iter().map(|&number| self.excerpt.trace.values[number as usize].bytes).sum();
        let held = self.excerpt.bytes - gone;
        let way = Keeping { let_go, held, need: decisions.expected_peak, time: decisions.extra_time };
        if !self.found.iter().any(|(other, _)| way.is_beaten_by(other)) {
            self.found.retain(|(other, _)| !other.is_beaten_by(&way));
            self.found.push((way, target));
        }
    }

    /// Judges what the walk lets go when no more than a share of the block's bytes may wait.
    fn consider_shares(&mut self, n_shares: u64, target: u64) {
        for share in 0..n_shares {
            for weights in WEIGHTS {
                self.excerpt.demand(self.excerpt.bytes / SHARE * share, target);
                let decisions = self.walk(target, weights, &[]);
                self.excerpt.demand_nothing();
                if let Some(decisions) = decisions {
                    self.consider(dropped(&decisions), target);
                }
            }
        }
    }

    /// Judges what differs from the best ways in one value, and goes on from there.
    fn try_neighbours(&mut self, n_trials: usize, step: u64) {
        let most = self.tried.len() + n_trials;
        let mut at = 0;
        while at < self.found.len() && self.tried.len() < most {
            let (way, target) = self.found[at].clone();
            // Under a target just below its need, less of what is made again stays for later.
            self.consider(way.let_go.clone(), way.need.saturating_sub(step));
            for number in self.own.clone() {
                if self.tried.len() >= most {
                    return;
                }
                let mut let_go = way.let_go.clone();
                match let_go.binary_search(&number) {
                    Ok(place) => _ = let_go.remove(place),
                    Err(place) => let_go.insert(place, number),
                }
                self.consider(let_go, target);
            }
            // What has been found since stands at the end; what it beats is gone, and others have moved up.
            at = self.found.iter().position(|(other, _)| *other == way).map_or(at, |place| place + 1);
        }
    }

    /// The fastest way for each share of bytes that wait and that are needed, of those that none of the others beats.
    fn finish(self) -> Vec<Keeping> {
        let n_entries = self.excerpt.n_entries;
        let counted = |way: Keeping| Keeping {
            let_go: way.let_go.iter().map(|number| number - n_entries).collect(),
            ..way
        };
        let mut ways: Vec<Keeping> = self.found.into_iter().map(|(way, _)| counted(way)).collect();
        ways.sort_by_key(|way| (way.time, way.held, way.need));
        let needs = ways.iter().map(|way| way.need);
        let (least, most) = (needs.clone().min().unwrap_or(0), needs.max().unwrap_or(0));
        let share = |bytes: u64, of: u64, n: u64| bytes * n / (of + 1);
        let mut taken = HashSet::new();
        ways.retain(|way| {
            let held = share(way.held, self.excerpt.bytes, N_HELD);
            taken.insert((held, share(way.need - least, most - least, N_NEEDED)))
        });
        ways
    }
}

/// The values that forward lets go.
fn dropped(decisions: &Decisions) -> Vec<u32> {
    (0u32..).zip(&decisions.dropped).filter(|(_, dropped)| **dropped).map(|(number, _)| number).collect()
}
