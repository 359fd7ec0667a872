//! Threads: they end with the iterator, nothing hangs, errors and panics come out in order.
//!
//! One test at a time counts the threads of the process, so all of them are parts of one.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use common::{device, drained, integers, n_data_threads, n_data_threads_left, numbers};
use plimsoll_data::{Dataset, ExampleMut, Field, Spec};
use plimsoll_tensor::{DType, Error, ErrorKind, Result};

fn single() -> Spec {
    Spec::new([Field::new("y", DType::I64, ()).unwrap()]).unwrap()
}

#[test]
fn threads() {
    fifty_epochs_leave_threads_and_bytes_as_they_were();
    dropping_at_any_moment_ends_all_threads();
    threads_that_are_held_serve_every_epoch();
    a_wait_for_what_never_comes_ends_when_somebody_asks();
    dropping_waits_for_a_worker_in_the_users_code_and_for_nothing_else();
    an_error_comes_at_its_place_and_ends_the_iteration();
    a_panic_is_an_error_with_its_text();
    any_number_of_workers_gives_the_same_batches_and_asks_as_often();
    an_iterator_moves_to_another_thread_and_batches_are_dropped_there();
}

fn fifty_epochs_leave_threads_and_bytes_as_they_were() {
    let (device, _on) = device();
    let x = plimsoll_tensor::Tensor::ones([100, 1000]).unwrap();
    let mut before = None;
    for epoch in 0..50 {
        let dataset = Dataset::from_tensor_slices(x.clone()).unwrap();
        let dataset = dataset.shuffle(100, 1).batch(7).unwrap().prefetch(2).workers(3);
        let mut n_threads = 0;
        for batch in &dataset {
            batch.unwrap();
            n_threads = n_threads.max(n_data_threads());
        }
        assert!(n_threads <= 3);
        drop(dataset);
        let stats = device.stats();
        let now = (n_data_threads_left(), stats.in_use, stats.committed);
        assert_eq!(now.0, 0, "after epoch {epoch}");
        assert_eq!(*before.get_or_insert(now), now, "after epoch {epoch}");
    }
}

fn dropping_at_any_moment_ends_all_threads() {
    let (device, _on) = device();
    for n_workers in [1, 2, 4] {
        for n_taken in 0..12 {
            let dataset = numbers(100).batch(10).unwrap().prefetch(3).workers(n_workers);
            let mut batches = dataset.iter();
            let taken: Vec<_> = batches.by_ref().take(n_taken).collect();
            assert_eq!(taken.len(), n_taken.min(10));
            drop(batches);
            assert_eq!(n_data_threads_left(), 0);
            drop((taken, dataset));
            assert_eq!(device.stats().in_use, 0);
        }
    }
}

fn a_wait_for_what_never_comes_ends_when_somebody_asks() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let (device, _on) = device();
    let gate = Arc::new((Mutex::new((false, false)), Condvar::new()));
    let inside = gate.clone();
    let dataset = numbers(100).map(single(), move |from, to| {
        if from.index() == 15 {
            let mut state = inside.0.lock().unwrap();
            state.0 = true;
            inside.1.notify_all();
            drop(inside.1.wait_while(state, |state| !state.1).unwrap());
        }
        to.copy(0, from, 0)
    });
    plimsoll_data::stop_waiting_when(|| ASKED.load(Ordering::SeqCst) > 0);
    let mut batches = dataset.batch(10).unwrap().prefetch(2).iter();
    assert!(batches.next().unwrap().is_ok(), "nobody has asked yet");
    drop(gate.1.wait_while(gate.0.lock().unwrap(), |state| !state.0).unwrap());
    ASKED.store(1, Ordering::SeqCst);
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Interrupted { .. }), "{error}");
    assert!(batches.next().is_none());
    // The worker is still inside, and nobody waits for it.
    drop(batches);
    ASKED.store(0, Ordering::SeqCst);
    gate.0.lock().unwrap().1 = true;
    gate.1.notify_all();
    drop(dataset);
    assert_eq!(n_data_threads_left(), 0);
    assert_eq!(device.stats().in_use, 0);
}

fn threads_that_are_held_serve_every_epoch() {
    let (_device, _on) = device();
    let dataset = numbers(100).batch(10).unwrap().prefetch(3).workers(2);
    let plain: Vec<_> = (0..3).map(|_| integers(&dataset)).collect();
    assert_eq!(n_data_threads_left(), 0);
    let held = dataset.start_threads().unwrap();
    let ids = || -> std::collections::BTreeSet<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let data = tasks.filter(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.starts_with("plimsoll-data"))
        });
        data.map(|task| task.file_name().to_string_lossy().into_owned()).collect()
    };
    // A thread has its name a moment after it has begun.
    let started = loop {
        let now = ids();
        if now.len() >= 2 {
            break now;
        }
    };
    // A clone and an iteration that is broken off use the same ones.
    assert_eq!(dataset.clone().iter().take(2).count(), 2);
    for epoch in plain {
        assert_eq!(integers(&dataset), epoch);
        assert_eq!(ids(), started);
    }
    // Two at once: the second starts its own, and they are kept as well.
    let (mut first, mut second) = (dataset.iter(), dataset.iter());
    assert!(first.next().is_some() && second.next().is_some());
    drop((first, second));
    drop(held);
    assert_eq!(n_data_threads_left(), 0);
}

fn dropping_waits_for_a_worker_in_the_users_code_and_for_nothing_else() {
    let gate = Arc::new((Mutex::new((false, false)), Condvar::new()));
    let inside = gate.clone();
    let dataset = numbers(100).map(single(), move |from, to| {
        if from.index() == 5 {
            // The worker says that it is here, and stays until it is let go.
            let mut state = inside.0.lock().unwrap();
            state.0 = true;
            inside.1.notify_all();
            drop(inside.1.wait_while(state, |state| !state.1).unwrap());
        }
        to.copy(0, from, 0)
    });
    let batches = dataset.batch(2).unwrap().prefetch(8).iter();
    drop(gate.1.wait_while(gate.0.lock().unwrap(), |state| !state.0).unwrap());
    let dropping = std::thread::spawn(move || drop(batches));
    gate.0.lock().unwrap().1 = true;
    gate.1.notify_all();
    dropping.join().unwrap();
    assert_eq!(n_data_threads_left(), 0);
}

fn an_error_comes_at_its_place_and_ends_the_iteration() {
    let mut texts = Vec::new();
    for (n_workers, depth) in [(1, 0), (1, 2), (2, 0), (4, 5)] {
        let (device, _on) = device();
        let mapped = numbers(4000).map(single(), |from, to| match from.value::<i64>(0)? {
            2345 | 2346 | 3999 => {
                Err(Error::within("decoding", std::io::Error::other("the file is damaged")))
            }
            x => to.set(0, &[x]),
        });
        let dataset = mapped.batch(1000).unwrap().prefetch(depth).workers(n_workers);
        let mut batches = dataset.iter();
        for first in [0, 1000] {
            let batch = batches.next().unwrap().unwrap();
            assert_eq!(batch[0].to_vec::<i64>().unwrap(), (first..first + 1000).collect::<Vec<_>>());
        }
        let error = batches.next().unwrap().unwrap_err();
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        assert!(cause.downcast_ref::<std::io::Error>().is_some(), "{error}");
        texts.push(error.to_string());
        assert!(batches.next().is_none() && batches.next().is_none());
        assert_eq!(n_data_threads_left(), 0, "the threads have ended though the iterator lives");
        drop((batches, mapped, dataset));
        assert_eq!(device.stats().in_use, 0);
    }
    texts.dedup();
    assert_eq!(texts, ["batch 2 of epoch 0: row 345: decoding: the file is damaged"]);
}

fn a_panic_is_an_error_with_its_text() {
    let panics = |x: i64| if x == 7 { panic!("seven is not allowed") } else { Ok(true) };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mapped = numbers(20).map(single(), move |from, to| {
        panics(from.value::<i64>(0)?)?;
        to.copy(0, from, 0)
    });
    let filtered = numbers(20).filter(move |from| panics(from.value::<i64>(0)?));
    let generated = Dataset::from_generator(single(), move |_| {
        let mut k = 0;
        move |to: &mut ExampleMut<'_>| -> Result<bool> {
            k += 1;
            to.set(0, &[k - 1])?;
            panics(k - 1)
        }
    });
    let begun = Dataset::from_generator(single(), |_| {
        if n_data_threads() < usize::MAX {
            panic!("seven is not allowed");
        }
        |_: &mut ExampleMut<'_>| Ok(false)
    });
    for (dataset, n_good) in [(mapped, 1), (filtered, 1), (generated, 1), (begun, 0)] {
        for (n_workers, depth) in [(1, 0), (2, 3)] {
            let mut batches = dataset.batch(4).unwrap().prefetch(depth).workers(n_workers).iter();
            for _ in 0..n_good {
                batches.next().unwrap().unwrap();
            }
            let error = batches.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("seven is not allowed"), "{error}");
            assert!(batches.next().is_none());
        }
    }
    std::panic::set_hook(hook);
}

fn any_number_of_workers_gives_the_same_batches_and_asks_as_often() {
    let spec = || Spec::new([Field::new("y", DType::F32, [300]).unwrap()]).unwrap();
    let mut all = Vec::new();
    for n_workers in 1..=4 {
        let n_calls = Arc::new(AtomicUsize::new(0));
        let calls = n_calls.clone();
        let dataset = numbers(200).shuffle(10, 5).map(spec(), move |from, to| {
            calls.fetch_add(1, Ordering::Relaxed);
            let x = from.value::<i64>(0)? as f32 + from.random_unit(9, 0) as f32;
            to.values_mut::<f32>(0)?.iter_mut().enumerate().for_each(|(k, y)| *y = (x + k as f32).sin());
            Ok(())
        });
        let dataset = dataset.batch(16).unwrap().workers(n_workers).prefetch(n_workers % 3);
        all.push([drained(&dataset), drained(&dataset)]);
        assert_eq!(n_calls.load(Ordering::Relaxed), 400);
    }
    assert_ne!(all[0][0], all[0][1]);
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

fn an_iterator_moves_to_another_thread_and_batches_are_dropped_there() {
    let dataset = numbers(64).batch(4).unwrap().prefetch(2);
    let batches: Vec<_> = std::thread::scope(|scope| {
        let there = scope.spawn(|| dataset.iter().map(|batch| batch.unwrap()).collect());
        there.join().unwrap()
    });
    assert_eq!(batches.len(), 16);
    std::thread::spawn(move || drop(batches)).join().unwrap();
    assert_eq!(integers(&dataset).len(), 16);
}
