//! The pool's concurrency, every interleaving of it: `RUSTFLAGS="--cfg loom" cargo test -p plimsoll-memory
//! --release --test loom`.
#![cfg(loom)]

use loom::sync::mpsc;
use loom::thread;
use plimsoll_memory::{Block, GhostPages, Label, OffsetPlan, Owner, Planned, Pool, Site, TraceEvent};

fn ghost() -> Pool {
    Pool::new(GhostPages::new(64 << 20))
}

fn acquire(pool: &Pool, bytes: usize) -> Block {
    pool.acquire(bytes, Label::new(Owner::Saved, Site::UNKNOWN)).unwrap()
}

/// Two handles dropped on two threads while a third acquires: the books balance, whatever the order.
#[test]
fn drops_race_with_an_acquisition() {
    loom::model(|| {
        let pool = ghost();
        let (first, second) = (acquire(&pool, 100_000), acquire(&pool, 300));
        let droppers = [thread::spawn(move || drop(first)), thread::spawn(move || drop(second))];
        let third = acquire(&pool, 70_000);
        pool.verify().unwrap();
        droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
        pool.verify().unwrap();
        assert_eq!(pool.stats().n_live, 1);
        drop(third);
        assert_eq!(pool.stats().committed, 0);
    });
}

/// A block dropped elsewhere while a step is open is never seen to go before the step ends.
#[test]
fn a_drop_elsewhere_waits_for_the_end_of_the_step() {
    loom::model(|| {
        let pool = ghost();
        let anchor = acquire(&pool, 64);
        let step = pool.begin_step();
        let block = acquire(&pool, 100_000);
        let offset = block.offset();
        let dropper = thread::spawn(move || drop(block));
        // Whether the drop has happened by now or not, its place is taken and its bytes are in use.
        let next = acquire(&pool, 100_000);
        assert_ne!(next.offset(), offset);
        assert_eq!(pool.stats().n_live, 3);
        drop(step);
        dropper.join().unwrap();
        assert_eq!(pool.stats().n_live, 2);
        pool.verify().unwrap();
        drop((next, anchor));
        assert_eq!(pool.stats().committed, 0);
    });
}

/// A block of a planned step that is dropped elsewhere keeps its place until the step ends.
#[test]
fn a_drop_elsewhere_keeps_its_planned_place() {
    loom::model(|| {
        let pool = ghost();
        let anchor = acquire(&pool, 64);
        let planned = Planned { bytes: 100_000, offset: Some(0) };
        let plan = OffsetPlan::new(vec![planned, planned]).unwrap();
        let step = pool.begin_planned_step(&plan);
        let block = acquire(&pool, 100_000);
        let offset = block.offset();
        let dropper = thread::spawn(move || drop(block));
        let next = acquire(&pool, 100_000);
        assert_ne!(next.offset(), offset);
        drop(step);
        pool.verify().unwrap();
        dropper.join().unwrap();
        pool.verify().unwrap();
        drop((next, anchor));
        assert_eq!(pool.stats().committed, 0);
    });
}

/// The end of a step races with a drop: the block is released once, by one of the two.
#[test]
fn the_end_of_a_step_races_with_a_drop() {
    loom::model(|| {
        let pool = ghost();
        pool.start_trace();
        let step = pool.begin_step();
        let (sender, receiver) = mpsc::channel::<Block>();
        let dropper = thread::spawn(move || drop(receiver.recv().unwrap()));
        sender.send(acquire(&pool, 5000)).unwrap();
        drop(step);
        dropper.join().unwrap();
        let trace = pool.take_trace();
        assert_eq!(trace.len(), 2);
        assert_eq!(trace[1], TraceEvent::Release { serial: 0 });
        assert_eq!((pool.stats().n_live, pool.stats().committed), (0, 0));
    });
}

/// The last handle to the pool may be a block on another thread.
#[test]
fn a_block_may_outlive_every_other_handle() {
    loom::model(|| {
        let pool = ghost();
        let block = acquire(&pool, 5000);
        let dropper = thread::spawn(move || drop(block));
        drop(pool);
        dropper.join().unwrap();
    });
}

/// Two threads have steps open at once: each one's blocks come back at its own end, whatever overlaps.
#[test]
fn overlapping_steps_end_apart() {
    loom::model(|| {
        let pool = ghost();
        let anchor = acquire(&pool, 64);
        let step = pool.begin_step();
        let (lent, own) = (acquire(&pool, 100_000), acquire(&pool, 70_000));
        let other = pool.clone();
        let guest = thread::spawn(move || {
            let step = other.begin_step();
            let block = acquire(&other, 80_000);
            drop((lent, block));
            drop(step);
        });
        drop(own);
        drop(step);
        pool.verify().unwrap();
        guest.join().unwrap();
        pool.verify().unwrap();
        assert_eq!(pool.stats().n_live, 1);
        drop(anchor);
        assert_eq!(pool.stats().committed, 0);
    });
}
