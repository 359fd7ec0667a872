//! Recorded allocation traces of real training runs, replayed over ghost pages, by best fit and with each step
//! planned.
//!
//! The traces say what PyTorch's allocator was asked for. Lines: `s` a step begins, `a ID BYTES` an
//! acquisition, `p ID BYTES` one that is known to be persistent, `f ID` its release.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use plimsoll_memory::{Block, Bytes, GhostPages, Label, Owner, Pool, Site};
use plimsoll_plan::{StepOffsets, plan_offsets};

/// The traces and the most that peak committed / peak in use may be.
const TRACES: [(&str, f64); 6] = [
    ("gpt2-varlen-961", 1.15),
    ("gpt2-varlen-16", 1.15),
    ("gpt2-fixed", 1.15),
    ("resnet50", 1.15),
    ("mlp-deep", 1.15),
    ("lstm", 1.20),
];

#[derive(Clone, Copy)]
enum Event {
    Step,
    Acquire { id: u64, bytes: usize, owner: Owner },
    Release { id: u64 },
}

fn read(name: &str) -> Vec<Event> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/traces/{name}.trace.gz"));
    let lines = BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines();
    lines
        .map(|line| {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let acquire = |owner| Event::Acquire {
                id: words[1].parse().unwrap(),
                bytes: words[2].parse().unwrap(),
                owner,
            };
            match words[0] {
                "s" => Event::Step,
                "a" => acquire(Owner::Temporary),
                "p" => acquire(Owner::Optimizer),
                "f" => Event::Release { id: words[1].parse().unwrap() },
                other => panic!("unknown line {other}"),
            }
        })
        .collect()
}

/// The blocks of a trace that are alive, by their names in it.
struct Live {
    pool: Pool,
    blocks: HashMap<u64, Block>,
}

impl Live {
    fn new(pool: Pool) -> Self {
        Self { pool, blocks: HashMap::new() }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Step => {}
            Event::Acquire { id, bytes, owner } => {
                let label = Label::new(owner, Site::intern("trace", 0, "", ""));
                let block = self.pool.acquire(bytes, label).unwrap();
                assert!(self.blocks.insert(id, block).is_none());
            }
            Event::Release { id } => drop(self.blocks.remove(&id)),
        }
    }
}

/// What a replay came to.
struct Outcome {
    peak_in_use: u64,
    peak_committed: u64,
    n_commits: u64,
    n_decommits: u64,
    /// Steps after the 20th, and those among them that called the source.
    n_late_steps: usize,
    n_late_calling: usize,
}

fn replay(events: &[Event], limit: Option<u64>) -> Outcome {
    let pool = Pool::new(GhostPages::new(256 << 30));
    pool.set_limit(limit.map(Bytes::new)).unwrap();
    let mut live = Live::new(pool.clone());
    let mut calls_at_steps = Vec::new();
    for event in events {
        if matches!(event, Event::Step) {
            calls_at_steps.push(pool.stats().source.total());
        }
        live.apply(*event);
    }
    let stats = pool.stats();
    stats.check().unwrap();
    calls_at_steps.push(stats.source.total());
    let late: Vec<_> = calls_at_steps.windows(2).skip(20).map(|calls| calls[1] > calls[0]).collect();
    Outcome {
        peak_in_use: stats.peak_in_use,
        peak_committed: stats.peak_committed,
        n_commits: stats.source.n_commits,
        n_decommits: stats.source.n_decommits,
        n_late_steps: late.len(),
        n_late_calling: late.iter().filter(|&&called| called).count(),
    }
}

#[test]
fn committed_stays_close_to_in_use_and_late_steps_make_no_calls() {
    for (name, most) in TRACES {
        let outcome = replay(&read(name), None);
        let ratio = outcome.peak_committed as f64 / outcome.peak_in_use as f64;
        println!(
            "{name}: peak in use {} MiB, committed / in use {ratio:.3}, {} commits, {} decommits, {} of {} late \
             steps call the source",
            outcome.peak_in_use >> 20,
            outcome.n_commits,
            outcome.n_decommits,
            outcome.n_late_calling,
            outcome.n_late_steps
        );
        assert!(ratio <= most, "{name}: {ratio}");
        assert!(10 * outcome.n_late_calling <= outcome.n_late_steps, "{name}");
    }
}

#[test]
fn every_trace_completes_under_a_tight_limit() {
    for (name, _) in TRACES {
        let events = read(name);
        let free = replay(&events, None);
        let limit = free.peak_in_use * 105 / 100;
        let tight = replay(&events, Some(limit));
        println!(
            "{name}: limit {} MiB, peak committed {} MiB, {} commits, {} decommits, {} of {} late steps call",
            limit >> 20,
            tight.peak_committed >> 20,
            tight.n_commits,
            tight.n_decommits,
            tight.n_late_calling,
            tight.n_late_steps
        );
        assert_eq!(tight.peak_in_use, free.peak_in_use, "{name}");
        assert!(tight.peak_committed <= limit, "{name}");
    }
}

/// A trace cut into its steps, as recorded.
fn steps(events: &[Event]) -> Vec<Vec<Event>> {
    events.split(|event| matches!(event, Event::Step)).map(<[Event]>::to_vec).collect()
}

/// The steps as they would be here: gradients are released at the end of the step that made them, and not at the
/// beginning of the next one.
fn closed_steps(events: &[Event]) -> Vec<Vec<Event>> {
    let close = |step: Vec<Event>| {
        let mut open = BTreeSet::new();
        let mut closed: Vec<Event> = Vec::new();
        for event in step {
            let is_own = match event {
                Event::Acquire { id, owner, .. } => owner == Owner::Optimizer || open.insert(id),
                Event::Release { id } => open.remove(&id),
                Event::Step => false,
            };
            closed.extend(is_own.then_some(event));
        }
        closed.extend(open.into_iter().map(|id| Event::Release { id }));
        closed
    };
    steps(events).into_iter().map(close).collect()
}

/// What a step would do, asked of a ghost of the pool, as a plan.
fn plan(pool: &Pool, step: &[Event]) -> StepOffsets {
    let ghost = pool.ghost();
    ghost.start_trace();
    let mut live = Live::new(ghost.clone());
    step.iter().for_each(|event| live.apply(*event));
    plan_offsets(&ghost.take_trace())
}

/// What a step asks for; the first one also makes the optimizer's state, so it is not like the others.
fn sizes(step: &[Event]) -> Vec<usize> {
    let size = |event: &Event| match event {
        Event::Acquire { bytes, .. } => Some(*bytes),
        Event::Step | Event::Release { .. } => None,
    };
    step.iter().filter_map(size).collect()
}

/// What a replay with planned steps came to.
struct PlannedOutcome {
    /// Peak committed / peak in use.
    ratio: f64,
    /// The most that a plan needs, divided by its lower bound.
    widest: f64,
    summary: String,
}

/// Plans and runs every step and checks that those whose like was seen before call nobody.
fn replay_planned(name: &str, steps: &[Vec<Event>]) -> PlannedOutcome {
    let pool = Pool::new(GhostPages::new(256 << 30));
    let mut live = Live::new(pool.clone());
    let mut seen = HashSet::new();
    let (mut n_calling, mut widest) = (0, 1.0f64);
    for step in steps {
        let planned = plan(&pool, step);
        if planned.lower_bound > 0 {
            widest = widest.max(planned.bytes as f64 / planned.lower_bound as f64);
        }
        let before = pool.stats().source.total();
        let scope = pool.begin_planned_step(&planned.plan);
        step.iter().for_each(|event| live.apply(*event));
        assert!(scope.on_plan() || planned.bytes == 0, "{name}");
        drop(scope);
        let called = pool.stats().source.total() > before;
        assert!(seen.insert(sizes(step)) || !called, "{name}: a step whose like was seen calls the source");
        n_calling += usize::from(called);
    }
    pool.verify().unwrap();
    let stats = pool.stats();
    let ratio = stats.peak_committed as f64 / stats.peak_in_use as f64;
    let summary = format!(
        "{name}: peak in use {} MiB, committed / in use {ratio:.3}, plan / lower bound at most {widest:.4}, {} \
         different steps, {n_calling} of {} call the source",
        stats.peak_in_use >> 20,
        seen.len(),
        steps.len()
    );
    PlannedOutcome { ratio, widest, summary }
}

#[test]
fn planned_steps_need_little_more_than_is_in_use() {
    for (name, _) in TRACES {
        let PlannedOutcome { ratio, widest, summary } = replay_planned(name, &closed_steps(&read(name)));
        println!("{summary}");
        assert!(widest <= 1.02, "{name}: {widest}");
        assert!(ratio <= 1.02, "{name}: {ratio}");
    }
}

/// As recorded, with gradients that outlive their step; those share no memory with the rest.
#[test]
fn gradients_may_outlive_planned_steps() {
    for (name, most) in [("gpt2-varlen-961", 1.08), ("gpt2-varlen-16", 1.05)] {
        let PlannedOutcome { ratio, summary, .. } = replay_planned(name, &steps(&read(name)));
        println!("as recorded, {summary}");
        assert!(ratio <= most, "{name}: {ratio}");
    }
}
