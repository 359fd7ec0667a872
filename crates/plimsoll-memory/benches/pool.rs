//! What an acquisition and its release cost, uncontended, in nanoseconds.
//!
//! `cargo bench -p plimsoll-memory`. Each figure is the best of several rounds; the pool holds other blocks
//! throughout, as it does while a model is alive.

use std::hint::black_box;
use std::time::Instant;

use plimsoll_memory::{Block, GhostPages, HostPages, Label, OffsetPlan, Owner, Planned, Pool, Site};

const N_ROUNDS: usize = 15;
const N_PAIRS: usize = 100_000;

fn label() -> Label {
    Label::new(Owner::Temporary, Site::intern("bench.rs", 1, "", "bench"))
}

/// The best time per call of `f` over all rounds, in nanoseconds.
fn best(n_calls: usize, mut f: impl FnMut()) -> f64 {
    let rounds = (0..N_ROUNDS).map(|_| {
        let start = Instant::now();
        f();
        start.elapsed().as_nanos() as f64 / n_calls as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// Acquires and releases one block at a time.
fn pairs(pool: &Pool, bytes: usize) -> f64 {
    let label = label();
    best(N_PAIRS, || {
        for _ in 0..N_PAIRS {
            black_box(pool.acquire(black_box(bytes), label).unwrap());
        }
    })
}

/// Acquires 64 blocks of mixed sizes, then releases them in another order: the shape of a small step.
fn step(pool: &Pool, sizes: &[usize]) -> f64 {
    let label = label();
    let n_steps = N_PAIRS / sizes.len();
    let mut blocks: Vec<Option<Block>> = sizes.iter().map(|_| None).collect();
    best(n_steps * sizes.len(), || {
        for _ in 0..n_steps {
            for (block, &bytes) in blocks.iter_mut().zip(sizes) {
                *block = Some(pool.acquire(bytes, label).unwrap());
            }
            for i in 0..blocks.len() {
                blocks[i * 37 % sizes.len()] = None;
            }
        }
    })
}

/// A planned step of so many blocks, half of which lie in the places of others that are gone: the cost of a pair,
/// the step's beginning and end included.
fn planned(pool: &Pool, n_blocks: usize) -> f64 {
    let label = label();
    let bytes = |i: usize| 20_000 + 700 * (i % 50);
    // Blocks that are kept lie one after the other; each temporary one lies behind the last of them.
    let mut top = 0;
    let entries = (0..n_blocks).map(|i| {
        let offset = Some(top);
        top += if i % 2 == 0 { (bytes(i) as u64).next_multiple_of(512) } else { 0 };
        Planned { bytes: bytes(i) as u64, offset }
    });
    let plan = OffsetPlan::new(entries.collect()).unwrap();
    let n_steps = N_PAIRS / n_blocks;
    let mut kept: Vec<Block> = Vec::with_capacity(n_blocks);
    best(n_steps * n_blocks, || {
        for _ in 0..n_steps {
            let step = pool.begin_planned_step(&plan);
            for i in 0..n_blocks {
                let block = pool.acquire(bytes(i), label).unwrap();
                if i % 2 == 0 {
                    kept.push(block);
                }
            }
            assert!(step.on_plan());
            while kept.pop().is_some() {}
        }
    })
}

/// Leaves blocks alive with holes between them.
fn fragmented(pool: &Pool, n_blocks: usize) -> Vec<Block> {
    let blocks: Vec<_> =
        (0..n_blocks).map(|i| pool.acquire(20_000 + 700 * (i % 50), label()).unwrap()).collect();
    blocks.into_iter().enumerate().filter(|(i, _)| i % 2 == 0).map(|(_, block)| block).collect()
}

/// Finds a site that is known already.
fn site_lookup() -> f64 {
    best(N_PAIRS, || {
        for _ in 0..N_PAIRS {
            black_box(Site::intern(black_box("src/model/encoder.rs"), 117, "encoder.0.attention", "matmul"));
        }
    })
}

#[allow(clippy::print_stdout)]
fn main() {
    println!("lookup of a site: {:.1} ns", site_lookup());
    let host = Pool::new(HostPages::new().unwrap());
    let ghost = Pool::new(GhostPages::new(64 << 30));
    for (name, pool) in [("host", &host), ("ghost", &ghost)] {
        let persistent = pool.acquire(1 << 20, Label::new(Owner::Parameters, Site::UNKNOWN)).unwrap();
        for bytes in [4, 4096, 16 << 10, 20 << 10, 1 << 20] {
            println!("{name}: pair of {bytes} B, nothing else in the step: {:.1} ns", pairs(pool, bytes));
        }
        let small = pool.acquire(64, label()).unwrap();
        for bytes in [4, 4096, 16 << 10] {
            println!("{name}: pair of {bytes} B beside a small block: {:.1} ns", pairs(pool, bytes));
        }
        let sizes: Vec<usize> = (0..64).map(|i| 1000 + 397 * (i * 29 % 64)).collect();
        println!("{name}: 64 blocks of 1 to 26 KB, per pair: {:.1} ns", step(pool, &sizes));
        let sizes: Vec<usize> = (0..64).map(|i| 30_000 + 9973 * (i * 29 % 64)).collect();
        println!("{name}: 64 blocks of 30 to 660 KB, per pair: {:.1} ns", step(pool, &sizes));
        for n_blocks in [64, 1_000, 5_000] {
            println!(
                "{name}: planned step of {n_blocks} blocks, per pair: {:.1} ns",
                planned(pool, n_blocks)
            );
        }
        for n_blocks in [1_000, 20_000] {
            let holes = fragmented(pool, n_blocks);
            println!("{name}: pair of 40 kB among {} holes: {:.1} ns", n_blocks / 2, pairs(pool, 40_000));
            drop(holes);
        }
        drop((persistent, small));
    }
}
