//! Steps as chains of blocks, and the choice of an option for each block by dynamic programming.
//!
//! What earlier blocks save for backward is in use while a block runs, forward and backward; what later blocks save does
//! not exist yet, or no longer. So the blocks can be visited in the order of forward with one number for everything before:
//! the bytes saved. For each number the least extra time is remembered, and an option of the next block is possible if the
//! bytes saved and what the option needs fit the target together. A few neighbouring blocks can also be treated as one,
//! which evicts what leads from one to the next.
//!
//! The work is bounded: at most [`N_BUCKETS`] numbers are remembered, whose granularity is a share of the step's own bytes
//! and does not depend on the target; at most [`LONGEST_SPAN`] blocks are treated as one; the options of a span are bounded
//! as well, and equal spans share them.
//!
//! Bytes and times of a block are those that the greedy planner finds for it alone. The result is a prescription for the
//! greedy planner over the whole step, which counts everything exactly and evicts more where that is needed; no promise
//! rests on this module. It only decides about recomputation: offloads are left to the greedy planner, and so is a graph
//! that is no chain.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Trace;
use crate::block_options::{BlockOption, Effort, block_options};
use crate::block_slice::BlockSlice;
use crate::blocks::{Block, chains};

/// How many numbers of saved bytes are distinguished.
const N_BUCKETS: u64 = 256;
/// How many blocks are treated as one at most.
const LONGEST_SPAN: usize = 4;
/// How precisely the least target that the blocks fit is searched for, as a number of bisections below the natural peak.
const N_HALVINGS: u32 = 10;

/// The blocks of a step, and the options of each.
#[derive(Clone, Debug)]
pub struct Chain {
    sweeps: Vec<Sweep>,
    /// The options of each kind of span, the fastest first.
    kinds: Vec<Vec<BlockOption>>,
}

/// What the blocks of a step should evict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prescription {
    /// The values, by number.
    pub evicted: Vec<u32>,
    /// The expected extra time, in nanoseconds: the sum over the blocks.
    pub extra_time: u64,
}

/// The spans of one forward and backward pass, by the block after their last.
#[derive(Clone, Debug)]
struct Sweep {
    ending_at: Vec<Vec<Span>>,
    bucket: u64,
    /// The least target that the blocks fit, or a little more.
    least: u64,
}

/// Neighbouring blocks that are treated as one.
#[derive(Clone, Debug)]
struct Span {
    from: usize,
    kind: usize,
    /// The number of the first value that they make.
    first_value: u32,
    /// How many more bytes are in use around them than around the example of their kind.
    more: i64,
}

/// The fastest way to reach a place in the chain with so many bytes saved.
#[derive(Clone, Copy)]
struct State {
    held: u64,
    time: u64,
    /// The last span, its option, and the state before it.
    last: Option<(usize, usize, usize)>,
}

impl Chain {
    /// Finds the blocks of a step, and the options of each kind of block.
    pub fn new(trace: &Trace) -> Chain {
        let mut kinds = Kinds::default();
        let chains = chains(trace);
        let sweeps = chains.iter().map(|blocks| kinds.spans(trace, blocks)).collect();
        let mut chain = Chain { sweeps, kinds: kinds.options };
        for at in 0..chain.sweeps.len() {
            chain.sweeps[at].least = chain.least_of(&chain.sweeps[at], trace.natural_peak());
        }
        chain
    }

    /// The least target, or a little more, for which something can be chosen.
    fn least_of(&self, sweep: &Sweep, natural: u64) -> u64 {
        let (mut fails, mut works) = (0, natural);
        for _ in 0..N_HALVINGS {
            let between = fails + (works - fails) / 2;
            match self.best_of(sweep, between) {
                Some(_) => works = between,
                None => fails = between,
            }
        }
        works
    }

    /// Whether the step has no blocks that could be distinguished.
    pub fn is_empty(&self) -> bool {
        self.sweeps.is_empty()
    }

    /// How many blocks there are in each forward pass that can be cut.
    pub fn n_blocks(&self) -> Vec<usize> {
        self.sweeps.iter().map(|sweep| sweep.ending_at.len() - 1).collect()
    }

    /// Everything that [`best`](Chain::best) chooses from: neighbouring blocks of a pass that are treated as one, and what
    /// each of their options evicts.
    pub fn choices(&self, pass: usize) -> Vec<(Range<usize>, Vec<Prescription>)> {
        let Some(sweep) = self.sweeps.get(pass) else { return Vec::new() };
        let ending = sweep.ending_at.iter().enumerate();
        let spans = ending.flat_map(|(end, spans)| spans.iter().map(move |span| (span, end)));
        let prescription = |span: &Span, option: &BlockOption| Prescription {
            evicted: option.evicted.iter().map(|&number| span.first_value + number).collect(),
            extra_time: option.time,
        };
        spans
            .map(|(span, end)| {
                let options = self.kinds[span.kind].iter();
                (span.from..end, options.map(|option| prescription(span, option)).collect())
            })
            .collect()
    }

    /// What to evict so that a step takes the least time within a target, by what is known of its blocks. Where they cannot
    /// fit, it is what makes them fit the least target that they can.
    pub fn best(&self, target: u64) -> Prescription {
        let mut best = Prescription::default();
        for sweep in &self.sweeps {
            if let Some(found) = self.best_of(sweep, target.max(sweep.least)) {
                best.evicted.extend(found.evicted);
                best.extra_time += found.extra_time;
            }
        }
        best
    }

    fn best_of(&self, sweep: &Sweep, target: u64) -> Option<Prescription> {
        let start = State { held: 0, time: 0, last: None };
        let mut reached = vec![vec![start]];
        for spans in &sweep.ending_at[1..] {
            let mut states = vec![None; N_BUCKETS as usize + 1];
            for (at, span) in spans.iter().enumerate() {
                for (choice, option) in self.kinds[span.kind].iter().enumerate() {
                    let need = option.need.saturating_add_signed(span.more);
                    // States are sorted by the bytes saved.
                    let fitting = reached[span.from].iter().take_while(|state| state.held + need <= target);
                    for (before, state) in fitting.enumerate() {
                        let (held, time) = (state.held + option.held, state.time + option.time);
                        let best: &mut Option<State> = &mut states[(held / sweep.bucket) as usize];
                        if best.is_none_or(|best| (time, held) < (best.time, best.held)) {
                            *best = Some(State { held, time, last: Some((at, choice, before)) });
                        }
                    }
                }
            }
            reached.push(unbeaten(states.into_iter().flatten()));
        }
        self.backtrack(sweep, &reached)
    }

    /// The values that are evicted on the path to the fastest of the last states.
    fn backtrack(&self, sweep: &Sweep, reached: &[Vec<State>]) -> Option<Prescription> {
        let mut place = reached.len() - 1;
        let mut state = reached[place].iter().min_by_key(|state| state.time)?;
        let extra_time = state.time;
        let mut evicted = Vec::new();
        while let Some((at, choice, before)) = state.last {
            let span = &sweep.ending_at[place][at];
            let option = &self.kinds[span.kind][choice];
            evicted.extend(option.evicted.iter().map(|&number| span.first_value + number));
            place = span.from;
            state = &reached[place][before];
        }
        Some(Prescription { evicted, extra_time })
    }
}

/// Of states that are sorted by bytes, those that are faster than all before them.
fn unbeaten(states: impl Iterator<Item = State>) -> Vec<State> {
    let mut least = u64::MAX;
    let is_faster = |state: &State| {
        let is_faster = state.time < least;
        least = least.min(state.time);
        is_faster
    };
    states.filter(is_faster).collect()
}

/// The kinds of spans that have been found so far.
#[derive(Default)]
struct Kinds {
    known: BTreeMap<Vec<u64>, usize>,
    examples: Vec<BlockSlice>,
    options: Vec<Vec<BlockOption>>,
}

impl Kinds {
    fn spans(&mut self, trace: &Trace, blocks: &[Block]) -> Sweep {
        let mut ending_at = vec![Vec::new()];
        for end in 1..=blocks.len() {
            let starts = end.saturating_sub(LONGEST_SPAN)..end;
            ending_at.push(starts.map(|from| self.span(trace, blocks, from, end)).collect());
        }
        let bytes: u64 = blocks.iter().map(|block| block.bytes).sum();
        Sweep { ending_at, bucket: bytes / N_BUCKETS + 1, least: 0 }
    }

    fn span(&mut self, trace: &Trace, blocks: &[Block], from: usize, end: usize) -> Span {
        let before = blocks[..from].iter().map(|block| block.bytes).sum();
        let slice = BlockSlice::new(trace, &blocks[from..end], before);
        let first_value = slice.first_value;
        let kind = *self.known.entry(slice.key()).or_insert(self.options.len());
        let more = self.examples.get(kind).map_or(0, |example| slice.more_than(example));
        if kind == self.options.len() {
            let mut slice = slice;
            let effort = if end - from == 1 { Effort::BLOCK } else { Effort::SPAN };
            self.options.push(block_options(&mut slice, effort));
            self.examples.push(slice);
        }
        Span { from, kind, first_value, more }
    }
}
