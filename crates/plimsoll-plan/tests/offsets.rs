//! Offsets of synthetic steps.

use plimsoll_memory::{GhostPages, Label, Owner, Pool, Site, rounded_size};
use plimsoll_plan::offsets::{Lifetime, Offsets, assign, lower_bound};
use plimsoll_plan::plan_offsets;
use proptest::prelude::*;

fn lifetime(bytes: u64, allocated: u32, freed: u32) -> Lifetime {
    Lifetime { bytes, allocated, freed }
}

/// Checks what `Offsets` claims, pair by pair and moment by moment.
fn check(lifetimes: &[Lifetime], found: &Offsets) -> Result<(), String> {
    let end = |i: usize| found.offsets[i] + rounded_size(lifetimes[i].bytes);
    for (i, a) in lifetimes.iter().enumerate() {
        if !found.offsets[i].is_multiple_of(512) || end(i) > found.bytes {
            return Err(format!("block {i} lies at {} of {}", found.offsets[i], found.bytes));
        }
        for (j, b) in lifetimes.iter().enumerate().skip(i + 1) {
            if a.overlaps(b) && found.offsets[i] < end(j) && found.offsets[j] < end(i) {
                return Err(format!("blocks {i} and {j} overlap: {a:?}, {b:?}"));
            }
        }
    }
    let alive =
        |t: u32| lifetimes.iter().filter(move |lifetime| lifetime.allocated <= t && t < lifetime.freed);
    let sum = |t: u32| alive(t).map(|lifetime| rounded_size(lifetime.bytes)).sum::<u64>();
    let most = lifetimes.iter().map(|lifetime| sum(lifetime.allocated)).max().unwrap_or(0);
    if found.lower_bound != most || found.bytes < most {
        return Err(format!("{found:?}, but {most} are alive at once"));
    }
    Ok(())
}

#[test]
fn blocks_that_never_meet_share_their_place() {
    let lifetimes = [lifetime(1000, 0, 2), lifetime(700, 2, 5), lifetime(1024, 5, 6)];
    let found = assign(&lifetimes);
    assert_eq!(found, Offsets { offsets: vec![0, 0, 0], bytes: 1024, lower_bound: 1024 });
    assert_eq!(assign(&[]), Offsets { offsets: vec![], bytes: 0, lower_bound: 0 });
}

#[test]
fn the_bound_counts_rounded_bytes_and_no_empty_lives() {
    assert_eq!(lower_bound(&[lifetime(1, 0, 3), lifetime(513, 2, 4)]), 1536);
    assert_eq!(lower_bound(&[lifetime(1, 0, 2), lifetime(513, 2, 4)]), 1024);
    assert_eq!(lower_bound(&[lifetime(5000, 3, 3)]), 0);
}

/// A chain of layers: values are saved in one order and used in the reverse one, with temporaries everywhere.
/// `n_evicted` in a hundred values are recomputed when they are used.
fn chain(n_layers: u32, n_evicted: u64) -> Vec<Lifetime> {
    let mut state = u64::from(n_layers) + n_evicted;
    let mut chance = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut lifetimes, mut saved, mut now) = (Vec::new(), Vec::new(), 0);
    for _ in 0..6 * n_layers {
        let bytes = 512 * (1 + chance(20_000));
        lifetimes.push(lifetime(bytes / 3, now, now + 2));
        let is_retained = chance(100) >= n_evicted;
        saved.push(is_retained.then_some(lifetimes.len()).ok_or(bytes));
        lifetimes.push(lifetime(bytes, now + 1, now + 4));
        now += 3;
    }
    for value in saved.into_iter().rev() {
        let bytes = value.map_or_else(|bytes| bytes, |retained| lifetimes[retained].bytes);
        match value {
            Ok(retained) => lifetimes[retained].freed = now + 4,
            Err(bytes) => lifetimes.push(lifetime(bytes, now, now + 4)),
        }
        lifetimes.push(lifetime(bytes, now + 1, now + 6));
        lifetimes.push(lifetime(512 * (1 + chance(8_000)), now + 2, now + 3));
        now += 4;
    }
    lifetimes
}

#[test]
fn chains_stay_within_three_hundredths_of_the_bound() {
    for n_evicted in [0, 30, 60, 90] {
        for n_layers in [6, 24] {
            let lifetimes = chain(n_layers, n_evicted);
            let found = assign(&lifetimes);
            check(&lifetimes, &found).unwrap();
            assert_eq!(found, assign(&lifetimes), "the same lifetimes get the same offsets");
            let ratio = found.bytes as f64 / found.lower_bound as f64;
            println!("{} blocks, {n_evicted} % dropped: {ratio:.4} of the bound", lifetimes.len());
            assert!(ratio <= 1.03, "{ratio}");
        }
    }
}

#[test]
fn a_pool_follows_the_plan_of_its_trace() {
    let pool = Pool::new(GhostPages::new(1 << 30));
    let label = |owner| Label::new(owner, Site::UNKNOWN);
    let step = |pool: &Pool| {
        let acquire = |bytes| pool.acquire(bytes, label(Owner::Saved)).unwrap();
        let (first, second) = (acquire(100_000), acquire(300));
        let weights = pool.acquire(5000, label(Owner::Parameters)).unwrap();
        drop(first);
        let loss = acquire(4);
        let third = acquire(90_000);
        drop((second, third, weights));
        loss
    };
    let before = step(&pool);
    let copy = pool.ghost();
    copy.start_trace();
    let retained = step(&copy);
    let planned = plan_offsets(&copy.take_trace());
    drop(retained);
    let bytes: Vec<_> = planned.plan.entries().iter().map(|entry| entry.bytes).collect();
    assert_eq!(bytes, [100_000, 300, 4, 90_000]);
    assert_eq!(planned.plan.entries()[2].offset, None, "the loss outlives the step");
    assert_eq!((planned.bytes, planned.lower_bound), (100_352 + 512, 100_352 + 512));
    assert_eq!(planned.plan.bytes(), planned.bytes);
    let scope = pool.begin_planned_step(&planned.plan);
    let _loss = step(&pool);
    assert!(scope.on_plan());
    drop((scope, before));
    pool.verify().unwrap();
}

proptest! {
    // Lives without a plan behind them keep the search busy to its end.
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn no_two_blocks_that_meet_overlap(
        lifetimes in proptest::collection::vec((0..100_000u64, 0..60u32, 0..30u32), 0..120),
    ) {
        let lifetimes: Vec<_> =
            lifetimes.iter().map(|&(bytes, allocated, moments)| lifetime(bytes, allocated, allocated + moments)).collect();
        let found = assign(&lifetimes);
        prop_assert_eq!(check(&lifetimes, &found), Ok(()));
    }
}

/// The cost of a plan is bounded for any number of blocks; the largest ones are searched, the others follow.
#[test]
fn thousands_of_blocks_are_planned() {
    let lifetimes = chain(170, 40);
    assert!(lifetimes.len() > 4_000);
    let found = assign(&lifetimes);
    check(&lifetimes, &found).unwrap();
    assert!(found.bytes as f64 <= 1.02 * found.lower_bound as f64);
}

#[test]
fn a_step_larger_than_any_memory_is_planned_all_the_same() {
    let lifetimes = [
        Lifetime { bytes: 1 << 45, allocated: 0, freed: 2 },
        Lifetime { bytes: 3 << 44, allocated: 1, freed: 3 },
    ];
    let planned = assign(&lifetimes);
    assert!(planned.bytes >= (1 << 45) + (3 << 44));
    assert!(planned.offsets[0].abs_diff(planned.offsets[1]) >= 3 << 44);
}
