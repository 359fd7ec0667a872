//! Recorded allocation traces of real training runs, replayed online over ghost pages.
//!
//! The traces say what PyTorch's allocator was asked for. Lines: `s` a step begins, `a ID BYTES` an
//! acquisition, `p ID BYTES` one that is known to be persistent, `f ID` its release.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use plimsoll_memory::{Bytes, GhostPages, Label, Owner, Pool, Site};

/// The traces and the most that peak committed / peak in use may be.
const TRACES: [(&str, f64); 6] = [
    ("gpt2-varlen-961", 1.15),
    ("gpt2-varlen-16", 1.15),
    ("gpt2-fixed", 1.15),
    ("resnet50", 1.15),
    ("mlp-deep", 1.15),
    ("lstm", 1.20),
];

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
    let site = Site::intern("trace", 0, "", "");
    let mut live = HashMap::new();
    let mut calls_at_steps = Vec::new();
    for event in events {
        match *event {
            Event::Step => calls_at_steps.push(pool.stats().source.total()),
            Event::Acquire { id, bytes, owner } => {
                let block = pool.acquire(bytes, Label::new(owner, site)).unwrap();
                assert!(live.insert(id, block).is_none());
            }
            Event::Release { id } => drop(live.remove(&id).unwrap()),
        }
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
