//! Planned steps.

use std::sync::mpsc;
use std::thread;

use plimsoll_memory::testing::{Fail, FailingPages};
use plimsoll_memory::{
    Block, Bytes, GRANULE, GhostPages, Label, OffsetError, OffsetPlan, Owner, Planned, Pool, Region, Site,
    rounded_size,
};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;

fn ghost() -> Pool {
    Pool::new(GhostPages::new(1 << 30))
}

fn acquire(pool: &Pool, bytes: u64) -> Block {
    pool.acquire(bytes as usize, Label::new(Owner::Saved, Site::UNKNOWN)).unwrap()
}

fn weights(pool: &Pool, bytes: u64) -> Block {
    pool.acquire(bytes as usize, Label::new(Owner::Parameters, Site::UNKNOWN)).unwrap()
}

fn plan(entries: &[(u64, u64)]) -> OffsetPlan {
    let planned = |&(bytes, offset): &(u64, u64)| Planned { bytes, offset: Some(offset) };
    OffsetPlan::new(entries.iter().map(planned).collect()).unwrap()
}

/// Three blocks, the third in the place of the first.
fn three() -> OffsetPlan {
    plan(&[(100 * KIB, 0), (300, 100 * KIB), (90 * KIB, 0)])
}

/// One block of so many bytes.
fn one(bytes: u64) -> OffsetPlan {
    plan(&[(bytes, 0)])
}

#[test]
fn a_planned_step_places_by_position_and_calls_the_source_once() {
    let pool = ghost();
    let _before = acquire(&pool, 5000);
    let plan = three();
    assert_eq!(plan.bytes(), 100 * KIB + 512);
    let mut calls = Vec::new();
    for _ in 0..3 {
        let step = pool.begin_planned_step(&plan);
        let first = acquire(&pool, 100 * KIB);
        let base = first.offset();
        let second = acquire(&pool, 300);
        assert_eq!(second.offset() - base, 100 * KIB, "small blocks follow the plan, too");
        // Other regions are no part of the plan.
        let _batch = pool.acquire(64, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
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
    assert_eq!(pool.stats().committed, 2 * GRANULE, "the first block, the range beside it, the data region");
}

#[test]
fn all_plans_and_unplanned_work_share_their_pages() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    let run = |granules: u64| {
        let before = pool.stats().source;
        let step = pool.begin_planned_step(&one(granules * GRANULE));
        drop(acquire(&pool, granules * GRANULE));
        assert!(step.on_plan());
        drop(step);
        let after = pool.stats().source;
        (after.n_commits - before.n_commits, (after.committed_bytes - before.committed_bytes) / GRANULE)
    };
    assert_eq!(run(10), (1, 10));
    assert_eq!(run(10), (0, 0));
    assert_eq!(run(7), (0, 0));
    assert_eq!(run(12), (1, 2), "only the difference");
    drop((acquire(&pool, 5 * GRANULE), acquire(&pool, 7 * GRANULE)));
    assert_eq!(run(12), (0, 0));
    assert_eq!(pool.stats().committed, 13 * GRANULE);
    pool.verify().unwrap();
}

#[test]
fn the_range_keeps_clear_of_blocks_that_live_at_the_beginning() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    let run = || {
        let step = pool.begin_planned_step(&one(10 * GRANULE));
        let block = acquire(&pool, 10 * GRANULE);
        assert!(step.on_plan());
        block.offset()
    };
    assert_eq!(run(), 0);
    let users = acquire(&pool, 3 * GRANULE);
    assert_eq!(users.offset(), 0);
    assert_eq!(run(), 3 * GRANULE);
    assert_eq!(pool.stats().committed, 14 * GRANULE);
    drop(users);
    assert_eq!(run(), 0);
    assert_eq!(pool.stats().committed, 14 * GRANULE);
}

/// What unplanned work leaves in the middle of the range makes it move, and its pages with it.
#[test]
fn a_block_in_the_middle_does_not_make_the_range_cost_twice() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    let run = || {
        let step = pool.begin_planned_step(&one(10 * GRANULE));
        let block = acquire(&pool, 10 * GRANULE);
        assert!(step.on_plan());
        block.offset()
    };
    assert_eq!(run(), 0);
    let passing = acquire(&pool, 6 * GRANULE);
    let left_over = acquire(&pool, 4);
    drop(passing);
    assert_eq!(run(), 7 * GRANULE - (GRANULE - 64 * KIB));
    assert_eq!(pool.stats().committed, 12 * GRANULE, "one granule more than without what was left over");
    let calls = pool.stats().source.total();
    run();
    assert_eq!(pool.stats().source.total(), calls);
    drop(left_over);
    run();
    assert!(pool.stats().committed <= 12 * GRANULE);
    pool.verify().unwrap();
}

#[test]
fn a_block_that_outlives_the_step_is_in_no_later_steps_way() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    let outlives = Planned { bytes: 4, offset: None };
    let step_of = |bytes| OffsetPlan::new(vec![Planned { bytes, offset: Some(0) }, outlives]).unwrap();
    let mut loss = None;
    for bytes in [3 * GRANULE, 5 * GRANULE, 4 * GRANULE] {
        let step = pool.begin_planned_step(&step_of(bytes));
        assert_eq!(acquire(&pool, bytes).offset(), 0);
        loss = Some(acquire(&pool, 4));
        assert!(step.on_plan());
    }
    assert_eq!(loss.unwrap().region(), Region::Persistent);
    assert_eq!(pool.stats().committed, 6 * GRANULE);
    pool.verify().unwrap();
}

#[test]
fn from_the_first_other_size_on_the_step_is_placed_by_best_fit() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    let plan = three();
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, 100 * KIB);
    let differs = acquire(&pool, 301);
    assert!(!step.on_plan());
    pool.verify().unwrap();
    let later = acquire(&pool, 90 * KIB);
    assert_eq!(pool.stats().committed, 2 * GRANULE, "the rest of the range is used");
    drop(first);
    pool.verify().unwrap();
    drop((differs, later));
    drop(step);
    let step = pool.begin_planned_step(&plan);
    assert_eq!(acquire(&pool, 100 * KIB).offset(), 0);
    assert!(step.on_plan());
}

#[test]
fn a_step_longer_than_its_plan_goes_on_by_best_fit() {
    let pool = ghost();
    let plan = plan(&[(1000, 512)]);
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, 1000);
    assert!(step.on_plan());
    let second = acquire(&pool, 1000);
    assert!(!step.on_plan());
    assert_ne!(first.offset(), second.offset());
    pool.verify().unwrap();
}

#[test]
fn a_place_that_is_still_held_is_never_handed_out() {
    let pool = ghost();
    let plan = three();
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, 100 * KIB);
    let second = acquire(&pool, 300);
    // The first block should have been dropped by now.
    let third = acquire(&pool, 90 * KIB);
    assert!(step.on_plan(), "the others may still be as planned");
    assert!(third.offset() >= second.offset() + 512);
    pool.verify().unwrap();
    drop(step);
    drop((second, third));
    // The block that outlived its step keeps its place; the next range is elsewhere.
    let step = pool.begin_planned_step(&plan);
    assert_ne!(acquire(&pool, 100 * KIB).offset(), first.offset());
    assert!(step.on_plan());
    pool.verify().unwrap();
}

#[test]
fn what_lies_elsewhere_tells_nothing_of_its_planned_place() {
    let pool = ghost();
    let plan = plan(&[(4 * KIB, 0), (8 * KIB, 0), (4 * KIB, 4 * KIB), (4 * KIB, 0)]);
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, 4 * KIB);
    // Displaced by the first.
    let second = acquire(&pool, 8 * KIB);
    let third = acquire(&pool, 4 * KIB);
    assert_eq!(third.offset(), first.offset() + 4 * KIB, "free, although the second is alive");
    let fourth = acquire(&pool, 4 * KIB);
    assert_ne!(fourth.offset(), first.offset(), "the second hides the first, which is alive");
    assert!(step.on_plan());
    pool.verify().unwrap();
    drop((first, second, third, fourth, step));
}

#[test]
fn empty_blocks_have_a_position_and_no_place() {
    let pool = ghost();
    let plan = plan(&[(0, 512), (512, 512), (0, 100)]);
    assert_eq!(plan.bytes(), 1024);
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, 0);
    let second = acquire(&pool, 512);
    let third = acquire(&pool, 0);
    drop((first, third));
    assert!(step.on_plan());
    drop(second);
    drop(step);
    let nothing = OffsetPlan::new(vec![Planned { bytes: 0, offset: Some(0) }]).unwrap();
    let step = pool.begin_planned_step(&nothing);
    drop(acquire(&pool, 0));
    assert!(!step.on_plan(), "there is nothing to follow");
    assert_eq!(pool.stats().committed, 0);
}

#[test]
fn the_range_goes_back_like_free_memory() {
    let pool = ghost();
    let plan = one(100 * KIB);
    let anchor = pool.acquire(10, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
    let run = || {
        let step = pool.begin_planned_step(&plan);
        let block = acquire(&pool, 100 * KIB);
        assert!(step.on_plan());
        assert_eq!(pool.trim(), 0, "not while the step is open");
        drop(step);
        block
    };
    let block = run();
    assert_eq!(pool.trim(), 0, "not while a block lives in it");
    drop(block);
    assert_eq!(pool.trim(), GRANULE);
    let model = weights(&pool, 10);
    drop(run());
    drop(model);
    assert_eq!(pool.stats().committed, GRANULE, "when a model is disposed of");
    drop(run());
    pool.set_limit(Some(Bytes::new(GRANULE))).unwrap();
    assert_eq!(pool.stats().committed, GRANULE, "when a limit asks");
    pool.set_limit(None).unwrap();
    drop(run());
    drop(anchor);
    assert_eq!(pool.stats().committed, 0, "with the last block");
    drop(run());
    assert_eq!(pool.stats().committed, 0, "with the last block");
    pool.verify().unwrap();
}

#[test]
fn without_room_for_the_range_the_step_is_unplanned() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    pool.set_limit(Some(Bytes::new(3 * GRANULE))).unwrap();
    let wide = plan(&[(GRANULE, 0), (GRANULE, 5 * GRANULE)]);
    let passing = acquire(&pool, GRANULE);
    let _left_over = acquire(&pool, 4);
    drop(passing);
    let before = pool.stats();
    let step = pool.begin_planned_step(&wide);
    assert!(!step.on_plan());
    assert_eq!(pool.stats(), before, "nothing is given back for a range that cannot be had");
    drop((acquire(&pool, GRANULE), acquire(&pool, GRANULE / 2)));
    drop(step);
    assert!(!pool.begin_planned_step(&one(2 << 30)).on_plan(), "more than there are addresses");

    let (pages, switch) = FailingPages::new(GhostPages::new(1 << 30));
    let pool = Pool::new(pages);
    switch.set(Fail::Nth(1));
    let step = pool.begin_planned_step(&one(100 * KIB));
    assert!(!step.on_plan());
    pool.verify().unwrap();
    drop(acquire(&pool, 100 * KIB));
}

#[test]
fn memory_that_runs_short_is_made_up_for_from_the_range() {
    let pool = ghost();
    let _weights = weights(&pool, 10);
    pool.set_limit(Some(Bytes::new(5 * GRANULE))).unwrap();
    let plan = plan(&[(GRANULE, 0), (GRANULE, 3 * GRANULE)]);
    let step = pool.begin_planned_step(&plan);
    let first = acquire(&pool, GRANULE);
    assert!(step.on_plan());
    assert_eq!(pool.stats().committed, 5 * GRANULE);
    let batch = pool.acquire(GRANULE as usize, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
    assert!(!step.on_plan());
    pool.verify().unwrap();
    pool.set_limit(Some(Bytes::new(3 * GRANULE))).unwrap();
    drop(step);
    drop((first, batch));

    let step = pool.begin_planned_step(&one(2 * GRANULE));
    assert!(step.on_plan());
    pool.set_limit(Some(Bytes::new(GRANULE))).unwrap();
    assert!(!step.on_plan(), "a limit that is lowered meanwhile counts, too");
    assert_eq!(pool.stats().committed, GRANULE);
    pool.verify().unwrap();
}

/// Every acquisition of a step fails in turn: nothing is lost, and the plan goes on after another attempt.
#[test]
fn a_failed_acquisition_has_no_position() {
    let pool = ghost();
    let plan = three();
    for k in 1..=3 {
        let step = pool.begin_planned_step(&plan);
        pool.fail_acquisition(k);
        let mut n_failures = 0;
        let mut again = |bytes: u64| {
            let label = Label::new(Owner::Saved, Site::UNKNOWN);
            pool.acquire(bytes as usize, label).unwrap_or_else(|_| {
                n_failures += 1;
                acquire(&pool, bytes)
            })
        };
        let first = again(100 * KIB);
        let second = again(300);
        drop(first);
        assert_eq!(again(90 * KIB).offset() + 100 * KIB, second.offset());
        assert!(step.on_plan());
        assert_eq!(n_failures, 1);
        pool.verify().unwrap();
    }
    assert_eq!(pool.stats().committed, 0);
}

#[test]
fn plans_that_cannot_be_are_refused() {
    for (bytes, offset) in [(100, 100), (u64::MAX, 512), (512, u64::MAX - 511), (1 << 63, 0)] {
        let planned = Planned { bytes, offset: Some(offset) };
        let error = OffsetPlan::new(vec![Planned { bytes: 10, offset: Some(0) }, planned]).unwrap_err();
        assert_eq!(error, OffsetError { position: 1, planned });
        assert!(error.to_string().contains("acquisition 1 of the plan"), "{error}");
    }
}

#[test]
fn a_planned_step_inside_another_step_is_part_of_it() {
    let pool = ghost();
    let outer = pool.begin_step();
    let inner = pool.begin_planned_step(&three());
    assert!(!inner.on_plan());
    drop(inner);
    drop(outer);
    let outer = pool.begin_planned_step(&three());
    let first = acquire(&pool, 100 * KIB);
    let inner = pool.begin_planned_step(&one(300));
    assert_eq!(acquire(&pool, 300).offset(), first.offset() + 100 * KIB);
    drop(inner);
    assert!(outer.on_plan(), "the outer plan is followed on");
}

#[test]
fn a_ghost_follows_the_plans_of_its_original() {
    let pool = ghost();
    let _anchor = acquire(&pool, 10);
    let plan = three();
    let copy = pool.ghost();
    let runs = [&pool, &copy].map(|pool| {
        pool.start_trace();
        let step = pool.begin_planned_step(&plan);
        drop((acquire(pool, 100 * KIB), acquire(pool, 300)));
        drop(acquire(pool, 90 * KIB));
        assert!(step.on_plan());
        drop(step);
        (pool.take_trace(), pool.stats())
    });
    assert_eq!(runs[0], runs[1]);

    let step = pool.begin_planned_step(&one(3 * GRANULE));
    assert_eq!(pool.trim(), 0);
    let copy = pool.ghost();
    copy.verify().unwrap();
    assert_eq!(copy.trim(), 3 * GRANULE, "no step is open in a copy");
    assert!(step.on_plan());
}

proptest! {
    /// Whatever a plan says and whatever a step does, live blocks do not overlap and the books balance.
    #[test]
    fn no_plan_can_make_blocks_overlap(
        entries in proptest::collection::vec((0..40_000u64, proptest::option::weighted(0.9, 0..200u64)), 1..40),
        steps in proptest::collection::vec(
            proptest::collection::vec((any::<bool>(), any::<usize>()), 0..40), 1..4),
    ) {
        let planned = |&(bytes, unit): &(u64, Option<u64>)| Planned { bytes, offset: unit.map(|unit| unit * 512) };
        let plan = OffsetPlan::new(entries.iter().map(planned).collect()).unwrap();
        let pool = ghost();
        let mut live: Vec<Block> = Vec::new();
        for actions in &steps {
            let step = pool.begin_planned_step(&plan);
            for (&(bytes, _), &(release, which)) in entries.iter().zip(actions) {
                live.push(acquire(&pool, bytes));
                if release {
                    live.swap_remove(which % live.len());
                }
                prop_assert_eq!(pool.verify(), Ok(()));
            }
            prop_assert_eq!(step.on_plan(), plan.bytes() > 0);
            drop(step);
            prop_assert_eq!(pool.verify(), Ok(()));
            let in_use: u64 = live.iter().map(|block| rounded_size(block.bytes() as u64)).sum();
            prop_assert_eq!(pool.stats().in_use, in_use);
        }
        drop(live);
        prop_assert_eq!(pool.stats().committed, 0);
    }

    /// A block is displaced only where a live block holds its place: the plan knows what may be below.
    #[test]
    fn a_free_place_is_always_handed_out(
        entries in proptest::collection::vec((1..20u64, 0..40u64, any::<u8>()), 1..60),
    ) {
        let bytes = |units: u64| units * 512;
        let plan = plan(&entries.iter().map(|&(n, at, _)| (bytes(n), bytes(at))).collect::<Vec<_>>());
        let pool = ghost();
        let step = pool.begin_planned_step(&plan);
        let mut live: Vec<(Block, bool)> = Vec::new();
        let mut start = None;
        for &(n, at, choice) in &entries {
            let block = acquire(&pool, bytes(n));
            // Nothing lies below the first block, so it tells where the range begins.
            let start = *start.get_or_insert(block.offset() - bytes(at));
            let place = start + bytes(at)..start + bytes(at + n);
            let is_held = live.iter().any(|(other, in_place)| {
                let end = other.offset() + other.rounded() as u64;
                *in_place && other.offset() < place.end && place.start < end
            });
            let in_place = block.offset() == place.start;
            prop_assert_eq!(in_place, !is_held);
            live.push((block, in_place));
            for _ in 0..choice % 3 {
                if !live.is_empty() {
                    live.swap_remove(usize::from(choice) % live.len());
                }
            }
        }
        prop_assert!(step.on_plan());
    }
}

#[test]
fn two_threads_follow_two_plans_at_once() {
    let pool = ghost();
    let anchor = acquire(&pool, 512);
    let upside_down = |bytes| plan(&[(bytes, bytes), (bytes, 0)]);
    let step = pool.begin_planned_step(&upside_down(100 * KIB));
    let first = acquire(&pool, 100 * KIB);
    let other = pool.clone();
    let guest = thread::spawn(move || {
        let step = other.begin_planned_step(&upside_down(200 * KIB));
        let blocks = [acquire(&other, 200 * KIB), acquire(&other, 200 * KIB)];
        assert!(step.on_plan());
        other.verify().unwrap();
        blocks.map(|block| block.offset())
    });
    let [above, below] = guest.join().unwrap();
    assert_eq!(above, below + 200 * KIB, "each block lies where its own thread's plan says");
    assert!(step.on_plan(), "another thread's blocks are no part of this step");
    let second = acquire(&pool, 100 * KIB);
    assert_eq!(first.offset(), second.offset() + 100 * KIB);
    pool.verify().unwrap();
    drop(step);
    drop((first, second, anchor));
    assert_eq!(pool.stats().committed, 0);
}

/// What another thread has set aside for its plan goes neither to a block nor to a ghost's.
#[test]
fn a_ghost_leaves_other_threads_their_ranges() {
    let pool = ghost();
    let anchor = acquire(&pool, 512);
    let (other, (open, opened), (close, closed)) = (pool.clone(), mpsc::channel(), mpsc::channel::<()>());
    let guest = thread::spawn(move || {
        let _step = other.begin_planned_step(&one(400 * KIB));
        open.send(()).unwrap();
        closed.recv().unwrap();
    });
    opened.recv().unwrap();
    let beside = acquire(&pool.ghost(), 400 * KIB).offset();
    assert_eq!(beside, acquire(&pool, 400 * KIB).offset());
    close.send(()).unwrap();
    guest.join().unwrap();
    assert!(acquire(&pool.ghost(), 400 * KIB).offset() < beside, "the range is free again");
    drop(anchor);
}
