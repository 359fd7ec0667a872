//! When pages go back: with the last block, when a model is disposed of, on demand; and drops by other threads.

use std::sync::mpsc;
use std::thread;

use plimsoll_memory::{Block, GRANULE, GhostPages, Label, Owner, Pool, Site, Stats, TraceEvent};

const MIB: usize = 1 << 20;

fn ghost() -> Pool {
    Pool::new(GhostPages::new(1 << 30))
}

fn acquire(pool: &Pool, owner: Owner, bytes: usize) -> Block {
    pool.acquire(bytes, Label::new(owner, Site::UNKNOWN)).unwrap()
}

/// What changed in the calls to the source since `before`: (commits, decommits).
fn calls_since(pool: &Pool, before: &Stats) -> (u64, u64) {
    let now = pool.stats().source;
    (now.n_commits - before.source.n_commits, now.n_decommits - before.source.n_decommits)
}

#[test]
fn with_its_last_block_the_pool_gives_everything_back() {
    let pool = ghost();
    let blocks: Vec<_> = Owner::ALL.iter().map(|&owner| acquire(&pool, owner, 3 * MIB)).collect();
    let small = acquire(&pool, Owner::Temporary, 10);
    drop(blocks);
    assert!(pool.stats().committed > 0);
    drop(small);
    assert_eq!(pool.stats().committed, 0);
    pool.verify().unwrap();
}

#[test]
fn a_pool_whose_pages_are_kept_makes_no_call_when_it_is_filled_again() {
    let pool = ghost();
    let kept = pool.keep_pages();
    drop(acquire(&pool, Owner::Saved, 3 * MIB));
    let after_first = pool.stats();
    assert_eq!((after_first.in_use, after_first.committed), (0, 4 << 20));
    {
        let _step = pool.begin_step();
        drop(acquire(&pool, Owner::Saved, 3 * MIB));
    }
    assert_eq!(calls_since(&pool, &after_first), (0, 0));
    // A ghost keeps them, too.
    let twin = pool.ghost();
    drop(acquire(&twin, Owner::Saved, 3 * MIB));
    assert_eq!(twin.stats().committed, 4 << 20);
    // A model that is disposed of takes them along, and so does the end of keeping.
    drop(acquire(&pool, Owner::Parameters, MIB));
    assert_eq!(pool.stats().committed, 0);
    drop(acquire(&pool, Owner::Saved, 3 * MIB));
    drop(kept);
    assert_eq!(pool.stats().committed, 0);
    pool.verify().unwrap();
}

#[test]
fn a_steady_step_makes_no_call() {
    let pool = ghost();
    let _weights = acquire(&pool, Owner::Parameters, 7 * MIB);
    let step = || {
        let _step = pool.begin_step();
        let saved: Vec<_> = (0..20).map(|i| acquire(&pool, Owner::Saved, 1000 + i * 300_000)).collect();
        let gradients: Vec<_> = (0..20).map(|i| acquire(&pool, Owner::Gradients, 50_000 * i)).collect();
        drop(saved);
        drop(gradients);
    };
    step();
    let after_first = pool.stats();
    (0..50).for_each(|_| step());
    assert_eq!(calls_since(&pool, &after_first), (0, 0));
    assert_eq!(pool.stats().committed, after_first.committed);
}

#[test]
fn disposing_of_a_model_gives_each_free_granule_back_once() {
    for owner in [Owner::Parameters, Owner::Optimizer, Owner::Graph] {
        let pool = ghost();
        let other_model = acquire(&pool, Owner::Data, 2 * MIB);
        let model: Vec<_> = (0..8).map(|_| acquire(&pool, owner, 2 * MIB)).collect();
        let gradients: Vec<_> = (0..4).map(|_| acquire(&pool, Owner::Gradients, 2 * MIB)).collect();
        drop(acquire(&pool, Owner::Saved, 40 * MIB));
        let before = pool.stats();
        for (i, block) in model.into_iter().enumerate() {
            drop(block);
            let expected = before.committed - (40 << 20) - (i as u64 + 1) * GRANULE;
            assert_eq!(pool.stats().committed, expected, "after block {i} of {owner}");
        }
        // Still disposing: what is dropped next goes back, too, whoever owned it.
        drop(gradients);
        assert_eq!(pool.stats().committed, GRANULE);
        let source = pool.stats().source;
        assert_eq!(source.decommitted_bytes, before.committed - GRANULE, "each granule once");
        pool.verify().unwrap();
        drop(other_model);
    }
}

#[test]
fn an_acquisition_ends_the_disposal() {
    let pool = ghost();
    let _kept = acquire(&pool, Owner::Data, 10);
    let gradient = acquire(&pool, Owner::Gradients, 2 * MIB);
    drop(acquire(&pool, Owner::Parameters, 2 * MIB));
    let _next = acquire(&pool, Owner::Data, 10);
    let before = pool.stats();
    drop(gradient);
    assert_eq!(calls_since(&pool, &before), (0, 0));
    assert_eq!(pool.stats().committed, before.committed);
    assert_eq!(pool.trim(), 2 << 20);
    assert_eq!(pool.stats().committed, before.committed - GRANULE);
    assert_eq!(pool.trim(), 0);
}

#[test]
fn a_block_relabelled_away_does_not_count_as_disposal() {
    let pool = ghost();
    let _kept = acquire(&pool, Owner::Data, 10);
    let weights = acquire(&pool, Owner::Parameters, 4 * MIB);
    weights.relabel(Owner::Temporary);
    drop(weights);
    assert_eq!(pool.stats().source.n_decommits, 0);
    let saved = acquire(&pool, Owner::Saved, 4 * MIB);
    saved.relabel(Owner::Graph);
    drop(saved);
    assert_eq!(pool.stats().committed, GRANULE, "relabelled towards, it does");
}

#[test]
fn pages_that_went_back_are_committed_again_where_they_were() {
    let pool = ghost();
    let _kept = acquire(&pool, Owner::Data, 10);
    for _ in 0..100 {
        let first = acquire(&pool, Owner::Saved, 3 * MIB);
        let second = acquire(&pool, Owner::Saved, 3 * MIB);
        assert_eq!((first.offset(), second.offset()), (0, 3 << 20));
        drop((first, second));
        assert_eq!(pool.trim(), 6 << 20);
    }
    let source = pool.stats().source;
    assert_eq!((source.n_commits, source.n_decommits), (201, 100));
}

#[test]
fn a_partly_bare_span_is_filled_from_its_committed_end() {
    let pool = ghost();
    // Blocks that end inside a granule leave its rest committed after a trim.
    let _low = acquire(&pool, Owner::Saved, 5 * MIB);
    let hole = acquire(&pool, Owner::Saved, 10 * MIB);
    let _high = acquire(&pool, Owner::Saved, MIB);
    drop(hole);
    assert_eq!(pool.trim(), 8 << 20);
    let before = pool.stats();
    let block = acquire(&pool, Owner::Saved, 3 * MIB);
    assert_eq!(block.offset(), 5 << 20, "one mebibyte is there, one granule is new");
    assert_eq!(pool.stats().committed, before.committed + GRANULE);
    pool.verify().unwrap();
}

#[test]
fn the_place_with_the_fewest_new_pages_wins_whatever_the_span() {
    let pool = ghost();
    let [first, narrow, second, bare, ready, third] =
        [2, 4, 2, 4, 2, 2].map(|n| acquire(&pool, Owner::Saved, n * MIB));
    drop((narrow, bare));
    pool.trim();
    drop(ready);
    // The narrow span at 2 MiB would need two new granules; the wide one, 8 to 14 MiB, one.
    assert_eq!(acquire(&pool, Owner::Saved, 4 * MIB).offset(), 10 << 20);
    pool.verify().unwrap();
    drop((first, second, third));
}

/// Drops blocks on another thread and waits until it has.
fn drop_elsewhere(blocks: Vec<Block>) {
    thread::spawn(move || drop(blocks)).join().unwrap();
}

#[test]
fn outside_steps_other_threads_release_at_once() {
    let pool = ghost();
    let block = acquire(&pool, Owner::Saved, MIB);
    drop_elsewhere(vec![block]);
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, 0));
}

#[test]
fn inside_a_step_other_threads_release_when_it_ends() {
    let pool = ghost();
    pool.start_trace();
    let outer = pool.begin_step();
    let mut blocks: Vec<_> = (0..4).map(|_| acquire(&pool, Owner::Saved, MIB)).collect();
    blocks.reverse();
    let own = blocks.pop().unwrap();
    drop_elsewhere(blocks);
    assert_eq!(pool.stats().in_use, 4 << 20);
    drop(own);
    assert_eq!(pool.stats().in_use, 3 << 20, "the issuing thread's own drops are immediate");
    let inner = pool.begin_step();
    drop(inner);
    assert_eq!(pool.stats().in_use, 3 << 20, "an inner step is part of the outer one");
    assert_eq!(pool.ghost().stats().in_use, 0, "a ghost has no step open");
    drop(outer);
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, 0));
    let released: Vec<_> = pool
        .take_trace()
        .into_iter()
        .filter_map(|event| match event {
            TraceEvent::Release { serial } => Some(serial),
            _ => None,
        })
        .collect();
    assert_eq!(released, [0, 1, 2, 3], "in the order of acquisition, not of the drops");
}

#[test]
fn a_step_of_another_thread_is_another_step() {
    let pool = ghost();
    let outer = pool.begin_step();
    let (own, lent) = (acquire(&pool, Owner::Saved, MIB), acquire(&pool, Owner::Saved, 2 * MIB));
    let (other, (opened, is_open), (close, closing)) = (pool.clone(), mpsc::channel(), mpsc::channel());
    let guest = thread::spawn(move || {
        let step = other.begin_step();
        let [kept, given] = [4, 8].map(|n| acquire(&other, Owner::Saved, n * MIB));
        drop(acquire(&other, Owner::Saved, 16 * MIB));
        drop(lent);
        opened.send(given).unwrap();
        closing.recv().unwrap();
        drop(kept);
        drop(step);
    });
    let given: Block = is_open.recv().unwrap();
    let mib = || pool.stats().in_use >> 20;
    assert_eq!(mib(), 1 + 2 + 4 + 8, "what its own thread drops goes at once, what another drops waits");
    drop(own);
    assert_eq!(mib(), 2 + 4 + 8, "this thread's drops are immediate beside another thread's step");
    drop(given);
    assert_eq!(mib(), 2 + 4 + 8, "a block of the other thread waits for the end of that thread's step");
    drop(outer);
    assert_eq!(mib(), 4 + 8, "this step's blocks come back at its end, though another step is open");
    close.send(()).unwrap();
    guest.join().unwrap();
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, 0));
}

/// Two threads whose steps always overlap: as if there never was a moment without an open step.
#[test]
fn steps_that_always_overlap_take_no_more_than_both_alone() {
    const N_STEPS: usize = 50;
    let pool = ghost();
    let turns: Vec<_> = (0..2).map(|_| mpsc::channel::<()>()).collect();
    let [first, second] = [(0, 1), (1, 0)].map(|(own, other)| (own, turns[other].0.clone()));
    let mut receivers = turns.into_iter().map(|(_, receiver)| receiver);
    let threads: Vec<_> = [first, second]
        .into_iter()
        .map(|(own, sender)| {
            let (pool, receiver) = (pool.clone(), receivers.next().unwrap());
            thread::spawn(move || {
                if own == 1 {
                    receiver.recv().unwrap();
                }
                for _ in 0..N_STEPS {
                    let step = pool.begin_step();
                    let blocks: Vec<_> = (1..4).map(|n| acquire(&pool, Owner::Saved, n * MIB)).collect();
                    // The other thread ends its step and begins its next one while this one is open.
                    sender.send(()).ok();
                    receiver.recv().ok();
                    drop(blocks);
                    drop(step);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(pool.stats().peak_in_use <= 2 * 6 * MIB as u64, "{} bytes", pool.stats().peak_in_use);
    assert_eq!((pool.stats().in_use, pool.stats().committed), (0, 0));
}

#[test]
fn many_threads_leave_the_books_balanced() {
    let pool = ghost();
    let _weights = acquire(&pool, Owner::Parameters, MIB);
    let in_use = pool.stats().in_use;
    let (sender, receiver) = mpsc::channel::<Block>();
    let dropper = thread::spawn(move || receiver.into_iter().for_each(drop));
    let workers: Vec<_> = (0..3)
        .map(|worker| {
            let (pool, sender) = (pool.clone(), sender.clone());
            thread::spawn(move || {
                for i in 0..2000 {
                    let step = (i % 7 == 0).then(|| pool.begin_step());
                    let block = acquire(&pool, Owner::Temporary, (i * 977 + worker * 31) % 90_000);
                    if i % 3 == 0 {
                        sender.send(block).unwrap();
                    }
                    drop(step);
                }
            })
        })
        .collect();
    drop(sender);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    dropper.join().unwrap();
    pool.verify().unwrap();
    assert_eq!((pool.stats().in_use, pool.stats().n_live), (in_use, 1));
}
