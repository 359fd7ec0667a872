//! Offsets of synthetic steps.

use plimsoll_memory::{GhostPages, Label, Owner, Pool, Site, rounded_size};
use plimsoll_plan::offsets::{Life, Offsets, assign, lower_bound};
use plimsoll_plan::plan_offsets;
use proptest::prelude::*;

fn life(bytes: u64, born: u32, dies: u32) -> Life {
    Life { bytes, born, dies }
}

/// Checks what `Offsets` claims, pair by pair and moment by moment.
fn check(lives: &[Life], found: &Offsets) -> Result<(), String> {
    let end = |i: usize| found.offsets[i] + rounded_size(lives[i].bytes);
    for (i, a) in lives.iter().enumerate() {
        if !found.offsets[i].is_multiple_of(512) || end(i) > found.bytes {
            return Err(format!("block {i} lies at {} of {}", found.offsets[i], found.bytes));
        }
        for (j, b) in lives.iter().enumerate().skip(i + 1) {
            if a.meets(b) && found.offsets[i] < end(j) && found.offsets[j] < end(i) {
                return Err(format!("blocks {i} and {j} overlap: {a:?}, {b:?}"));
            }
        }
    }
    let alive = |t: u32| lives.iter().filter(move |life| life.born <= t && t < life.dies);
    let sum = |t: u32| alive(t).map(|life| rounded_size(life.bytes)).sum::<u64>();
    let most = lives.iter().map(|life| sum(life.born)).max().unwrap_or(0);
    if found.lower_bound != most || found.bytes < most {
        return Err(format!("{found:?}, but {most} are alive at once"));
    }
    Ok(())
}

#[test]
fn blocks_that_never_meet_share_their_place() {
    let lives = [life(1000, 0, 2), life(700, 2, 5), life(1024, 5, 6)];
    let found = assign(&lives);
    assert_eq!(found, Offsets { offsets: vec![0, 0, 0], bytes: 1024, lower_bound: 1024 });
    assert_eq!(assign(&[]), Offsets { offsets: vec![], bytes: 0, lower_bound: 0 });
}

#[test]
fn the_bound_counts_rounded_bytes_and_no_empty_lives() {
    assert_eq!(lower_bound(&[life(1, 0, 3), life(513, 2, 4)]), 1536);
    assert_eq!(lower_bound(&[life(1, 0, 2), life(513, 2, 4)]), 1024);
    assert_eq!(lower_bound(&[life(5000, 3, 3)]), 0);
}

/// A chain of layers: values are saved in one order and used in the reverse one, with temporaries everywhere.
/// `n_dropped` in a hundred values are made again when they are used.
fn chain(n_layers: u32, n_dropped: u64) -> Vec<Life> {
    let mut state = u64::from(n_layers) + n_dropped;
    let mut chance = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut lives, mut saved, mut now) = (Vec::new(), Vec::new(), 0);
    for _ in 0..6 * n_layers {
        let bytes = 512 * (1 + chance(20_000));
        lives.push(life(bytes / 3, now, now + 2));
        let is_kept = chance(100) >= n_dropped;
        saved.push(is_kept.then_some(lives.len()).ok_or(bytes));
        lives.push(life(bytes, now + 1, now + 4));
        now += 3;
    }
    for value in saved.into_iter().rev() {
        let bytes = value.map_or_else(|bytes| bytes, |kept| lives[kept].bytes);
        match value {
            Ok(kept) => lives[kept].dies = now + 4,
            Err(bytes) => lives.push(life(bytes, now, now + 4)),
        }
        lives.push(life(bytes, now + 1, now + 6));
        lives.push(life(512 * (1 + chance(8_000)), now + 2, now + 3));
        now += 4;
    }
    lives
}

#[test]
fn chains_stay_within_three_hundredths_of_the_bound() {
    for n_dropped in [0, 30, 60, 90] {
        for n_layers in [6, 24] {
            let lives = chain(n_layers, n_dropped);
            let found = assign(&lives);
            check(&lives, &found).unwrap();
            assert_eq!(found, assign(&lives), "the same lives get the same offsets");
            let ratio = found.bytes as f64 / found.lower_bound as f64;
            println!("{} blocks, {n_dropped} % dropped: {ratio:.4} of the bound", lives.len());
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
    let kept = step(&copy);
    let planned = plan_offsets(&copy.take_trace());
    drop(kept);
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
        lives in proptest::collection::vec((0..100_000u64, 0..60u32, 0..30u32), 0..120),
    ) {
        let lives: Vec<_> =
            lives.iter().map(|&(bytes, born, moments)| life(bytes, born, born + moments)).collect();
        let found = assign(&lives);
        prop_assert_eq!(check(&lives, &found), Ok(()));
    }
}

/// The cost of a plan is bounded for any number of blocks; the largest ones are searched, the others follow.
#[test]
fn thousands_of_blocks_are_planned() {
    let lives = chain(170, 40);
    assert!(lives.len() > 4_000);
    let found = assign(&lives);
    check(&lives, &found).unwrap();
    assert!(found.bytes as f64 <= 1.02 * found.lower_bound as f64);
}

#[test]
fn a_step_larger_than_any_memory_is_planned_all_the_same() {
    let lives = [Life { bytes: 1 << 45, born: 0, dies: 2 }, Life { bytes: 3 << 44, born: 1, dies: 3 }];
    let planned = assign(&lives);
    assert!(planned.bytes >= (1 << 45) + (3 << 44));
    assert!(planned.offsets[0].abs_diff(planned.offsets[1]) >= 3 << 44);
}
