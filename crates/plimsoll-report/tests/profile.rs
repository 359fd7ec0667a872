//! Profiles: what is read back is what happened, to the byte, however the file ends and whatever is in it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::{Block, GhostPages, Label, Name, Owner, Pool, Rows, STEP, Site, Work};
use plimsoll_report::{Explanation, Export, Page, Price, Profile, Profiler};
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
    assert_eq!(explanation.holders.iter().map(|row| row.bytes).sum::<u64>(), stats.peak_in_use);
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

/// An op of a line that takes a millisecond for each number of its line.
fn works(pool: &Pool, line: u32, reads: &[&Block], writes: &[&Block]) {
    let serials = |blocks: &[&Block]| blocks.iter().map(|block| block.serial()).collect::<Vec<u64>>();
    let site = Site::intern("src/model.rs", line, "encoder", "matmul");
    let (reads, writes) = (serials(reads), serials(writes));
    let nanoseconds = u64::from(line) * 1_000_000;
    pool.mark_work(&Work { site, nanoseconds, repeats: line < 90, reads: &reads, writes: &writes });
}

/// What ops read and write is in the profile: a price follows the ops from what is alive to the value, whoever reads a block next
/// is named, and so is whoever keeps it.
#[test]
fn the_price_of_a_block_is_that_of_the_ops_that_lead_to_it() {
    let (_folder, path) = folder();
    let (profile, _pool) = recorded(&path, |pool| {
        pool.mark(STEP, 1);
        pool.mark("forward", 0);
        let weights = take(pool, MIB, Owner::Parameters, 1);
        let first = take(pool, MIB, Owner::Temporary, 2);
        let embedding = take(pool, MIB, Owner::Parameters, 1);
        works(pool, 2, &[&embedding], &[&first]);
        let second = take(pool, MIB, Owner::Temporary, 3);
        works(pool, 3, &[&first], &[&second]);
        let third = take(pool, MIB, Owner::Saved, 4);
        works(pool, 4, &[&second], &[&third]);
        drop((first, second));
        let random = take(pool, MIB, Owner::Saved, 95);
        works(pool, 95, &[], &[&random]);
        let of_random = take(pool, MIB, Owner::Saved, 5);
        works(pool, 5, &[&random], &[&of_random]);
        works(pool, 6, &[&of_random], &[&of_random]);
        let of_changed = take(pool, MIB, Owner::Saved, 7);
        works(pool, 7, &[&weights], &[&of_changed]);
        works(pool, 8, &[&weights], &[&weights]);
        pool.tell_held([(third.serial(), Name::intern("tape src/main.rs:7 for matmul"), 2 << 20)]);
        let last = take(pool, 8 * MIB, Owner::Temporary, 9);
        works(pool, 9, &[&third], &[&last]);
        pool.mark("backward", 0);
        works(pool, 10, &[&third, &last], &[]);
    });
    let explanation = Explanation::of(&profile).expect("it is whole");
    let of = |line: u64| {
        let mut rows = explanation.holders.iter().filter(|row| row.site.line == line && row.bytes >= 1 << 20);
        rows.next().unwrap_or_else(|| panic!("line {line} holds something"))
    };
    let ms = |n: u64, n_ops| Price::Recompute { nanoseconds: n * 1_000_000, n_ops };
    assert_eq!(of(4).price, ms(2 + 3 + 4, 3), "through two values that are gone");
    assert_eq!(of(9).price, ms(9, 1), "what the peak was waiting for");
    let why = |line| match &of(line).price {
        Price::Never(why) => why.clone(),
        price => panic!("{line}: {price:?}"),
    };
    assert!(why(1).contains("variable's value"), "{}", why(1));
    assert!(why(95).contains("matmul (src/model.rs:95) has an effect"), "{}", why(95));
    assert!(why(5).contains("matmul (src/model.rs:6) wrote over what it read"), "{}", why(5));
    assert!(why(7).contains("src/model.rs:7) read what was written again since"), "{}", why(7));
    let (next, step, phase) = of(4).read_next.as_ref().expect("it is read");
    assert_eq!((next.line, *step, &**phase), (9, 1, "forward"));
    let (next, _, phase) = of(9).read_next.as_ref().expect("it is read");
    assert_eq!((next.line, &**phase), (10, "backward"));
    assert_eq!(of(5).read_next, None);
    assert_eq!(of(4).held, Some(("tape src/main.rs:7 for matmul".to_owned(), 2 << 20)));
    let text = explanation.to_string();
    for part in [
        "kept alive by tape src/main.rs:7 for matmul; 2,097,152 B go",
        "read next by encoder matmul (src/model.rs:10)",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// Very many blocks that all hang on one long chain of ops take no more time than a few.
#[test]
fn chains_beyond_measure_are_not_followed() {
    let (_folder, path) = folder();
    let (profile, _pool) = recorded(&path, |pool| {
        pool.mark(STEP, 1);
        let mut last = take(pool, 1, Owner::Temporary, 1);
        works(pool, 1, &[], &[&last]);
        let mut chain = |n: usize| {
            for _ in 0..n {
                let next = take(pool, 1, Owner::Temporary, 2);
                works(pool, 2, &[&last], &[&next]);
                last = next;
            }
            let leaf = take(pool, 512, Owner::Saved, 3);
            works(pool, 3, &[&last], &[&leaf]);
            leaf
        };
        let deep = chain(5000);
        let mut leaves = vec![deep];
        (0..3000).for_each(|_| leaves.push(chain(0)));
        drop(last);
        let _peak = take(pool, MIB, Owner::Temporary, 4);
    });
    let explanation = Explanation::of(&profile).expect("it is whole");
    let row = explanation.holders.iter().find(|row| row.site.line == 3).expect("leaves");
    assert!(matches!(&row.price, Price::Never(why) if why.contains("more than 4096 ops")), "{:?}", row.price);
}

/// Also where each step reads what was there before all of them.
#[test]
fn a_step_of_ops_that_repeats_takes_a_few_bytes() {
    let (_folder, path) = folder();
    let sized = |n_steps: u64| {
        recorded(&path, |pool| {
            let weights = take(pool, MIB, Owner::Parameters, 1);
            for number in 1..=n_steps {
                pool.mark(STEP, number);
                let blocks: Vec<Block> = (0..20).map(|_| take(pool, MIB, Owner::Saved, 2)).collect();
                blocks.iter().for_each(|block| works(pool, 2, &[&weights], &[block]));
                blocks.iter().for_each(|block| works(pool, 3, &[block], &[&weights]));
            }
        });
        fs::metadata(&path).expect("it was written").len()
    };
    let (few, many) = (sized(100), sized(1100));
    assert!((many - few) / 1000 <= 40, "{} bytes a step", (many - few) / 1000);
}

/// A file of these frames; those of chapters and patterns are deflated.
fn file_of(version: u32, frames: &[(u8, &[u8])]) -> Vec<u8> {
    use std::io::Write;
    let mut file = b"plimprof".to_vec();
    file.extend(version.to_le_bytes());
    for (kind, payload) in frames {
        let mut packed = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(payload).expect("there is room");
        let packed = packed.finish().expect("there is room");
        let payload = if matches!(kind, 2 | 3) { &packed } else { *payload };
        file.push(*kind);
        file.extend((payload.len() as u32).to_le_bytes());
        file.extend(crc32fast::hash(payload).to_le_bytes());
        file.extend(payload);
    }
    file
}

/// Definitions of two texts and a site.
const DEFINED: [u8; 18] = [3, 0, 1, b'a', 0, 5, b':', b's', b't', b'e', b'p', 1, 0, 1, 0, 0, 0, 0];

/// A pattern of a mark of that step and a block of eight bytes that is taken; what the pool counts then.
fn pattern(step: u8, counted: u8) -> Vec<u8> {
    let events = [3, 1, 0, 1, 3, 0, 8, 0, 10, 3, counted];
    [&DEFINED[..], &[events.len() as u8], &events, &[step, 5]].concat()
}

fn read_of(bytes: Vec<u8>) -> std::io::Result<Explanation> {
    let (_folder, path) = folder();
    fs::write(&path, bytes).expect("there is room");
    Explanation::of(&Profile::read(&path)?)
}

/// Profiles of versions 1 and 2, which have one chapter.
#[test]
fn profiles_of_the_versions_before_are_read() {
    for (version, is_read) in [(0, false), (1, true), (2, true), (3, false), (4, false)] {
        // No definitions; the next acquisition, the bytes committed, no blocks.
        let told = read_of(file_of(version, &[(2, &[0, 0, 0, 0]), (3, &pattern(1, 8))]));
        assert_eq!(
            told.as_ref().is_ok_and(|told| told.peak.in_use == 512),
            is_read,
            "version {version}: {told:?}"
        );
    }
    let twice: [(u8, &[u8]); 2] = [(2, &[0, 0, 0, 0]), (2, &[0, 0, 0, 0])];
    assert!(read_of(file_of(2, &twice)).is_err());
}

/// The pool's own count is held against that of the reader, row by row.
#[test]
fn a_count_that_is_not_the_pools_is_an_error() {
    let written = |counted| read_of(file_of(3, &[(2, &[0; 8]), (3, &pattern(1, counted))]));
    written(8).expect("the pool counted eight bytes");
    let error = written(9).expect_err("the pool counted nine bytes");
    assert!(error.to_string().contains("the pool counted other bytes"), "{error}");
}

/// A chapter begins with the pool's own blocks; what was left out before it has to fit.
#[test]
fn chapters_that_do_not_follow_each_other_are_errors() {
    let taken = |bytes: u8| [1, 0, 1, 3, 0, bytes, 0];
    // The number of the next block, the bytes committed, moment, time, work and step; and one block.
    let chapter = |numbers: [u8; 6], bytes: u8| [&DEFINED[..], &numbers, &[1], &taken(bytes)].concat();
    let told = |chapter: &[u8], left_out: &[&[u8]]| {
        let (first, second) = (pattern(1, 8), pattern(9, 16));
        let mut frames: Vec<(u8, &[u8])> = vec![(2, &[0; 8]), (3, &first)];
        frames.extend(left_out.iter().map(|stretch| (6, *stretch)));
        frames.extend([(2, chapter), (3, &second)]);
        read_of(file_of(3, &frames))
    };
    // Seven steps from step two on, in the moments two to twenty: at most 1,024 bytes, at the fifth of them.
    let stretch = |most: u8, rounding: u8| -> Vec<u8> {
        let most = [most | 0x80, 8];
        [&[1, 2, 18, 5, 70, 0, 0, 2, 7, 0][..], &most, &[5, 0, 6], &[0; 7], &[16, rounding | 0x80, 7]]
            .concat()
    };
    told(&chapter([1, 0, 2, 5, 0, 1], 8), &[]).expect("nothing was left out");
    for (numbers, bytes, why) in [
        ([1, 0, 2, 5, 0, 1], 9, "other blocks"),
        ([2, 0, 2, 5, 0, 1], 8, "other blocks"),
        ([1, 1, 2, 5, 0, 1], 8, "other blocks"),
        ([1, 0, 1, 5, 0, 1], 8, "begins when it cannot"),
        ([1, 0, 2, 4, 0, 1], 8, "begins when it cannot"),
        ([1, 0, 20, 75, 0, 8], 9, "has moved"),
    ] {
        let error = told(&chapter(numbers, bytes), &[]).expect_err(why);
        assert!(error.to_string().contains(why), "{numbers:?}: {error}");
    }
    let after = chapter([1, 0, 20, 75, 0, 8], 8);
    for (most, rounding, why) in [(0, 1, "does not add up"), (1, 0, "does not add up")] {
        let error = told(&after, &[&stretch(most, rounding)]).expect_err(why);
        assert!(error.to_string().contains(why), "{most}: {error}");
    }
    let good = stretch(0, 0x70);
    let explained = told(&after, &[&good]).expect("it fits");
    let steps: Vec<(u64, u64, u64)> =
        explained.steps.iter().map(|it| (it.step, it.n_steps, it.nanoseconds)).collect();
    assert_eq!(steps, [(1, 1, 0), (2, 7, 10), (9, 1, 0)]);
    let twice = [&good[..], &good[..]];
    assert!(told(&after, &twice).expect_err("both cannot be").to_string().contains("elsewhere"));
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
    assert_eq!(killed.n_events(), 2, "the block and the mark");
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
        // The pool's own count is in the profile at some of them, and is held against ours when it is read.
        let explanation = Explanation::of(&profile);
        prop_assert!(moments.len() < 2 || explanation.is_ok_and(|it| it.n_checked > 0));
        prop_assert_eq!(profile.end().and_then(|end| end["in_use"].as_u64()), expected.last().map(|last| last.0).map(|_| 1024));
    }
}

/// Values of a line that nothing uses any more at the peak; the variable that the same line has made is none of them, also if it
/// was a plain value first.
#[test]
fn only_values_that_can_be_dropped_are_advised_to_be() {
    let (_folder, path) = folder();
    let (profile, _pool) = recorded(&path, |pool| {
        let weights = take(pool, 4 * MIB, Owner::Parameters, 7);
        let moved = take(pool, 2 * MIB, Owner::Temporary, 7);
        moved.relabel(Owner::Parameters);
        let forgotten = take(pool, 3 * MIB, Owner::Temporary, 7);
        works(pool, 7, &[&weights, &moved], &[&forgotten]);
        let peak = take(pool, 8 * MIB, Owner::Temporary, 8);
        works(pool, 8, &[&weights], &[&peak]);
    });
    let explanation = Explanation::of(&profile).expect("it is whole");
    let saved: Vec<u64> = explanation.actions.iter().map(|action| action.saved_bytes).collect();
    // What was there before and is never used is the second.
    assert_eq!((saved, explanation.is_of_trace), (vec![3 << 20, 1024], true), "{:?}", explanation.actions);
}

/// Tells the program that it is the process whose files may not grow, and where to record.
const FULL: &str = "PLIMSOLL_PROFILE_TEST_FULL";

/// Ends a recording whose file has room for all but its last frame. It is no test of its own.
#[test]
fn the_process_without_room() {
    let Some(path) = std::env::var_os(FULL) else { return };
    let (path, pool) = (Path::new(&path), pool());
    let profiler = Profiler::start(&pool, path, &json!({})).expect("there is room");
    let len = || fs::metadata(path).expect("it is there").len();
    // As many bytes as a file may have, which is what is left of a longer one.
    let probe = path.with_extension("probe");
    fs::write(&probe, [0; 1 << 16]).expect_err("there is no room for so much");
    let room = fs::metadata(&probe).expect("it is there").len();
    while len() + 30 < room {
        profiler.add(&json!({ "a": 1 }));
    }
    let failed = profiler.finish().expect_err("the last frame has no room");
    assert_eq!(failed.kind(), std::io::ErrorKind::FileTooLarge, "{failed}");
}

/// A disk that is full when the recording ends is an error of `finish`, of which whoever trains can warn, and what came before
/// is there.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_at_the_end_leaves_the_rest() {
    let (_folder, path) = folder();
    let this = std::env::current_exe().expect("this program has a name");
    // A write beyond the limit is an error instead of a signal.
    let script =
        format!("trap '' XFSZ; ulimit -f 1; exec {} --exact the_process_without_room", this.display());
    let output =
        std::process::Command::new("sh").args(["-c", &script]).env(FULL, &path).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let profile = Profile::read(&path).expect("what there was room for");
    assert!(!profile.is_complete() && profile.about()["a"] == 1);
}

/// What a step of a long run should tell: its number, the bytes in use before it, and the most in use.
type Told = (u64, u64, u64);

/// Steps of which no two are alike, with a peak early on and blocks that stay for some time.
fn long_run(pool: &Pool, n_steps: u64, mut after: impl FnMut(u64)) -> Vec<Told> {
    let mut random = 1u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let (mut kept, mut all) = (Vec::new(), Vec::new());
    for number in 1..=n_steps {
        let before = pool.stats().in_use;
        pool.reset_peaks();
        pool.mark(STEP, number);
        for _ in 0..20 {
            kept.push(take(
                pool,
                600 + below(90_000) as usize,
                Owner::ALL[below(6) as usize],
                below(30) as u32,
            ));
            if kept.len() > 30 {
                drop(kept.swap_remove(below(30) as usize));
            }
        }
        if number == 777 {
            drop(take(pool, 32 * MIB, Owner::Saved, 99));
        }
        works(pool, 20, &[&kept[0]], &[&kept[1]]);
        all.push((number, before, pool.stats().peak_in_use));
        after(number);
    }
    all
}

/// However long a run is, its file is bounded, and has the first steps, the peak's and the last ones as they were; of the others it
/// tells what they took, and everything keeps its number. It is so at each moment.
#[test]
fn a_long_run_keeps_its_first_and_last_steps_and_its_peak() {
    const STEPS: u64 = 9000;
    const LAST: u64 = 60;
    let (_folder, path) = folder();
    let pool = pool();
    let profiler = Profiler::start(&pool, &path, &json!({})).expect("it can be written").keep_steps(LAST);
    let len = || fs::metadata(&path).expect("it is there").len();
    let (mut most_early, mut most_late) = (0, 0);
    let steps = long_run(&pool, STEPS, |number| {
        let most = if number < STEPS / 3 { &mut most_early } else { &mut most_late };
        *most = len().max(*most);
        profiler.add(&json!({ "reached": number }));
        if number % 1500 == 700 {
            // Whatever kills it now, the step before is there.
            let killed =
                Explanation::of(&Profile::read(&path).expect("it is readable")).expect("it is whole");
            assert_eq!(killed.steps.last().map(|step| step.step), Some(number - 1));
        }
    });
    profiler.finish().expect("it can be written");
    assert!(most_late < most_early + most_early / 4, "{most_early} B, then {most_late} B");
    let profile = Profile::read(&path).expect("it was written");
    assert_eq!(profile.about()["reached"], STEPS, "what was added in steps that are gone");
    let told = Explanation::of(&profile).expect("it is whole");
    let peak = steps.iter().max_by_key(|(.., peak)| peak).expect("steps");
    assert_eq!((told.peak.step, told.peak.in_use), (777, peak.2));
    assert_eq!(told.owners().total(), peak.2);
    let (mut next, mut n_single, mut n_left_out) = (1, 0, 0);
    for step in &told.steps {
        let of = &steps[next as usize - 1..][..step.n_steps as usize];
        assert_eq!((step.step, step.in_use), (of[0].0, of[0].1), "{step:?}");
        assert_eq!(Some(step.peak), of.iter().map(|of| of.2).max(), "{step:?}");
        (next, n_single) = (next + step.n_steps, n_single + u64::from(step.n_steps == 1));
        n_left_out += if step.n_steps > 1 { step.n_steps } else { 0 };
    }
    assert_eq!(next, STEPS + 1, "each step is told of");
    assert!(n_left_out <= told.n_steps_left_out && told.n_steps_left_out > STEPS / 2, "{n_left_out}");
    assert!(told.steps.iter().rev().take(LAST as usize).all(|step| step.n_steps == 1), "the last steps");
    assert!((2 * LAST..STEPS / 4).contains(&n_single), "{n_single}");
    assert!(told.to_string().contains("9000 steps\nof "), "{told}");
}

/// What is kept of a long run is as it is in a recording that keeps everything, moment by moment, also on a page.
#[test]
fn moments_of_a_long_run_are_those_of_a_whole_one() {
    let moments = |steps: u64| {
        let (_folder, path) = folder();
        let pool = pool();
        let profiler =
            Profiler::start(&pool, &path, &json!({})).expect("it can be written").keep_steps(steps);
        long_run(&pool, 3000, |_| {});
        profiler.finish().expect("it can be written");
        let profile = Profile::read(&path).expect("it was written");
        let mut moments: BTreeMap<u64, (u64, u64, Rows, u64)> = BTreeMap::new();
        let replayed = profile.replay(|moment| {
            let state = (moment.step, moment.in_use, moment.rows(), moment.committed);
            if !moment.is_left_out {
                moments.insert(moment.number, state);
            }
            true
        });
        replayed.expect("it is whole");
        (moments, profile)
    };
    let ((whole, all), (some, profile)) = (moments(1 << 40), moments(40));
    assert_eq!((all.n_steps_left_out(), profile.n_events()), (0, all.n_events()));
    assert!(
        profile.n_steps_left_out() > 1000 && some.len() < whole.len() / 2,
        "{}",
        profile.n_steps_left_out()
    );
    for (number, state) in &some {
        assert_eq!(whole.get(number), Some(state), "moment {number}");
    }
    let page = Page::of(&profile).expect("it is whole").to_html();
    assert!(page.len() < Page::of(&all).expect("it is whole").to_html().len());
    for export in [Export::Pickle, Export::Perfetto, Export::OpenMetrics] {
        assert!(!export.bytes(&profile).expect("it is whole").is_empty());
    }
}

/// Nobody marks steps: the file is bounded all the same.
#[test]
fn a_loop_without_steps_is_bounded() {
    let (_folder, path) = folder();
    let pool = pool();
    let profiler = Profiler::start(&pool, &path, &json!({})).expect("it can be written");
    let mut random = 1u64;
    let mut most = 0;
    for nth in 0..2_600_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = take(&pool, (random >> 44) as usize, Owner::Saved, (nth % 7) as u32);
        works(&pool, 1, &[], &[&block]);
        if nth % 1000 == 0 {
            most = fs::metadata(&path).expect("it is there").len().max(most);
        }
    }
    profiler.finish().expect("it can be written");
    assert!(most < 16 << 20, "{most}");
    let profile = Profile::read(&path).expect("it was written");
    assert!(profile.n_events() > 5_000_000, "{}", profile.n_events());
    let told = Explanation::of(&profile).expect("it is whole");
    assert_eq!(told.peak.in_use, pool.stats().peak_in_use);
}

/// A file that cannot be written anew ends the recording, with an error at its end, and what came before is there.
#[cfg(unix)]
#[test]
fn a_long_recording_that_cannot_leave_anything_out_ends() {
    let (folder, path) = folder();
    let pool = pool();
    let profiler = Profiler::start(&pool, &path, &json!({})).expect("it can be written").keep_steps(20);
    let elsewhere = folder.path().join("elsewhere.profile");
    fs::rename(&path, &elsewhere).expect("it is there");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("there is room");
    let steps = long_run(&pool, 3000, |_| {});
    assert_eq!(steps.len(), 3000, "the run goes on");
    let error = profiler.finish().expect_err("links are not written through");
    assert!(error.to_string().contains("symbolic link"), "{error}");
    let told = Explanation::of(&Profile::read(&elsewhere).expect("it was written")).expect("it is whole");
    assert!((100..3000).contains(&told.steps.len()), "{}", told.steps.len());
}
