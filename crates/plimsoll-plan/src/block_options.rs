//! The Pareto-optimal options of a block.
//!
//! An option is a set of values that forward evicts. It is measured by three figures: the bytes that are still saved for
//! backward, the bytes that the block needs while its own ops run, recomputed chains included, and the extra time. All
//! three come from the greedy planner over the block alone.
//!
//! The greedy planner also finds the options, at a grid of bytes that may be saved and of bytes that may be needed: where
//! little must be evicted, these are cheap ops. There are the two simple options, to retain everything and to retain
//! nothing but what the block reads. And there are options that differ from the best of all these in one value, or in what
//! is retained of it once it has been recomputed, up to a fixed number of trials.

use std::collections::HashSet;

use crate::block_slice::BlockSlice;
use crate::greedy::TraceAnalysis;
use crate::{Decisions, Weights};

/// The bytes that may be saved for backward are tried in steps of this share of a block's bytes.
const SHARE: u64 = 8;
/// How precisely the least need is searched for, as a number of bisections.
const N_HALVINGS: u32 = 6;
/// Of the options of a block, the fastest is kept for each of so many shares of the bytes saved,
const N_HELD: u64 = 32;
/// and of the bytes needed.
const N_NEEDED: u64 = 8;
/// The next target below what an option needs, as a share of what lies between the least and the natural need.
const STEP: u64 = 32;
/// How the greedy planner compares values: by cost per byte alone, and by their reuse distance as well.
const WEIGHTS: [Weights; 2] = [
    Weights { distance_weight: 0.0, offload_weight: 1.0 },
    Weights { distance_weight: 1.0, offload_weight: 1.0 },
];

/// How much is tried.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// How many shares of a block's bytes are tried as those that may be saved for backward.
    n_shares: u64,
    /// How many targets are tried for what a block needs at most, between the least that works and the natural one.
    n_targets: u64,
    /// How many options are tried with one value more or less.
    n_trials: usize,
}

impl Effort {
    /// For a block by itself.
    pub const BLOCK: Effort = Effort { n_shares: SHARE, n_targets: 4, n_trials: 400 };
    /// For a few blocks that are treated as one. Only options that retain little of them are new.
    pub const SPAN: Effort = Effort { n_shares: SHARE, n_targets: 4, n_trials: 100 };
}

/// One option of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockOption {
    /// The values that forward evicts, in order, counted from the first that the block makes.
    pub evicted: Vec<u32>,
    /// The bytes saved for backward.
    pub held: u64,
    /// The peak of bytes in use while the block's own ops run, without those that earlier blocks save.
    pub need: u64,
    /// The extra time.
    pub time: u64,
}

impl BlockOption {
    /// Whether another option is at least as good in every respect.
    fn is_beaten_by(&self, other: &BlockOption) -> bool {
        other.held <= self.held && other.need <= self.need && other.time <= self.time
    }
}

/// The Pareto-optimal options of a slice, the fastest first.
pub(crate) fn block_options(slice: &mut BlockSlice, effort: Effort) -> Vec<BlockOption> {
    slice.demand_nothing();
    let natural = slice.trace.natural_peak();
    // Under this target nothing need be evicted, whatever is recomputed.
    let roomy = 2 * natural + slice.bytes;
    let own = slice.own_values();
    let mut search = Search { slice, own, found: Vec::new(), tried: HashSet::new() };
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
    slice: &'a mut BlockSlice,
    /// The values that can be evicted.
    own: Vec<u32>,
    /// The options that none of the others beats, each with the target under which it was found.
    found: Vec<(BlockOption, u64)>,
    tried: HashSet<(Vec<u32>, u64)>,
}

impl Search<'_> {
    /// What the greedy planner decides about the block alone.
    fn decide(&self, target: u64, weights: Weights, evicted: &[u32]) -> Option<Decisions> {
        TraceAnalysis::of(&self.slice.trace).decide(target, weights, evicted)
    }

    /// The least that a block can be made to need, or a little more.
    fn least_need(&self, natural: u64) -> u64 {
        let (mut fails, mut works) = (0, natural);
        for _ in 0..N_HALVINGS {
            let between = fails + (works - fails) / 2;
            match self.decide(between, WEIGHTS[0], &[]) {
                Some(_) => works = between,
                None => fails = between,
            }
        }
        works
    }

    /// Measures the option that evicts these values, and what else a target requires.
    fn consider(&mut self, evicted: Vec<u32>, target: u64) {
        if self.tried.contains(&(evicted.clone(), target)) {
            return;
        }
        let decisions = self.decide(target, WEIGHTS[1], &evicted);
        self.tried.insert((evicted, target));
        let Some(decisions) = decisions else { return };
        let evicted = evicted_values(&decisions);
        let freed: u64 = evicted.iter().map(|&number| self.slice.trace.values[number as usize].bytes).sum();
        let held = self.slice.bytes - freed;
        let option = BlockOption { evicted, held, need: decisions.expected_peak, time: decisions.extra_time };
        if !self.found.iter().any(|(other, _)| option.is_beaten_by(other)) {
            self.found.retain(|(other, _)| !other.is_beaten_by(&option));
            self.found.push((option, target));
        }
    }

    /// Measures what the greedy planner evicts when no more than a share of the block's bytes may be saved.
    fn consider_shares(&mut self, n_shares: u64, target: u64) {
        for share in 0..n_shares {
            for weights in WEIGHTS {
                self.slice.demand(self.slice.bytes / SHARE * share, target);
                let decisions = self.decide(target, weights, &[]);
                self.slice.demand_nothing();
                if let Some(decisions) = decisions {
                    self.consider(evicted_values(&decisions), target);
                }
            }
        }
    }

    /// Measures what differs from the best options in one value, and goes on from there.
    fn try_neighbours(&mut self, n_trials: usize, step: u64) {
        let most = self.tried.len() + n_trials;
        let mut at = 0;
        while at < self.found.len() && self.tried.len() < most {
            let (option, target) = self.found[at].clone();
            // Under a target just below its need, less of what is recomputed is retained for later.
            self.consider(option.evicted.clone(), option.need.saturating_sub(step));
            for number in self.own.clone() {
                if self.tried.len() >= most {
                    return;
                }
                let mut evicted = option.evicted.clone();
                match evicted.binary_search(&number) {
                    Ok(place) => _ = evicted.remove(place),
                    Err(place) => evicted.insert(place, number),
                }
                self.consider(evicted, target);
            }
            // What has been found since is at the end; what it beats is removed, and others have moved up.
            at = self.found.iter().position(|(other, _)| *other == option).map_or(at, |place| place + 1);
        }
    }

    /// The fastest option for each share of bytes saved and needed, of those that none of the others beats.
    fn finish(self) -> Vec<BlockOption> {
        let n_entries = self.slice.n_entries;
        let counted = |option: BlockOption| BlockOption {
            evicted: option.evicted.iter().map(|number| number - n_entries).collect(),
            ..option
        };
        let mut options: Vec<BlockOption> =
            self.found.into_iter().map(|(option, _)| counted(option)).collect();
        options.sort_by_key(|option| (option.time, option.held, option.need));
        let needs = options.iter().map(|option| option.need);
        let (least, most) = (needs.clone().min().unwrap_or(0), needs.max().unwrap_or(0));
        let share = |bytes: u64, of: u64, n: u64| bytes * n / (of + 1);
        let mut taken = HashSet::new();
        options.retain(|option| {
            let held = share(option.held, self.slice.bytes, N_HELD);
            taken.insert((held, share(option.need - least, most - least, N_NEEDED)))
        });
        options
    }
}

/// The values that forward evicts.
fn evicted_values(decisions: &Decisions) -> Vec<u32> {
    (0u32..).zip(&decisions.evicted).filter(|(_, evicted)| **evicted).map(|(number, _)| number).collect()
}
