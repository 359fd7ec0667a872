//! What the operating system sees: the resident set of this process.
//!
//! One test, because others in the same process would be seen as well.

use plimsoll_memory::{Block, Bytes, HostPages, Label, Owner, Pool, Site};

const MIB: usize = 1 << 20;

/// The anonymous resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn acquire(pool: &Pool, owner: Owner, bytes: usize) -> Block {
    let block = pool.acquire(bytes, Label::new(owner, Site::UNKNOWN)).unwrap();
    // SAFETY: the block is alive and has this many bytes.
    unsafe { block.as_ptr().write_bytes(1, bytes) };
    block
}

/// A training-like step whose shapes depend on its number.
fn step(pool: &Pool, number: usize) {
    let _step = pool.begin_step();
    let batch = 1 + number * 7919 % 61;
    let saved: Vec<_> = (1..8).map(|layer| acquire(pool, Owner::Saved, batch * layer * 1111)).collect();
    let mut gradient = acquire(pool, Owner::Gradients, batch * 9000);
    for value in saved.into_iter().rev() {
        gradient = acquire(pool, Owner::Gradients, value.bytes() + 40);
        let _scratch = acquire(pool, Owner::Workspace, 3000 * batch);
    }
    drop(gradient);
}

/// A model's life; returns what was in use after every step.
fn life(pool: &Pool, n_steps: usize) -> Vec<u64> {
    let _weights = acquire(pool, Owner::Parameters, 6 * MIB);
    let _moments = acquire(pool, Owner::Optimizer, 12 * MIB);
    let in_use = |number| {
        step(pool, number);
        pool.stats().in_use
    };
    (0..n_steps).map(in_use).collect()
}

#[test]
fn the_system_gets_back_what_the_pool_gives_back() {
    let pool = Pool::new(HostPages::new().unwrap());
    let tolerance = 2 << 20;

    // A warm-up cycle, then a long life: in use is the same after every step, and nothing is left at the end.
    life(&pool, 100);
    let base = resident();
    let in_use = life(&pool, 10_000);
    assert!(in_use.iter().all(|&bytes| bytes == in_use[0]));
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, 0));
    assert!(resident() <= base + tolerance, "{} is left of {base}", resident());

    // Committed pages are resident as soon as they are committed, and gone as soon as they are trimmed.
    let anchor = acquire(&pool, Owner::Data, 1);
    let large = pool.acquire(200 * MIB, Label::new(Owner::Saved, Site::UNKNOWN)).unwrap();
    assert!(resident() + tolerance >= base + (200 << 20), "populated at commit");
    drop(large);
    assert!(resident() + tolerance >= base + (200 << 20), "kept while a model may be alive");
    assert_eq!(pool.trim(), 200 << 20);
    assert!(resident() <= base + 2 * tolerance);

    // Lowering the limit is seen outside as well.
    drop(acquire(&pool, Owner::Saved, 64 * MIB));
    pool.set_limit(Some(Bytes::mib(10))).unwrap();
    assert!(resident() <= base + (10 << 20) + tolerance);
    pool.set_limit(None).unwrap();

    // A model is disposed of while another lives on.
    let weights = acquire(&pool, Owner::Parameters, 32 * MIB);
    drop(acquire(&pool, Owner::Saved, 64 * MIB));
    drop(weights);
    assert!(resident() <= base + 2 * tolerance);
    drop(anchor);
    assert_eq!(pool.stats().committed, 0);

    // A refusal calls nobody and leaves nothing resident.
    let n_calls = pool.stats().source.total();
    pool.set_limit(Some(Bytes::mib(64))).unwrap();
    pool.acquire(65 * MIB, Label::new(Owner::Saved, Site::UNKNOWN)).unwrap_err();
    assert_eq!(pool.stats().source.total(), n_calls);
    assert!(resident() <= base + tolerance);
}
