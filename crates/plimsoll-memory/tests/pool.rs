//! What a pool tells: labels, rows, peaks, snapshots, traces, ghosts.

use std::sync::{Arc, Mutex};

use plimsoll_memory::{
    Block, GRANULE, GhostPages, HostPages, Label, LongList, Name, OffsetPlan, Owner, Planned, Pool, Region,
    Site, TraceEvent, Work, rounded_size,
};

fn ghost() -> Pool {
    Pool::new(GhostPages::new(1 << 30))
}

fn label(owner: Owner) -> Label {
    Label::new(owner, Site::UNKNOWN)
}

fn at(owner: Owner, line: u32) -> Label {
    Label::new(owner, Site::intern("src/main.rs", line, "net.0", "matmul"))
}

#[test]
fn handles_can_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Pool>();
    crosses::<Block>();
    crosses::<OffsetPlan>();
    crosses::<plimsoll_memory::OutOfMemory>();
}

#[test]
fn sizes_are_rounded_to_512_by_the_request_alone() {
    let cases = [
        (0, 0),
        (1, 512),
        (512, 512),
        (513, 1024),
        (16_384, 16_384),
        (16_385, 16_896),
        (4_000_000, 4_000_256),
    ];
    let pool = ghost();
    for (bytes, rounded) in cases {
        assert_eq!(rounded_size(bytes), rounded);
        let block = pool.acquire(bytes as usize, label(Owner::Saved)).unwrap();
        assert_eq!((block.bytes() as u64, block.rounded() as u64), (bytes, rounded));
        assert_eq!(pool.stats().in_use, rounded);
        assert_eq!(pool.stats().rounding, rounded - bytes);
    }
    assert_eq!(rounded_size(u64::MAX), u64::MAX - 511);
}

#[test]
fn a_block_of_zero_bytes_is_counted_and_takes_nothing() {
    let pool = Pool::new(HostPages::with_region_bytes([GRANULE; 3]).unwrap());
    let block = pool.acquire(0, label(Owner::Parameters)).unwrap();
    assert!(!block.as_ptr().is_null());
    let stats = pool.stats();
    assert_eq!((stats.n_live, stats.in_use, stats.committed), (1, 0, 0));
    assert_eq!(pool.snapshot().blocks().len(), 1);
    drop(block);
    assert_eq!(pool.stats().n_live, 0);
}

#[test]
fn owners_choose_regions_and_callers_may_overrule_them() {
    let pool = ghost();
    for owner in Owner::ALL {
        let expected = match owner {
            Owner::Parameters | Owner::Optimizer => Region::Persistent,
            Owner::Data => Region::Data,
            _ => Region::Step,
        };
        assert_eq!(pool.acquire(100_000, label(owner)).unwrap().region(), expected);
    }
    let block = pool.acquire_in(Region::Data, 100_000, label(Owner::Parameters)).unwrap();
    assert_eq!(block.region(), Region::Data);
    assert_eq!(pool.stats().rows().get(Owner::Parameters), 100_000);
}

#[test]
fn relabelling_moves_rows_and_nothing_else() {
    let pool = ghost();
    let block = pool.acquire(1000, at(Owner::Temporary, 3)).unwrap();
    let place = (block.region(), block.offset());
    block.relabel(Owner::Saved);
    let stats = pool.stats();
    assert_eq!(stats.rows().get(Owner::Temporary), 0);
    assert_eq!(stats.rows().get(Owner::Saved), 1000);
    assert_eq!((stats.rounding, stats.in_use), (24, 1024));
    assert_eq!((block.region(), block.offset()), place);
    assert_eq!(block.label(), at(Owner::Saved, 3));
    block.set_site(at(Owner::Saved, 9).site);
    assert_eq!(block.label(), at(Owner::Saved, 9));
    assert_eq!(pool.snapshot().blocks()[0].site.line(), 9);
    stats.check().unwrap();
}

#[test]
fn peaks_keep_the_rows_of_their_moment() {
    let pool = ghost();
    let weights = pool.acquire(3000, label(Owner::Parameters)).unwrap();
    let saved = pool.acquire(5000, label(Owner::Saved)).unwrap();
    drop(saved);
    weights.relabel(Owner::Optimizer);
    let _small = pool.acquire(100, label(Owner::Gradients)).unwrap();
    let stats = pool.stats();
    assert_eq!(stats.peak_in_use, 3072 + 5120);
    assert_eq!(stats.peak_rows.get(Owner::Parameters), 3000);
    assert_eq!(stats.peak_rows.get(Owner::Saved), 5000);
    assert_eq!(stats.peak_rows.rounding(), 72 + 120);
    assert_eq!(stats.peak_rows.total(), stats.peak_in_use);
    assert_eq!(stats.peak_committed, 2 * GRANULE);

    pool.reset_peaks();
    let stats = pool.stats();
    assert_eq!(stats.peak_in_use, stats.in_use);
    assert_eq!(stats.peak_rows, stats.rows());
    assert_eq!(stats.peak_committed, stats.committed);

    drop(pool.acquire(9 << 20, label(Owner::Gradients)).unwrap());
    let highest = pool.stats().committed;
    pool.trim();
    let _data = pool.acquire(100_000, label(Owner::Data)).unwrap();
    assert!(pool.stats().committed < highest);
    assert_eq!(pool.stats().peak_committed, highest);
}

#[test]
fn peak_scopes_nest_overlap_and_close_in_any_order() {
    let pool = ghost();
    let base = pool.acquire(512, label(Owner::Saved)).unwrap();
    let outer = pool.peak_scope();
    drop(pool.acquire(10 * 512, label(Owner::Saved)).unwrap());
    let inner = pool.peak_scope();
    assert_eq!((outer.peak(), inner.peak()), (11 * 512, 512));
    drop(pool.acquire(2 * 512, label(Owner::Saved)).unwrap());
    assert_eq!((outer.peak(), inner.peak()), (11 * 512, 3 * 512));
    drop(outer);
    let third = pool.peak_scope();
    drop(pool.acquire(4 * 512, label(Owner::Saved)).unwrap());
    assert_eq!((inner.peak(), third.peak()), (5 * 512, 5 * 512));
    drop(base);
    assert_eq!(inner.peak(), 5 * 512);
    pool.reset_peaks();
    assert_eq!(inner.peak(), 5 * 512, "peaks of scopes are their own");
}

#[test]
fn a_snapshot_lists_every_block_and_groups_holders() {
    let pool = ghost();
    let kept: Vec<_> = (0..3).map(|_| pool.acquire(1000, at(Owner::Saved, 7)).unwrap()).collect();
    let one = pool.acquire(2000, at(Owner::Saved, 8)).unwrap();
    let _weights = pool.acquire(1000, at(Owner::Parameters, 7)).unwrap();
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.by_owner(), pool.stats().rows());
    assert_eq!(snapshot.in_use(), pool.stats().in_use);
    assert_eq!(snapshot.blocks().iter().map(|b| b.serial).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(snapshot.blocks()[3].offset, one.offset());
    let holders = snapshot.holders(2);
    assert_eq!(holders.len(), 2);
    assert_eq!((holders[0].bytes, holders[0].blocks, holders[0].site.line()), (3072, 3, 7));
    assert_eq!((holders[1].bytes, holders[1].blocks, holders[1].site.line()), (2048, 1, 8));
    let table = snapshot.to_string();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines,
        [
            "               bytes   blocks  owner       line",
            "               3,072        3  saved       src/main.rs:7 net.0 matmul",
            "               2,048        1  saved       src/main.rs:8 net.0 matmul",
            "               1,024        1  parameters  src/main.rs:7 net.0 matmul",
            "               6,144        5  in use",
        ]
    );
    drop(kept);
    let _later = pool.acquire(1, at(Owner::Saved, 9)).unwrap();
    let serials: Vec<_> = pool.snapshot().blocks().iter().map(|block| block.serial).collect();
    assert_eq!(serials, [3, 4, 5], "oldest first, wherever the table has room");
}

#[test]
fn a_trace_tells_what_was_asked_for_in_order() {
    let pool = ghost();
    let before = pool.acquire(64, label(Owner::Data)).unwrap();
    pool.start_trace();
    let block = pool.acquire(100_000, at(Owner::Temporary, 1)).unwrap();
    block.relabel(Owner::Saved);
    block.relabel(Owner::Saved);
    drop(before);
    drop(block);
    let (serial, region) = (1, Region::Step);
    let acquired =
        TraceEvent::Acquire { serial, region, offset: 0, bytes: 100_000, label: at(Owner::Temporary, 1) };
    let relabelled = TraceEvent::Relabel { serial, label: at(Owner::Saved, 1) };
    let released = |serial| TraceEvent::Release { serial };
    assert!(pool.take_trace().into_iter().eq([acquired, relabelled, released(0), released(1)]));
    drop(pool.acquire(1, label(Owner::Data)).unwrap());
    assert!(pool.take_trace().is_empty());
}

#[test]
fn a_ghost_keeps_the_blocks_of_its_original() {
    let pool = Pool::new(HostPages::with_region_bytes([64 * GRANULE; 3]).unwrap());
    pool.set_limit(Some(plimsoll_memory::Bytes::mib(32))).unwrap();
    let weights = pool.acquire(5_000_000, label(Owner::Parameters)).unwrap();
    let ghost = pool.ghost();
    assert!(ghost.is_ghost() && !pool.is_ghost());
    assert_eq!(ghost.stats(), pool.stats());
    assert_eq!(ghost.limit(), pool.limit());
    drop(weights);
    assert_eq!(pool.stats().committed, 0);
    assert_eq!(ghost.stats().rows().get(Owner::Parameters), 5_000_000, "the copy does not follow");

    let step = ghost.acquire(1_000_000, label(Owner::Saved)).unwrap();
    assert!(step.as_ptr().is_null());
    drop(step);
    assert_eq!(ghost.stats().in_use, rounded_size(5_000_000));
    ghost.verify().unwrap();
}

#[test]
fn small_blocks_of_all_sizes_share_slabs() {
    let pool = ghost();
    let sizes = [1, 600, 5000, 16_384, 10_000, 3, 9999];
    let blocks: Vec<_> =
        sizes.iter().map(|&bytes| pool.acquire(bytes, label(Owner::Saved)).unwrap()).collect();
    assert!(blocks.iter().all(|block| block.offset() + block.rounded() as u64 <= 64 << 10));
    let large = pool.acquire(20_000, label(Owner::Saved)).unwrap();
    assert_eq!(large.offset(), 64 << 10);
    drop(blocks);
    // The slab is gone: its place serves a block that no slab would hold.
    assert_eq!(pool.acquire(60_000, label(Owner::Saved)).unwrap().offset(), 0);
}

#[test]
fn best_fit_takes_the_smallest_hole_and_the_lowest_among_equals() {
    let pool = ghost();
    let sizes = [90_000, 20_000, 50_000, 20_000, 30_000, 20_000, 30_000, 20_000];
    let blocks: Vec<_> =
        sizes.iter().map(|&bytes| pool.acquire(bytes, label(Owner::Saved)).unwrap()).collect();
    let offsets: Vec<u64> = blocks.iter().map(Block::offset).collect();
    let _kept: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect();
    let fits = |bytes| pool.acquire(bytes, label(Owner::Saved)).unwrap().offset();
    assert_eq!(fits(30_000), offsets[4]);
    assert_eq!(fits(31_000), offsets[2]);
    assert_eq!(fits(51_200), offsets[0]);
    assert_eq!(pool.stats().source.n_commits, 1);
    pool.verify().unwrap();
}

#[test]
fn stats_that_contradict_each_other_do_not_pass_the_check() {
    let pool = ghost();
    let _block = pool.acquire(1000, label(Owner::Saved)).unwrap();
    let sound = pool.stats();
    sound.check().unwrap();
    let wrong: [fn(&mut plimsoll_memory::Stats); 6] = [
        |s| s.in_use += 512,
        |s| s.rounding += 1,
        |s| s.committed = 512,
        |s| s.limit = Some(GRANULE - 1),
        |s| s.n_live += 1,
        |s| s.peak_in_use += 1,
    ];
    for change in wrong {
        let mut stats = sound.clone();
        change(&mut stats);
        assert!(stats.check().is_err(), "{stats:?}");
    }
}

#[test]
fn marks_are_in_the_trace_and_ask_for_nothing() {
    let pool = ghost();
    pool.mark("forward", 1);
    pool.start_trace();
    let site = Site::intern("src/main.rs", 3, "net.0", "relu");
    let block = pool.acquire(1000, label(Owner::Temporary)).unwrap();
    pool.mark("backward", 2);
    pool.mark_work(&Work { site, nanoseconds: 70, repeats: true, reads: &[block.serial()], writes: &[] });
    drop(block);
    let trace = pool.take_trace();
    assert_eq!(trace[1], TraceEvent::Mark { name: Name::intern("backward"), number: 2 });
    assert_eq!(trace[2], TraceEvent::Work { site, nanoseconds: 70, committed: GRANULE, repeats: true });
    let requests: Vec<bool> = trace.iter().map(TraceEvent::is_request).collect();
    assert_eq!(requests, [true, false, false, true]);
}

/// What ops read and write is for sinks: lists of it would be long, and a real pool's would not be its ghost's.
#[test]
fn sinks_are_told_of_work_and_of_who_holds() {
    for (pool, is_ghost) in [(ghost(), true), (Pool::new(HostPages::new().unwrap()), false)] {
        let told: Arc<Mutex<Vec<TraceEvent>>> = Arc::default();
        let sink = told.clone();
        let block = pool.acquire(1000, label(Owner::Temporary)).unwrap();
        let serial = block.serial();
        assert!(!pool.has_sink() && !pool.wants_work());
        pool.start_trace();
        assert_eq!(pool.wants_work(), is_ghost);
        pool.set_trace_sink(Some(Box::new(move |event, _| sink.lock().unwrap().push(*event))));
        assert!(pool.has_sink() && pool.wants_work());
        let site = Site::intern("src/main.rs", 3, "net.0", "relu");
        let work = Work { site, nanoseconds: 70, repeats: false, reads: &[serial], writes: &[serial] };
        pool.mark_work(&work);
        pool.tell_held([(serial, Name::intern("tape src/main.rs:7"), 1024)]);
        pool.set_trace_sink(None);
        assert!(!pool.has_sink());
        let by = Name::intern("tape src/main.rs:7");
        let marked = TraceEvent::Work { site, nanoseconds: 70, committed: GRANULE, repeats: false };
        let all = [
            TraceEvent::Read { serial },
            TraceEvent::Write { serial },
            marked,
            TraceEvent::Held { serial, by, frees: 1024 },
            TraceEvent::Flush,
        ];
        assert_eq!(*told.lock().unwrap(), all);
        assert!(pool.take_trace().iter().eq(all[2..3].iter().filter(|_| is_ghost)));
    }
}

/// Whoever writes events down learns when a step is complete: after all that it gives back, and not when one inside it ends.
#[test]
fn sinks_are_told_when_a_step_has_ended() {
    let pool = ghost();
    let told: Arc<Mutex<Vec<TraceEvent>>> = Arc::default();
    let sink = told.clone();
    pool.set_trace_sink(Some(Box::new(move |event, _| sink.lock().unwrap().push(*event))));
    let is_flush = |event: &TraceEvent| matches!(event, TraceEvent::Flush);
    let step = pool.begin_step();
    drop(pool.begin_step());
    let block = pool.acquire(1000, label(Owner::Temporary)).unwrap();
    std::thread::scope(|scope| _ = scope.spawn(|| drop(block)));
    assert!(!told.lock().unwrap().iter().any(is_flush), "a step inside is part of it");
    drop(step);
    let told = told.lock().unwrap();
    assert!(matches!(told[..], [TraceEvent::Acquire { .. }, TraceEvent::Release { .. }, TraceEvent::Flush]));
}

/// One round of a loop that keeps a few small blocks and drops the rest, in another order than it took them.
fn churn(pool: &Pool, kept: &mut Vec<Block>) {
    let take = |bytes: usize, owner| pool.acquire(bytes, label(owner)).unwrap();
    let mut blocks: Vec<Block> = (1..40).map(|k| take(k * 9_000 % 70_000 + 1, Owner::ALL[k % 8])).collect();
    let fresh: Vec<Block> = [3, 11, 12].into_iter().rev().map(|at| blocks.swap_remove(at)).collect();
    *kept = fresh;
}

#[test]
fn the_same_fingerprint_means_the_same_answers() {
    let pool = ghost();
    let _parameters = pool.acquire(100_000, label(Owner::Parameters)).unwrap();
    let mut kept = Vec::new();
    let mut seen: Vec<(u64, LongList<TraceEvent>)> = Vec::new();
    let places = |trace: &LongList<TraceEvent>| -> Vec<(Region, u64, u64)> {
        let place = |event: &TraceEvent| match *event {
            TraceEvent::Acquire { region, offset, bytes, .. } => Some((region, offset, bytes)),
            _ => None,
        };
        trace.iter().filter_map(place).collect()
    };
    let mut n_repeats = 0;
    for _ in 0..20 {
        let before = pool.fingerprint();
        pool.start_trace();
        churn(&pool, &mut kept);
        let trace = pool.take_trace();
        if let Some((_, known)) = seen.iter().find(|(known, _)| *known == before) {
            assert_eq!(places(&trace), places(known));
            n_repeats += 1;
        }
        seen.push((before, trace));
    }
    assert!(n_repeats > 5, "a loop comes to repeat itself");
    assert_eq!(pool.fingerprint(), pool.ghost().fingerprint());
}

#[test]
fn whatever_answers_depend_on_changes_the_fingerprint() {
    let pool = ghost();
    let mut seen = vec![pool.fingerprint()];
    let mut changed = |pool: &Pool| {
        let now = pool.fingerprint();
        assert!(!seen.contains(&now), "{seen:?}");
        seen.push(now);
    };
    let small = pool.acquire(1000, label(Owner::Temporary)).unwrap();
    changed(&pool);
    let large = pool.acquire(100_000, label(Owner::Temporary)).unwrap();
    changed(&pool);
    small.relabel(Owner::Parameters);
    changed(&pool);
    drop(large);
    changed(&pool);
    pool.set_limit(Some((4 * GRANULE).into())).unwrap();
    changed(&pool);
    let entries = [700, 512].map(|bytes| Planned { bytes, offset: Some(1024) });
    let step = pool.begin_planned_step(&OffsetPlan::new(entries.to_vec()).unwrap());
    changed(&pool);
    drop(pool.acquire(700, label(Owner::Temporary)).unwrap());
    changed(&pool);
    drop(step);
}
