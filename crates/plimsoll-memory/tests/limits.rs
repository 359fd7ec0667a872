//! Limits, refusals, failing sources and the reclaim hook.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use plimsoll_memory::testing::{Fail, FailingPages};
use plimsoll_memory::{
    Block, Bytes, Cause, GRANULE, GhostPages, HostPages, Label, OutOfMemory, Owner, Pool, Reclaim, Region,
    Site,
};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn ghost() -> Pool {
    Pool::new(GhostPages::new(1 << 30))
}

fn saved(line: u32) -> Label {
    Label::new(Owner::Saved, Site::intern("src/train.rs", line, "block.3", "relu"))
}

#[test]
fn the_limit_bounds_committed_at_every_moment() {
    let pool = ghost();
    pool.set_limit(Some(Bytes::mib(9))).unwrap();
    assert_eq!(pool.limit(), Some(Bytes::mib(9)));
    let mut blocks = Vec::new();
    let error = loop {
        match pool.acquire(MIB, saved(1)) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
        pool.stats().check().unwrap();
    };
    assert_eq!(blocks.len(), 8, "nine mebibytes are four granules");
    assert_eq!(error.cause, Cause::Limit { short: GRANULE });
    assert_eq!((error.in_use, error.committed, error.limit), (8 << 20, 8 << 20, Some(9 << 20)));
    pool.set_limit(Some(Bytes::mib(10))).unwrap();
    blocks.push(pool.acquire(MIB, saved(1)).unwrap());
    pool.set_limit(None).unwrap();
    blocks.push(pool.acquire(100 * MIB, saved(1)).unwrap());
}

#[test]
fn a_part_of_the_limit_is_set_aside() {
    let pool = Pool::new(GhostPages::new(1 << 40));
    pool.set_aside(0, 4 << 20).unwrap();
    assert_eq!((pool.aside(), pool.capacity()), (4 << 20, None));
    pool.set_limit(Some(Bytes::mib(1024))).unwrap();
    assert_eq!((pool.limit(), pool.capacity()), (Some(Bytes::mib(1024)), Some(Bytes::mib(1020))));
    let error = pool.acquire(1022 * MIB, saved(1)).unwrap_err();
    assert_eq!(error.cause, Cause::Limit { short: GRANULE });
    let text = error.to_string();
    assert!(
        text.contains("limit 1.00 GiB (1,073,741,824 B), of which 4.00 MiB (4,194,304 B) are set aside"),
        "{text}"
    );
    assert_eq!((error.least_limit(), pool.limit_for(1022 << 20)), (Some(1026 << 20), 1026 << 20));
    let all = pool.acquire(1020 * MIB, saved(1)).unwrap();
    // A ghost has the same room.
    assert!(pool.ghost().acquire(1, saved(1)).is_err());
    // What is in use stays where it is.
    pool.set_aside(0, 6 << 20).unwrap_err();
    assert_eq!(pool.aside(), 4 << 20);
    drop(all);
    pool.set_aside(0, 6 << 20).unwrap();
    // Of a small limit a 64th is set aside.
    pool.set_limit(Some(Bytes::mib(64))).unwrap();
    assert_eq!((pool.aside(), pool.capacity()), (1 << 20, Some(Bytes::mib(63))));
    let error = pool.set_limit(Some(Bytes::mib(0))).map(|()| pool.acquire(1, saved(1)).unwrap_err()).unwrap();
    assert_eq!(error.least_limit(), Some(pool.limit_for(GRANULE)));
    pool.set_limit(error.least_limit().map(Bytes::new)).unwrap();
    pool.acquire(1, saved(1)).unwrap();
    // What is taken counts, however small the limit is.
    pool.set_aside(6 << 20, 6 << 20).unwrap();
    assert_eq!(pool.capacity(), Some(Bytes::new(0)));
    pool.set_aside(0, 0).unwrap();
    assert_eq!((pool.aside(), pool.capacity()), (0, pool.limit()));
}

proptest! {
    #[test]
    fn the_advised_limit_is_enough_and_a_byte_less_is_not(
        sizes in prop::collection::vec((1..5 * MIB, any::<bool>()), 0..12),
        limit in 1u64..40 << 20,
        wanted in 1..24 * MIB,
    ) {
        let pool = ghost();
        pool.set_limit(Some(Bytes::new(limit))).unwrap();
        let mut blocks = Vec::new();
        for (line, (bytes, is_kept)) in sizes.into_iter().enumerate() {
            blocks.extend(pool.acquire(bytes, saved(line as u32)).ok().filter(|_| is_kept));
        }
        if let Err(error) = pool.acquire(wanted, saved(99)) {
            let least = error.least_limit().expect("it is the limit that refuses");
            let text = error.to_string();
            let advised = format!("a limit of at least {}", Bytes::new(least));
            prop_assert!(text.contains(&advised), "{}", text);
            let has_list = text.contains("largest holders");
            prop_assert_eq!(has_list, text.contains("what is listed above"), "{}", text);
            for (limit, is_enough) in [(least, true), (least - 1, false)] {
                let copy = pool.ghost();
                copy.set_limit(Some(Bytes::new(limit))).unwrap();
                prop_assert_eq!(copy.acquire(wanted, saved(99)).is_ok(), is_enough, "under {}", limit);
            }
        }
    }
}

#[test]
fn a_process_without_addresses_is_refused_with_what_to_do() {
    let pool = Pool::new(HostPages::none());
    let error = pool.acquire(1, saved(1)).unwrap_err();
    assert_eq!((error.cause, error.least_limit()), (Cause::Addresses, None));
    assert!(error.to_string().contains("ulimit -v"), "{error}");
}

#[test]
fn lowering_the_limit_gives_free_granules_back_or_changes_nothing() {
    let pool = ghost();
    let mut blocks: Vec<_> = (0..10).map(|line| pool.acquire(2 * MIB, saved(line)).unwrap()).collect();
    blocks.drain(4..);
    assert_eq!(pool.stats().committed, 20 << 20);
    pool.set_limit(Some(Bytes::mib(12))).unwrap();
    assert_eq!(pool.stats().committed, 12 << 20);
    let before = pool.stats();
    let refused = pool.set_limit(Some(Bytes::mib(7))).unwrap_err();
    assert_eq!(refused.cause, Cause::LimitTooLow { least: 8 << 20 });
    assert_eq!(refused.holders.len(), 4);
    assert_eq!(pool.stats(), before, "a refusal changes nothing, the old limit stays");
    assert!(refused.to_string().contains("what is in use needs 8.00 MiB"), "{refused}");
    pool.set_limit(Some(Bytes::mib(8))).unwrap();
    assert_eq!(pool.stats().committed, 8 << 20);
    pool.verify().unwrap();
}

#[test]
fn a_limit_is_kept_by_giving_holes_back() {
    let pool = ghost();
    pool.set_limit(Some(Bytes::mib(32))).unwrap();
    let mut blocks: Vec<_> = (0..8).map(|line| pool.acquire(4 * MIB, saved(line)).unwrap()).collect();
    // Holes of 4 MiB: none has room for 12 MiB, together they are what it needs.
    let kept: Vec<_> = blocks.drain(..).step_by(2).collect();
    let large = pool.acquire(12 * MIB, saved(99)).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.in_use, stats.committed), (28 << 20, 32 << 20));
    assert!(stats.source.n_decommits > 0);
    assert_eq!(large.offset(), 28 << 20, "the hole before the tail is where the fewest granules are new");
    pool.verify().unwrap();
    drop((kept, large));
    assert_eq!(pool.stats().committed, 0);
}

#[test]
fn under_a_limit_a_place_is_chosen_by_the_granules_it_touches() {
    let pool = ghost();
    let [first, narrow, second, bare, ready, third] =
        [3, 6, 1, 2, 4, 2].map(|n| pool.acquire(n * MIB, saved(1)).unwrap());
    drop((narrow, bare));
    pool.trim();
    drop(ready);
    // For 6 MiB there are two places. At 3 MiB both ends share granules with neighbours and the two between
    // are bare; at 10 MiB one granule is bare and two have pages, but all three hold nothing.
    assert_eq!(pool.stats().committed, 6 * GRANULE);
    let roomy = pool.ghost().acquire(6 * MIB, saved(2)).unwrap();
    assert_eq!(roomy.offset(), 10 << 20, "with no limit the fewest new pages decide");
    pool.set_limit(Some(Bytes::new(6 * GRANULE))).unwrap();
    let tight = pool.acquire(6 * MIB, saved(2)).unwrap();
    assert_eq!(tight.offset(), 3 << 20, "the limit has room for two more granules in use, not for three");
    assert_eq!(pool.stats().committed, 6 * GRANULE);
    pool.verify().unwrap();
    drop((first, second, third));
}

#[test]
fn free_granules_of_other_regions_make_room() {
    let pool = ghost();
    pool.set_limit(Some(Bytes::mib(8))).unwrap();
    let _anchor = pool.acquire(2 * MIB, Label::new(Owner::Data, Site::UNKNOWN)).unwrap();
    drop(pool.acquire(6 * MIB, saved(1)).unwrap());
    assert_eq!(pool.stats().committed, 8 << 20);
    let _weights = pool.acquire(6 * MIB, Label::new(Owner::Parameters, Site::UNKNOWN)).unwrap();
    assert_eq!(pool.stats().committed, 8 << 20);
    pool.verify().unwrap();
}

#[test]
fn the_error_is_a_report_for_a_person() {
    let pool = ghost();
    pool.set_limit(Some(Bytes::mib(16))).unwrap();
    let _a: Vec<_> = (0..3).map(|_| pool.acquire(4 * MIB, saved(12)).unwrap()).collect();
    let _b = pool
        .acquire(1000, Label::new(Owner::Parameters, Site::intern("src/net.rs", 4, "", "dense")))
        .unwrap();
    let error = pool.acquire(40_000_000, saved(30)).unwrap_err();
    let (holder, other) = (error.holders[0], error.holders[1]);
    assert_eq!((holder.owner, holder.bytes, holder.blocks), (Owner::Saved, 12 << 20, 3));
    assert_eq!((other.owner, other.bytes, other.blocks), (Owner::Parameters, 1024, 1));
    assert_eq!((error.requested, error.label, error.region), (40_000_000, saved(30), Region::Step));
    let text = error.to_string();
    for part in [
        "38.15 MiB (40,000,000 B) for saved by src/train.rs:30 block.3 relu",
        "the limit would be exceeded by 38.00 MiB",
        "in use 12.00 MiB",
        "limit 16.00 MiB",
        "12,582,912        3  saved       src/train.rs:12 block.3 relu",
        "1,024        1  parameters  src/net.rs:4 dense",
        "a limit of at least 54.00 MiB",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_request_beyond_all_addresses_is_an_error() {
    let pool = Pool::new(GhostPages::new(8 << 20));
    for bytes in [9 * MIB, usize::MAX - 600, usize::MAX] {
        let error = pool.acquire(bytes, saved(1)).unwrap_err();
        assert_eq!(error.cause, Cause::Addresses);
        assert!(error.to_string().contains("the step region has no free run of addresses"), "{error}");
    }
    assert_eq!(pool.stats().n_acquired, 0);
    assert_eq!(pool.stats().source.total(), 0);
}

#[test]
fn a_failing_source_leaves_the_pool_as_it_was() {
    let (pages, switch) = FailingPages::new(GhostPages::new(1 << 30));
    let pool = Pool::new(pages);
    let _block = pool.acquire(3 * MIB, saved(1)).unwrap();
    let before = (pool.stats(), pool.snapshot());
    for bytes in [64 * MIB, 2 * MIB] {
        switch.set(Fail::Every(1));
        let error = pool.acquire(bytes, saved(2)).unwrap_err();
        assert_eq!(error.cause, Cause::Source);
        assert!(error.to_string().contains("the test asked for this commit to fail"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
        assert_eq!((pool.stats(), pool.snapshot()), before);
        assert_eq!(switch.n_calls(), 1);
        pool.verify().unwrap();
    }
    switch.set(Fail::Never);
    pool.acquire(64 * MIB, saved(2)).unwrap();
}

#[test]
fn a_commit_in_pieces_is_undone_when_a_later_piece_fails() {
    let (pages, switch) = FailingPages::new(GhostPages::new(16 << 20));
    let pool = Pool::new(pages);
    let mut blocks: Vec<_> = (0..8).map(|line| pool.acquire(2 * MIB, saved(line)).unwrap()).collect();
    // Everything but one granule in the middle of the first seven is bare; only that span has the addresses.
    let last = blocks.pop().unwrap();
    let middle = blocks.remove(3);
    drop(blocks);
    pool.trim();
    drop(middle);
    let before = (pool.stats().committed, pool.stats().in_use, pool.snapshot());
    assert_eq!(before.0, 4 << 20);
    switch.set(Fail::Nth(2));
    pool.acquire(14 * MIB, saved(50)).unwrap_err();
    assert_eq!(switch.n_calls(), 2);
    assert_eq!((pool.stats().committed, pool.stats().in_use, pool.snapshot()), before);
    pool.verify().unwrap();
    assert_eq!(pool.acquire(14 * MIB, saved(50)).unwrap().offset(), 0);
    drop(last);
}

#[test]
fn pages_that_the_source_does_not_take_back_stay_counted() {
    let (pages, switch) = FailingPages::new(GhostPages::new(1 << 30));
    let pool = Pool::new(pages);
    let block = pool.acquire(3 * MIB, saved(1)).unwrap();
    drop(pool.acquire(8 * MIB, saved(2)).unwrap());
    let before = pool.stats();
    switch.set_decommit(Fail::Every(1));
    assert_eq!(pool.trim(), 0);
    let error = pool.set_limit(Some(Bytes::mib(6))).unwrap_err();
    assert_eq!((error.cause, pool.limit()), (Cause::Source, None));
    assert!(error.to_string().contains("this decommit to fail"), "{error}");
    assert_eq!(pool.stats(), before);
    drop(block);
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, before.committed));
    pool.verify().unwrap();
    switch.set_decommit(Fail::Never);
    assert_eq!(pool.trim(), before.committed);
    pool.verify().unwrap();
}

#[test]
fn chosen_acquisitions_fail_and_the_next_ones_do_not() {
    let pool = ghost();
    let attempt = || pool.acquire(100, saved(1)).is_ok();
    pool.fail_acquisition(3);
    assert_eq!([(); 5].map(|()| attempt()), [true, true, false, true, true]);
    pool.fail_acquisitions(Fail::Every(2));
    assert_eq!([(); 5].map(|()| attempt()), [true, false, true, false, true]);
    pool.fail_acquisitions(Fail::Never);
    assert!((0..10).all(|_| attempt()));
    assert_eq!(pool.stats().n_live, 0);
}

/// Drops one of its blocks at every call and asks the pool for its counters, which needs the lock.
struct Evictor {
    pool: Pool,
    blocks: Mutex<Vec<Block>>,
    needs: Mutex<Vec<u64>>,
}

impl Reclaim for Evictor {
    fn reclaim(&self, need: Bytes) -> bool {
        self.pool.stats().check().unwrap();
        self.needs.lock().unwrap().push(need.get());
        self.blocks.lock().unwrap().pop().is_some()
    }
}

fn with_evictor(n_blocks: u32) -> (Pool, Arc<Evictor>) {
    let pool = ghost();
    let blocks = (0..n_blocks).map(|line| pool.acquire(2 * MIB, saved(line)).unwrap()).collect();
    let hook = Arc::new(Evictor { pool: pool.clone(), blocks: Mutex::new(blocks), needs: Mutex::default() });
    pool.set_reclaim(Some(hook.clone()));
    pool.set_limit(Some(Bytes::new(u64::from(n_blocks) * GRANULE))).unwrap();
    (pool, hook)
}

#[test]
fn the_reclaim_hook_makes_room_without_the_lock() {
    let (pool, hook) = with_evictor(8);
    let block = pool.acquire(5 * MIB, saved(90)).unwrap();
    assert_eq!(*hook.needs.lock().unwrap(), [3 * GRANULE, 2 * GRANULE, GRANULE]);
    assert_eq!(hook.blocks.lock().unwrap().len(), 5);
    assert_eq!(block.offset(), 5 * GRANULE);
    pool.set_reclaim(None);
}

#[test]
fn a_hook_that_has_nothing_left_or_never_helps_ends_in_the_error() {
    let (pool, hook) = with_evictor(3);
    let error: OutOfMemory = pool.acquire(64 * MIB, saved(90)).unwrap_err();
    assert_eq!(hook.needs.lock().unwrap().len(), 4, "three blocks, then nothing left");
    assert_eq!(error.cause, Cause::Limit { short: 29 * GRANULE });
    assert_eq!((error.in_use, pool.stats().in_use), (0, 0));
    pool.set_reclaim(None);

    struct Useless(Mutex<u32>);
    impl Reclaim for Useless {
        fn reclaim(&self, _: Bytes) -> bool {
            *self.0.lock().unwrap() += 1;
            true
        }
    }
    let hook = Arc::new(Useless(Mutex::new(0)));
    pool.set_reclaim(Some(hook.clone()));
    pool.acquire(64 * MIB, saved(90)).unwrap_err();
    assert_eq!(*hook.0.lock().unwrap(), 16);
}

/// Drops one small block at every call, from the front and the back of memory in turn, so that what is free lies in pieces.
struct Crumbs(Mutex<(VecDeque<Block>, usize, u64)>);

impl Reclaim for Crumbs {
    fn reclaim(&self, need: Bytes) -> bool {
        let mut held = self.0.lock().unwrap();
        let (blocks, n_calls, most) = &mut *held;
        (*n_calls, *most) = (*n_calls + 1, need.get().max(*most));
        // Every other one of those that are left.
        let position = if blocks.len() > 1 { (*n_calls * 2) % blocks.len() } else { 0 };
        blocks.remove(position).is_some()
    }
}

#[test]
fn a_request_is_refused_only_when_nothing_is_left_to_release() {
    const N_BLOCKS: u32 = 200;
    let pool = ghost();
    let blocks = (0..N_BLOCKS).map(|line| pool.acquire(256 << 10, saved(line)).unwrap()).collect();
    let hook = Arc::new(Crumbs(Mutex::new((blocks, 0, 0))));
    pool.set_reclaim(Some(hook.clone()));
    pool.set_limit(Some(Bytes::new(pool.stats().committed))).unwrap();
    let block = pool.acquire(40 * MIB, saved(900)).expect("50 MiB can be released");
    let (n_left, n_calls, most) = {
        let held = hook.0.lock().unwrap();
        (held.0.len(), held.1, held.2)
    };
    assert!(n_calls > 16 && n_left > 0, "{n_calls} calls, {n_left} blocks left");
    assert!(most > 40 << 20, "where memory lies in pieces more is asked for: {most}");
    drop(block);
    let error = pool.acquire(60 * MIB, saved(901)).expect_err("there is not so much");
    assert_eq!(hook.0.lock().unwrap().0.len(), 0, "{error}");
    pool.set_reclaim(None);
}

#[test]
fn a_refusal_speaks_of_fragmentation_where_that_is_the_cause() {
    let pool = ghost();
    let mut blocks: Vec<_> = (0..32).map(|line| Some(pool.acquire(MIB, saved(line)).unwrap())).collect();
    pool.set_limit(Some(Bytes::mib(32))).unwrap();
    blocks.iter_mut().step_by(2).for_each(|block| drop(block.take()));
    let error = pool.acquire(8 * MIB, saved(90)).unwrap_err().to_string();
    assert!(
        error.contains("16.00 MiB (16,777,216 B) of the limit are not in use, but lie in pieces"),
        "{error}"
    );
    assert!(error.contains("this is fragmentation"), "{error}");
    let error = pool.acquire(20 * MIB, saved(90)).unwrap_err().to_string();
    assert!(error.contains("the limit would be exceeded by") && !error.contains("fragmentation"), "{error}");
}

#[test]
fn addresses_that_the_system_does_not_grant_are_an_error() {
    let error = HostPages::with_region_bytes([1 << 60, GRANULE, GRANULE]).unwrap_err();
    assert!(error.to_string().starts_with("cannot reserve"), "{error}");
    HostPages::with_region_bytes([u64::MAX; 3]).unwrap_err();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A refusal says exactly by how much the limit is short: with that much more the request is granted, with
    /// a granule less it is not.
    #[test]
    fn the_shortage_is_exact(
        sizes in proptest::collection::vec((1..6_000_000usize, any::<bool>()), 1..30),
        spare in 0..4u64,
        wanted in 1..12_000_000usize,
    ) {
        let pool = ghost();
        let all: Vec<_> = sizes.iter().map(|&(bytes, _)| pool.acquire(bytes, saved(1)).unwrap()).collect();
        let kept: Vec<_> = all.into_iter().zip(&sizes).filter(|(_, (_, kept))| *kept).collect();
        let trimmed = pool.ghost();
        trimmed.trim();
        // Between the least that would do and what is committed: some free granules stay, some go.
        let limit = trimmed.stats().committed + spare * GRANULE;
        pool.set_limit(Some(Bytes::new(limit))).unwrap();
        if let Err(error) = pool.acquire(wanted, saved(2)) {
            let Cause::Limit { short } = error.cause else { panic!("{error}") };
            prop_assert!(short > 0 && short <= (wanted as u64).next_multiple_of(GRANULE));
            pool.set_limit(Some(Bytes::new(limit + short - GRANULE))).unwrap();
            prop_assert!(pool.acquire(wanted, saved(2)).is_err());
            pool.set_limit(Some(Bytes::new(limit + short))).unwrap();
            prop_assert!(pool.acquire(wanted, saved(2)).is_ok());
        }
        prop_assert_eq!(pool.verify(), Ok(()));
        drop(kept);
    }
}
