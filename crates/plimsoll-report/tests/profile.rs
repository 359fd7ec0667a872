//! Profiles: what is read back is what happened, to the byte, however the file ends and whatever is in it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::{Block, GhostPages, Label, Owner, Pool, Rows, STEP, Site};
use plimsoll_report::{Explanation, Profile, Profiler};
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    (folder, path)
}

fn pool() -> Pool {
    Pool::new(GhostPages::new(1 << 40))
}

fn label(owner: Owner, line: u32) -> Label {
    Label::new(owner, Site::intern("src/model.rs", line, "encoder", "matmul"))
}

fn take(pool: &Pool, bytes: usize, owner: Owner, line: u32) -> Block {
    pool.acquire(bytes, label(owner, line)).expect("a ghost has room")
}

/// A step that ends as it began, but for what `leaks` says.
fn step(pool: &Pool, number: u64, leaked: &mut Vec<Block>, leaks: usize) {
    pool.mark(STEP, number);
    pool.mark("forward", 0);
    let saved = take(pool, 3 * MIB, Owner::Saved, 10);
    pool.mark("backward", 0);
    let gradient = take(pool, MIB, Owner::Gradients, 11);
    saved.relabel(Owner::Temporary);
    drop(saved);
    pool.mark("update", 0);
    drop(gradient);
    if leaks > 0 {
        leaked.push(take(pool, leaks, Owner::Temporary, 99));
    }
}

fn recorded(path: &Path, f: impl FnOnce(&Pool)) -> (Profile, Pool) {
    let pool = pool();
    let _before = take(&pool, 1000, Owner::Data, 1);
    let profiler = Profiler::start(&pool, path, &json!({ "recipe": "test", "device": "cpu" }))
        .expect("it can be written");
    f(&pool);
    profiler.finish().expect("it can be written");
    (Profile::read(path).expect("it was written just now"), pool)
}

#[test]
fn peak_and_owners_are_the_pools() {
    let (_folder, path) = folder();
    let (profile, pool) = recorded(&path, |pool| {
        let _weights = take(pool, 5 * MIB, Owner::Parameters, 2);
        (1..=20).for_each(|number| step(pool, number, &mut Vec::new(), 0));
    });
    let explanation = Explanation::of(&profile).expect("it is whole");
    let stats = pool.stats();
    assert_eq!(explanation.peak.in_use, stats.peak_in_use);
    assert_eq!(explanation.peak_committed, stats.peak_committed);
    assert_eq!(explanation.owners(), stats.peak_rows);
    assert_eq!(explanation.holders.iter().map(|row| row.3).sum::<u64>(), stats.peak_in_use);
    assert_eq!((explanation.steps.len(), explanation.growth.len()), (20, 0));
    assert_eq!((explanation.peak.step, &*explanation.peak.phase), (1, "backward"));
    assert!(profile.is_complete());
    let text = explanation.to_string();
    assert!(
        text.contains("encoder matmul (src/model.rs:10)") && text.contains("nothing has grown"),
        "{text}"
    );
}

#[test]
fn a_step_that_repeats_takes_a_few_bytes() {
    let (_folder, path) = folder();
    let sized = |n_steps: u64| {
        recorded(&path, |pool| (1..=n_steps).for_each(|number| step(pool, number, &mut Vec::new(), 0)));
        fs::metadata(&path).expect("it was written").len()
    };
    let (few, many) = (sized(100), sized(1100));
    assert!((many - few) / 1000 <= 40, "{} bytes a step", (many - few) / 1000);
}

#[test]
fn a_leak_is_named_by_its_line() {
    let (_folder, path) = folder();
    let (profile, _pool) = recorded(&path, |pool| {
        let mut leaked = Vec::new();
        (1..=14).for_each(|number| step(pool, number, &mut leaked, 2048));
    });
    let growth = Explanation::of(&profile).expect("it is whole").growth;
    assert_eq!(growth.len(), 1);
    assert_eq!((growth[0].site.line, growth[0].per_step, growth[0].owner), (99, 2048, Owner::Temporary));
}

/// A block that cannot be had is a mark in the profile, which is on the disk at that moment, and a page at the end.
#[test]
fn a_shortage_leaves_a_page() {
    let (folder, path) = folder();
    let pool = pool();
    let limit = 4 * MIB as u64;
    pool.set_limit(Some(plimsoll_memory::Bytes::new(limit))).expect("nothing is in use");
    let pages = || folder.path().read_dir().expect("it is there").count() - 1;
    let about = json!({ "limit_bytes": limit });
    drop(Profiler::start(&pool, &path, &about).expect("it can be written"));
    assert_eq!(pages(), 0, "nothing was short");
    let profiler = Profiler::start(&pool, &path, &about).expect("it can be written");
    let held = take(&pool, 3 * MIB, Owner::Saved, 10);
    pool.acquire(2 * MIB, label(Owner::Temporary, 11)).expect_err("it is too much");
    let killed = Profile::read(&path).expect("it was written already");
    assert_eq!(killed.n_events(), 2 + 1, "the block, what it committed, and the mark");
    drop((held, profiler));
    assert_eq!(pages(), 1);
    let page = fs::read_to_string(path.with_extension("out-of-memory.html")).expect("it was written");
    assert!(page.starts_with("<!DOCTYPE html>"));
    let mut phases = Vec::new();
    let whole = Profile::read(&path).expect("it is whole");
    whole
        .replay(|moment| {
            phases.push(moment.phase.clone());
            true
        })
        .expect("it is whole");
    assert!(phases.iter().any(|phase| phase == "out of memory"), "{phases:?}");
    let elsewhere = folder.path().join("elsewhere.html");
    let profiler =
        Profiler::start(&pool, &path, &about).expect("it can be written").oom_page(Some(&elsewhere));
    pool.acquire(8 * MIB, label(Owner::Temporary, 12)).expect_err("it is too much");
    drop(profiler);
    assert!(elsewhere.exists());
}

/// Blocks of every size stay behind; blocks that are replaced, freed one step later or kept in a window do not grow.
#[test]
fn only_what_each_step_leaves_behind_grows() {
    let (_folder, path) = folder();
    let run = |n_steps: u64, keep: &dyn Fn(u64, usize) -> bool| {
        let (profile, _pool) = recorded(&path, |pool| {
            let mut held: Vec<(u64, Block)> = Vec::new();
            for number in 1..=n_steps {
                step(pool, number, &mut Vec::new(), 0);
                let size = 512 + (number as usize * 7919) % 4096;
                held.push((number, take(pool, size, Owner::Temporary, 99)));
                let n = held.len();
                let mut nth = 0;
                held.retain(|(born, _)| {
                    nth += 1;
                    keep(number - born, n - nth)
                });
            }
        });
        Explanation::of(&profile).expect("it is whole").growth
    };
    let leak = run(12, &|_, _| true);
    assert_eq!(leak.len(), 1);
    assert_eq!((leak[0].site.line, leak[0].added_blocks, leak[0].blocks), (99, 10, 11));
    assert!(leak[0].to_string().starts_with("1 block a step"), "{}", leak[0]);
    assert_eq!(run(30, &|_, _| false), [], "freed at once");
    assert_eq!(run(30, &|age, _| age < 1), [], "replaced");
    assert_eq!(run(40, &|_, younger| younger < 12), [], "a window that is full");
    assert_eq!(run(9, &|_, _| true), [], "too few steps to say");
}

/// A process that is killed leaves a file that ends anywhere.
#[test]
fn a_profile_that_is_cut_off_is_read_up_to_there() {
    let (folder, path) = folder();
    let (whole, _pool) = recorded(&path, |pool| {
        let mut leaked = Vec::new();
        (1..=8).for_each(|number| step(pool, number, &mut leaked, 512 * number as usize));
    });
    let bytes = fs::read(&path).expect("it was written");
    let cut = folder.path().join("cut.profile");
    let mut n_events = 0;
    for len in 0..bytes.len() {
        fs::write(&cut, &bytes[..len]).expect("there is room");
        match Profile::read(&cut) {
            Err(error) => assert!(len < 12, "{len} of {}: {error}", bytes.len()),
            Ok(profile) => {
                assert!(profile.n_events() >= n_events && !profile.is_complete());
                n_events = profile.n_events();
                profile.replay(|_| true).expect("what is there is right");
            }
        }
    }
    assert_eq!(n_events, whole.n_events());
}

#[test]
fn damaged_profiles_are_errors() {
    let (folder, path) = folder();
    recorded(&path, |pool| (1..=4).for_each(|number| step(pool, number, &mut Vec::new(), 0)));
    let bytes = fs::read(&path).expect("it was written");
    let damaged = folder.path().join("damaged.profile");
    let mut n_refused = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            fs::write(&damaged, &changed).expect("there is room");
            let outcome = Profile::read(&damaged).and_then(|profile| Explanation::of(&profile).map(drop));
            n_refused += usize::from(outcome.is_err());
        }
    }
    // A length that is too large reads as a file that was cut off.
    assert!(n_refused > bytes.len() * 3 * 9 / 10, "{n_refused} of {}", bytes.len() * 3);
    fs::write(&damaged, b"something else").expect("there is room");
    assert!(Profile::read(&damaged).expect_err("it is no profile").to_string().contains("no profile"));
}

proptest! {
    /// Whatever is taken, relabelled and freed: at every moment the rows are the pool's.
    #[test]
    fn every_moment_is_the_pools(ops in prop::collection::vec((0u8..5, 0usize..200_000, 0usize..8), 1..200)) {
        let (_folder, path) = folder();
        let mut expected: Vec<(u64, Rows)> = Vec::new();
        let (profile, _pool) = recorded(&path, |pool| {
            let mut live: BTreeMap<usize, Block> = BTreeMap::new();
            for (nth, &(op, bytes, owner)) in ops.iter().enumerate() {
                let owner = Owner::ALL[owner];
                let chosen = live.keys().copied().nth(bytes % live.len().max(1));
                match (op, chosen) {
                    (0 | 1, _) | (2 | 3, None) => _ = live.insert(nth, take(pool, bytes, owner, nth as u32)),
                    (2, Some(chosen)) => drop(live.remove(&chosen)),
                    (3, Some(chosen)) => live[&chosen].relabel(owner),
                    _ => pool.mark(STEP, nth as u64),
                }
                let stats = pool.stats();
                expected.push((stats.in_use, stats.rows()));
            }
        });
        let mut moments: Vec<(u64, Rows)> = Vec::new();
        profile.replay(|moment| {
            moments.push((moment.in_use, moment.rows()));
            true
        }).expect("it is whole");
        // Relabelling to the same owner is no event, and commits are.
        moments.dedup();
        expected.dedup();
        prop_assert!(expected.iter().all(|state| moments.contains(state)));
        prop_assert_eq!(profile.end().and_then(|end| end["in_use"].as_u64()), expected.last().map(|last| last.0).map(|_| 1024));
    }
}
