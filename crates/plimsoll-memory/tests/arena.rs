//! Planned steps.

use plimsoll_memory::{
    Arena, ArenaError, Block, Bytes, GRANULE, GhostPages, Label, Owner, Planned, Pool, Site, rounded_size,
};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;

fn ghost() -> Pool {
    Pool::new(GhostPages::new(1 << 30))
}

fn acquire(pool: &Pool, bytes: u64) -> Block {
    pool.acquire(bytes as usize, Label::new(Owner::Saved, Site::UNKNOWN)).unwrap()
}

fn plan(entries: &[(u64, u64)]) -> Vec<Planned> {
    entries.iter().map(|&(bytes, offset)| Planned { bytes, offset }).collect()
}

/// Three blocks, the third in the place of the first.
fn arena(pool: &Pool) -> Arena {
    pool.plan_arena(plan(&[(100 * KIB, 0), (300, 100 * KIB), (90 * KIB, 0)])).unwrap()
}

#[test]
fn a_planned_step_places_by_position_and_calls_the_source_once() {
    let pool = ghost();
    let _before = acquire(&pool, 5000);
    let arena = arena(&pool);
    assert_eq!(arena.bytes(), GRANULE);
    let committed = pool.stats().committed;
    let mut calls = Vec::new();
    for _ in 0..3 {
        let step = pool.begin_planned_step(&arena).unwrap();
        let first = acquire(&pool, 100 * KIB);
        let base = first.offset();
        assert!(base.is_multiple_of(GRANULE));
        let second = acquire(&pool, 300);
        assert_eq!(second.offset() - base, 100 * KIB, "small blocks follow the plan, too");
        // Other regions are no part of the plan.
        let _weights = pool.acquire(64, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
        drop(first);
        let third = acquire(&pool, 90 * KIB);
        assert_eq!(third.offset(), base);
        assert!(step.on_plan());
        assert_eq!(pool.stats().in_use, 5120 + 512 + 512 + 90 * KIB);
        drop((second, third));
        drop(step);
        calls.push(pool.stats().source.total());
        pool.verify().unwrap();
    }
    assert_eq!(calls[0], calls[2]);
    assert_eq!(pool.stats().committed, committed + 2 * GRANULE, "the arena and the data region");
}

#[test]
fn the_first_difference_ends_the_plan_for_the_step() {
    let pool = ghost();
    let arena = arena(&pool);
    let step = pool.begin_planned_step(&arena).unwrap();
    let first = acquire(&pool, 100 * KIB);
    let inside = first.offset()..first.offset() + arena.bytes();
    let differs = acquire(&pool, 301);
    assert!(!step.on_plan() && !inside.contains(&differs.offset()));
    let later = acquire(&pool, 90 * KIB);
    assert!(!inside.contains(&later.offset()));
    drop(step);
    drop((first, differs, later));
    let step = pool.begin_planned_step(&arena).unwrap();
    assert!(step.on_plan() && inside.contains(&acquire(&pool, 100 * KIB).offset()));
}

#[test]
fn a_step_longer_than_its_plan_goes_on_outside() {
    let pool = ghost();
    let arena = pool.plan_arena(plan(&[(1000, 512)])).unwrap();
    let step = pool.begin_planned_step(&arena).unwrap();
    let first = acquire(&pool, 1000);
    let second = acquire(&pool, 1000);
    assert!(!step.on_plan());
    assert!(second.offset() >= first.offset() - 512 + arena.bytes());
}

#[test]
fn a_place_that_is_still_held_is_never_handed_out() {
    let pool = ghost();
    let arena = arena(&pool);
    let step = pool.begin_planned_step(&arena).unwrap();
    let first = acquire(&pool, 100 * KIB);
    let _second = acquire(&pool, 300);
    let third = acquire(&pool, 90 * KIB);
    assert!(!step.on_plan(), "the first block should have been dropped");
    assert_ne!(third.offset(), first.offset());
    pool.verify().unwrap();
    drop(step);
    drop(third);
    // A block that outlived its step blocks its place in the next one, and only its place.
    let step = pool.begin_planned_step(&arena).unwrap();
    assert_ne!(acquire(&pool, 100 * KIB).offset(), first.offset());
    assert!(!step.on_plan());
    pool.verify().unwrap();
}

#[test]
fn empty_blocks_have_a_position_and_no_place() {
    let pool = ghost();
    let arena = pool.plan_arena(plan(&[(0, 512), (512, 512), (0, 512)])).unwrap();
    let step = pool.begin_planned_step(&arena).unwrap();
    let first = acquire(&pool, 0);
    let second = acquire(&pool, 512);
    let third = acquire(&pool, 0);
    drop((first, third));
    assert!(step.on_plan());
    drop(step);
    let _step = pool.begin_planned_step(&arena).unwrap();
    let _empty = acquire(&pool, 0);
    assert_ne!(acquire(&pool, 512).offset(), second.offset(), "it is still held");
}

#[test]
fn an_idle_arena_gives_its_pages_back_and_gets_them_again() {
    let pool = ghost();
    let arena = arena(&pool);
    let anchor = acquire(&pool, 10);
    let weights = pool.acquire(10, Label::new(Owner::Parameters, Site::UNKNOWN)).unwrap();
    let run = || {
        let step = pool.begin_planned_step(&arena).unwrap();
        let block = acquire(&pool, 100 * KIB);
        assert!(step.on_plan());
        assert_eq!(pool.trim(), 0, "not while it is in use");
        drop(step);
        block
    };
    let block = run();
    assert_eq!(pool.trim(), 0, "not while a block lives in it");
    drop(block);
    assert_eq!(pool.trim(), GRANULE);
    drop(run());
    drop(weights);
    assert_eq!(pool.stats().committed, GRANULE, "when a model is disposed of");
    drop(run());
    pool.set_limit(Some(Bytes::new(GRANULE))).unwrap();
    assert_eq!(pool.stats().committed, GRANULE, "when a limit asks");
    let error = pool.begin_planned_step(&arena).unwrap_err();
    assert!(matches!(&error, ArenaError::OutOfMemory(report) if report.requested == GRANULE), "{error}");
    assert!(error.to_string().contains("by planned step could not be had"), "{error}");
    pool.set_limit(None).unwrap();
    drop(run());
    drop(anchor);
    assert_eq!(pool.stats().committed, 0, "with the last block");
    pool.verify().unwrap();
}

#[test]
fn dropping_an_arena_frees_its_addresses_after_the_last_use() {
    let pool = ghost();
    let anchor = acquire(&pool, 10);
    let arena = arena(&pool);
    let step = pool.begin_planned_step(&arena).unwrap();
    let block = acquire(&pool, 100 * KIB);
    drop(arena);
    drop(step);
    pool.verify().unwrap();
    assert_eq!(pool.trim(), 0);
    let start = block.offset();
    drop(block);
    pool.verify().unwrap();
    assert_eq!(pool.trim(), GRANULE);
    let again = pool.plan_arena(plan(&[(700 * KIB, 0)])).unwrap();
    let _step = pool.begin_planned_step(&again).unwrap();
    assert_eq!(acquire(&pool, 700 * KIB).offset(), start);
    drop(anchor);
}

#[test]
fn plans_that_cannot_be_are_refused() {
    let pool = ghost();
    for bad in [(100, 100), (u64::MAX, 512), (512, u64::MAX - 511), (1 << 63, 0)] {
        let error = pool.plan_arena(plan(&[(10, 0), bad])).unwrap_err();
        let planned = Planned { bytes: bad.0, offset: bad.1 };
        assert_eq!(error, ArenaError::Offset { position: 1, planned });
        assert!(error.to_string().contains("acquisition 1 of the plan"), "{error}");
    }
    let error = pool.plan_arena(plan(&[(2 << 30, 0)])).unwrap_err();
    assert_eq!(error, ArenaError::Addresses { bytes: 2 << 30 });
    let arena = arena(&pool);
    assert_eq!(ghost().begin_planned_step(&arena).unwrap_err(), ArenaError::OtherPool);
    let _step = pool.begin_step();
    assert_eq!(pool.begin_planned_step(&arena).unwrap_err(), ArenaError::StepOpen);
    pool.verify().unwrap();
}

#[test]
fn a_ghost_follows_the_plans_of_its_original() {
    let pool = ghost();
    let _anchor = acquire(&pool, 10);
    let arena = arena(&pool);
    let copy = pool.ghost();
    let runs = [&pool, &copy].map(|pool| {
        pool.start_trace();
        let step = pool.begin_planned_step(&arena).unwrap();
        drop((acquire(pool, 100 * KIB), acquire(pool, 300)));
        drop(acquire(pool, 90 * KIB));
        assert!(step.on_plan());
        drop(step);
        (pool.take_trace(), pool.stats())
    });
    assert_eq!(runs[0], runs[1]);

    let _step = pool.begin_planned_step(&arena).unwrap();
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.ghost().trim(), GRANULE, "no step is open in a copy");
}

proptest! {
    /// Whatever a plan says and whatever a step does, live blocks do not overlap and the books balance.
    #[test]
    fn no_plan_can_make_blocks_overlap(
        entries in proptest::collection::vec((0..40_000u64, 0..200u64), 1..40),
        steps in proptest::collection::vec(
            proptest::collection::vec((any::<bool>(), any::<usize>()), 0..40), 1..4),
    ) {
        let entries: Vec<_> = entries.iter().map(|&(bytes, unit)| (bytes, unit * 512)).collect();
        let pool = ghost();
        let arena = pool.plan_arena(plan(&entries)).unwrap();
        let mut live: Vec<Block> = Vec::new();
        for actions in &steps {
            let step = pool.begin_planned_step(&arena).unwrap();
            for (&(bytes, _), &(release, which)) in entries.iter().zip(actions) {
                live.push(acquire(&pool, bytes));
                if release {
                    live.swap_remove(which % live.len());
                }
                prop_assert_eq!(pool.verify(), Ok(()));
            }
            drop(step);
            let in_use: u64 = live.iter().map(|block| rounded_size(block.bytes() as u64)).sum();
            prop_assert_eq!(pool.stats().in_use, in_use);
        }
        drop(live);
        prop_assert_eq!(pool.stats().committed, 0);
    }
}
