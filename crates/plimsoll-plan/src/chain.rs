//! Steps as chains of blocks, and the choice of a way for each block by dynamic programming.
//!
//! What waits for backward in the blocks before one is in use while it runs, forward and backward; what waits in the blocks
//! after it is not there yet, or no more. So the blocks can be gone through in the order of forward with one number for all that
//! lies behind: the bytes that wait. For each number the least extra time is remembered, and a way of the next block is
//! possible if what waits and what it needs fit the target together. A few neighbouring blocks can also be taken as one,
//! which lets go of what leads from one to the next.
//!
//! The work is bounded: at most [`N_BUCKETS`] numbers are remembered, which differ by a share of the step's own bytes and do not
//! depend on the target; at most [`LONGEST_SPAN`] blocks are taken as one; the ways of a span are bounded as well, and equal
//! spans share them.
//!
//! Bytes and times of a block are those of the walk over it alone. What comes out is a prescription for the walk over the
//! whole step, which counts everything exactly and lets go of more where that is needed; nothing is claimed on the word
//! of this module. It only speaks of computing again: what else could be moved to a depot is left to the walk, and a graph
//! that is no chain is left to it altogether.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Trace;
use crate::blocks::{Block, chains};
use crate::excerpt::Excerpt;
use crate::pareto::{Effort, Keeping, ways};

/// So many numbers of bytes that wait are told apart.
const N_BUCKETS: u64 = 256;
/// So many blocks are taken as one.
const LONGEST_SPAN: usize = 4;
/// How closely the least target is looked for that the blocks fit, as a share of the natural peak.
const N_HALVINGS: u32 = 10;

/// The blocks of a step, and the ways in which their values can be kept.
#[derive(Clone, Debug)]
pub struct Chain {
    sweeps: Vec<Sweep>,
    /// The ways of each kind of span, the fastest first.
    kinds: Vec<Vec<Keeping>>,
}

/// What the blocks of a step should let go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prescription {
    /// The values, by number.
    pub let_go: Vec<u32>,
    /// The extra time that is expected, in nanoseconds: the sum of what the blocks take one by one.
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

/// Neighbouring blocks that are taken as one.
#[derive(Clone, Debug)]
struct Span {
    from: usize,
    kind: usize,
    /// The number of the first value that they make.
    first_value: u32,
    /// By how much more bytes are in use around them than around those that stand for their kind.
    more: i64,
}

/// The fastest way to come to a place in the chain with so many bytes that wait.
#[derive(Clone, Copy)]
struct State {
    held: u64,
    time: u64,
    /// The span that was the last, its way, and the state before it.
    last: Option<(usize, usize, usize)>,
}

impl Chain {
    /// Finds the blocks of a step, and for each kind of them the ways to keep their values.
    pub fn new(trace: &Trace) -> Chain {
        let mut kinds = Kinds::default();
        let chains = chains(trace);
        let sweeps = chains.iter().map(|blocks| kinds.spans(trace, blocks)).collect();
        let mut chain = Chain { sweeps, kinds: kinds.ways };
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

    /// Whether the step has no blocks that could be told from one another.
    pub fn is_empty(&self) -> bool {
        self.sweeps.is_empty()
    }

    /// How many blocks there are in each forward pass that can be cut.
    pub fn n_blocks(&self) -> Vec<usize> {
        self.sweeps.iter().map(|sweep| sweep.ending_at.len() - 1).collect()
    }

    /// Everything that [`best`](Chain::best) chooses from: neighbouring blocks of a pass that are taken as one, and what each way to
    /// keep their values lets go.
    pub fn choices(&self, pass: usize) -> Vec<(Range<usize>, Vec<Prescription>)> {
        let Some(sweep) = self.sweeps.get(pass) else { return Vec::new() };
        let ending = sweep.ending_at.iter().enumerate();
        let spans = ending.flat_map(|(end, spans)| spans.iter().map(move |span| (span, end)));
        let prescription = |span: &Span, way: &Keeping| Prescription {
            let_go: way.let_go.iter().map(|&number| span.first_value + number).collect(),
            extra_time: way.time,
        };
        spans
            .map(|(span, end)| {
                let ways = self.kinds[span.kind].iter();
                (span.from..end, ways.map(|way| prescription(span, way)).collect())
            })
            .collect()
    }

    /// What to let go so that a step takes the least time within a target, by what is known of its blocks. Where they
    /// cannot be made to fit, it is what makes them fit the least target that they can.
    pub fn best(&self, target: u64) -> Prescription {
        let mut best = Prescription::default();
        for sweep in &self.sweeps {
            if let Some(found) = self.best_of(sweep, target.max(sweep.least)) {
                best.let_go.extend(found.let_go);
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
                for (choice, way) in self.kinds[span.kind].iter().enumerate() {
                    let need = way.need.saturating_add_signed(span.more);
                    // States are sorted by the bytes that wait.
                    let fitting = reached[span.from].iter().take_while(|state| state.held + need <= target);
                    for (before, state) in fitting.enumerate() {
                        let (held, time) = (state.held + way.held, state.time + way.time);
                        let best: &mut Option<State> = &mut states[(held / sweep.bucket) as usize];
                        if best.is_none_or(|best| (time, held) < (best.time, best.held)) {
                            *best = Some(State { held, time, last: Some((at, choice, before)) });
                        }
                    }
                }
            }
            reached.push(unbeaten(states.into_iter().flatten()));
        }
        self.way_back(sweep, &reached)
    }

    /// The values that were let go on the way to the fastest of the last states.
    fn way_back(&self, sweep: &Sweep, reached: &[Vec<State>]) -> Option<Prescription> {
        let mut place = reached.len() - 1;
        let mut state = reached[place].iter().min_by_key(|state| state.time)?;
        let extra_time = state.time;
        let mut let_go = Vec::new();
        while let Some((at, choice, before)) = state.last {
            let span = &sweep.ending_at[place][at];
            let way = &self.kinds[span.kind][choice];
            let_go.extend(way.let_go.iter().map(|&number| span.first_value + number));
            place = span.from;
            state = &reached[place][before];
        }
        Some(Prescription { let_go, extra_time })
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

/// The kinds of spans that have been met.
#[derive(Default)]
struct Kinds {
    known: BTreeMap<Vec<u64>, usize>,
    examples: Vec<Excerpt>,
    ways: Vec<Vec<Keeping>>,
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
        let excerpt = Excerpt::new(trace, &blocks[from..end], before);
        let first_value = excerpt.first_value;
        let kind = *self.known.entry(excerpt.key()).or_insert(self.ways.len());
        let more = self.examples.get(kind).map_or(0, |example| excerpt.more_than(example));
        if kind == self.ways.len() {
            let mut excerpt = excerpt;
            let effort = if end - from == 1 { Effort::BLOCK } else { Effort::SPAN };
            self.ways.push(ways(&mut excerpt, effort));
            self.examples.push(excerpt);
        }
        Span { from, kind, first_value, more }
    }
}
