//! What functions keep: bounded in bytes, counted honestly, listed, and given back.
//!
//! Each complaint about the caches of others is a test: programs that are never freed, constants that are copied into them or
//! folded, results that a later run changes. One process, because the heap belongs to it; the tests take turns.

#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{
    Bytes, CacheInfo, Device, Function, GradientTape, Owner, Result, Tensor, Variable, clear_session,
};
use plimsoll_testkit::{CountingAllocator, device_under_test};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The heap and the log are the process's.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn heap_bytes(cache: &CacheInfo) -> usize {
    usize::try_from(cache.heap_bytes()).expect("a heap is addressable")
}

#[test]
fn ten_thousand_shapes_leave_what_the_bound_says() -> Result<()> {
    const BOUND: usize = 1 << 20;
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let function = Function::new(|x: Tensor| x.mul(2.0)?.add(&Tensor::from_slice(&[1.0f32], [1])?)?.sum(..))
        .cache_bytes(BOUND);
    let call = |n: usize| -> Result<()> {
        let y = function.call(Tensor::ones([n])?)?.item::<f32>()?;
        assert_eq!(y, 3.0 * n as f32);
        Ok(())
    };
    let mut n_shapes = 0;
    while function.cache().n_evicted == 0 {
        n_shapes += 1;
        call(n_shapes)?;
        assert!(heap_bytes(&function.cache()) <= BOUND);
    }
    assert!(n_shapes < 9_000, "{n_shapes} programs fit; the test needs a bound that is reached");
    let (stats, live) = (device.stats(), HEAP.live_bytes());
    for n in n_shapes + 1..=10_000 {
        call(n)?;
        assert_eq!(device.stats().committed, stats.committed, "shape {n}");
        if n % 1000 == 0 {
            let cache = function.cache();
            assert!(heap_bytes(&cache) <= BOUND, "{} B", cache.heap_bytes());
            let in_use = device.stats().in_use;
            // A constant of each program. Those of long inputs may be larger on a GPU, so that fewer fit.
            assert_eq!(in_use, 512 * cache.programs.len() as u64, "shape {n}");
            assert!(in_use <= stats.in_use + 2 * 512, "shape {n}");
        }
    }
    let growth = HEAP.live_bytes().abs_diff(live);
    assert!(growth < 1 << 20, "the heap has changed by {growth} B since the cache was full");
    // The latest are there, the others are not.
    let (cache, last) = (function.cache(), "float32[10000]");
    let mut signatures = cache.programs.iter().map(|program| &*program.signature);
    assert!(signatures.next().is_some_and(|first| first.starts_with(last)), "{cache}");
    assert!(signatures.all(|signature| !signature.starts_with("float32[1]")), "{cache}");
    drop(function);
    assert_eq!(device.stats().in_use, 0);
    Ok(())
}

#[test]
fn functions_that_are_dropped_leave_nothing() -> Result<()> {
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let make_and_call = || -> Result<()> {
        let function = Function::new(|x: Tensor| {
            let weights = Variable::new(Tensor::randn([16, 16])?);
            x.matmul(&weights)?.add(&Tensor::from_slice(&[1.0f32; 16], [16])?)
        });
        let y = function.call(Tensor::ones([2, 16])?)?;
        assert_eq!((y.shape().dims(), function.variables().len()), (&[2, 16][..], 1));
        let owned = device.stats().rows().get(Owner::Graph);
        assert!(owned >= 64, "{owned} B of constants");
        Ok(())
    };
    (0..20).try_for_each(|_| make_and_call())?;
    assert_eq!(device.stats().in_use, 0);
    let live = HEAP.live_bytes();
    (0..1000).try_for_each(|_| make_and_call())?;
    assert_eq!(device.stats().in_use, 0);
    let growth = HEAP.live_bytes().saturating_sub(live);
    assert!(growth < 64 << 10, "1,000 functions left {growth} B");
    Ok(())
}

/// A few layers and their gradients, so that there are plans to be counted.
fn train(weights: &Variable, x: &Tensor) -> Result<Tensor> {
    let tape = GradientTape::new();
    let loss = tape.record(|| {
        let mut h = x.matmul(weights)?;
        for _ in 0..20 {
            h = h.matmul(weights)?.tanh()?.sigmoid()?;
        }
        h.mean(..)
    })?;
    let [gradient] = tape.gradient(&loss, [weights])?;
    Ok(gradient)
}

#[test]
fn heap_bytes_are_those_of_the_allocator() -> Result<()> {
    const LENGTHS: std::ops::Range<usize> = 1..41;
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let weights = Variable::new(Tensor::randn([32, 32])?);
    for limited in [false, true] {
        let function = Function::new({
            let weights = weights.clone();
            move |x: Tensor| train(&weights, &x)
        });
        let call = |length: usize| function.call(Tensor::ones([64 * length, 32])?).map(drop);
        call(100)?;
        if limited {
            device.trim();
            let least = function.least_limit(Tensor::ones([64 * 40, 32])?)?;
            device.set_limit(Some(Bytes::new(least + least / 8)))?;
        }
        // What the thread and the pool keep for good is there before.
        LENGTHS.clone().try_for_each(call)?;
        function.clear_cache();
        let before = HEAP.live_bytes();
        LENGTHS.clone().try_for_each(call)?;
        let (counted, live) = (heap_bytes(&function.cache()), HEAP.live_bytes() - before);
        let off = counted.abs_diff(live) as f64 / live as f64;
        assert!(off < 0.1, "limited: {limited}; counted {counted} B, the heap has {live} B more");
        device.set_limit(None)?;
    }
    Ok(())
}

#[test]
fn clearing_gives_everything_back_and_functions_go_on() -> Result<()> {
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let constant = |x: Tensor| x.add(&Tensor::from_slice(&[1.0f32; 1000], [1000])?);
    let (one, other) = (Function::new(constant), Function::new(constant));
    let call = || -> Result<()> {
        for function in [&one, &other] {
            assert_eq!(function.call(Tensor::ones([1000])?)?.to_vec::<f32>()?, vec![2.0; 1000]);
        }
        Ok(())
    };
    call()?;
    assert_eq!(device.stats().rows().get(Owner::Graph), 2 * 4000);
    assert_eq!((one.cache().device_bytes(), other.cache().device_bytes()), (4000, 4000));
    one.clear_cache();
    assert_eq!(device.stats().rows().get(Owner::Graph), 4000);
    clear_session();
    assert_eq!((device.stats().in_use, other.cache().programs.len()), (0, 0));
    call()?;
    call()?;
    let cache = one.cache();
    assert_eq!((cache.programs[0].n_calls, cache.programs[0].device_bytes), (2, 4000));
    Ok(())
}

#[test]
fn a_cache_prints_as_a_table() -> Result<()> {
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let function = Function::new(|(x, y): (Tensor, Tensor)| x.matmul(&y));
    for _ in 0..6 {
        function.call((Tensor::ones([2, 3])?, Tensor::ones([3, 4])?))?;
    }
    function.call((Tensor::ones([2, 3])?, Tensor::ones([4, 3])?.transpose(0, 1)?))?;
    let cache = function.cache();
    let [turned, plain] = &cache.programs[..] else { panic!("{cache}") };
    // Recorded at calls 1, 2, 3 and 5: it is checked again where the calls so far are a power of two.
    assert_eq!((plain.n_calls, plain.n_hits), (6, 2));
    assert_eq!((turned.n_calls, turned.n_hits), (1, 0));
    assert!(turned.signature.starts_with("float32[2, 3], float32[3, 4] with strides [1, 3]"), "{turned:?}");
    let text = cache.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("signature") && lines[3].starts_with("2 programs, "), "{text}");
    assert!(lines[3].ends_with("of at most 64.00 MiB (67,108,864 B), 0 evicted"), "{text}");
    Ok(())
}

#[test]
fn captured_tensors_are_not_copied_and_constants_not_folded() -> Result<()> {
    const N: usize = 1 << 20;
    let _turn = turn();
    let device = device_under_test();
    // The memory that the driver has for executables would count, too.
    device.set_cuda_graphs(false)?;
    let _on = device.enter();
    let captured = Tensor::ones([N])?;
    let function = Function::new({
        let captured = captured.clone();
        move |x: Tensor| {
            // Everything here is known when it is recorded: 4 bytes that would fold into 4 MiB.
            let constant = Tensor::from_slice(&[2.0f32], [1])?.mul(3.0)?.broadcast_to([N])?.contiguous()?;
            captured.mul(&constant)?.mul(&x)?.sum(..)
        }
    });
    let x = Tensor::ones([1])?;
    let before = device.stats();
    for _ in 0..5 {
        assert_eq!(function.call(x.clone())?.item::<f32>()?, 6.0 * N as f32);
        let after = device.stats();
        // The constant is one block of the smallest size.
        assert_eq!((after.in_use - before.in_use, after.rows().get(Owner::Graph)), (512, 4));
    }
    assert_eq!(function.cache().device_bytes(), 4);
    drop(function);
    assert_eq!(device.stats().in_use, before.in_use);
    Ok(())
}

#[test]
fn what_a_program_returned_stays_what_it_was() -> Result<()> {
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    let function = Function::new(|x: Tensor| {
        let twice = x.mul(2.0)?;
        Ok((twice.add(1.0)?, twice.narrow(0, 10, 20)?, x))
    });
    let values = |(a, b, c): &(Tensor, Tensor, Tensor)| -> Result<Vec<Vec<f32>>> {
        [a, b, c].iter().map(|tensor| tensor.to_vec::<f32>()).collect()
    };
    let mut kept = Vec::new();
    for limited in [false, true] {
        if limited {
            device.trim();
            let committed = device.stats().committed;
            device.set_limit(Some(Bytes::new(committed + (64 << 20))))?;
        }
        for n in 0..6u8 {
            let results = function.call(Tensor::full([100], f64::from(n))?)?;
            let seen = values(&results)?;
            assert_eq!(seen[0], vec![2.0 * f32::from(n) + 1.0; 100]);
            kept.push((results, seen));
        }
        for (results, seen) in &kept {
            assert_eq!(&values(results)?, seen);
        }
    }
    device.set_limit(None)?;
    function.clear_cache();
    for (results, seen) in &kept {
        assert_eq!(&values(results)?, seen);
    }
    Ok(())
}

/// Keeps the warnings.
struct Kept(Mutex<Vec<String>>);

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
    }

    fn flush(&self) {}
}

static WARNINGS: Kept = Kept(Mutex::new(Vec::new()));

#[test]
fn recording_again_and_again_warns_once_and_names_the_argument() -> Result<()> {
    let _turn = turn();
    let device = device_under_test();
    let _on = device.enter();
    log::set_logger(&WARNINGS).expect("nobody else has one");
    log::set_max_level(log::LevelFilter::Warn);
    let warned = |what: &str| {
        let warnings = WARNINGS.0.lock().unwrap_or_else(PoisonError::into_inner);
        warnings
            .iter()
            .filter(|warning| warning.contains("new signatures in a row") && warning.contains(what))
            .count()
    };
    let add = || Function::new(|(x, y): (Tensor, Tensor)| x.add(&y));
    let lengths = add();
    for n in 1..40 {
        lengths.call((Tensor::ones([1])?, Tensor::ones([n])?))?;
    }
    assert_eq!(warned("argument 1 is different each time: its shape is [9] and was [8]"), 1);
    assert_eq!(warned(""), 1);
    let used_again = add();
    for n in 1..40 {
        for _ in 0..2 {
            used_again.call((Tensor::ones([n])?, Tensor::ones([1])?))?;
        }
    }
    assert_eq!(warned(""), 1);
    log::set_max_level(log::LevelFilter::Off);
    Ok(())
}

#[test]
fn a_session_can_be_cleared_while_a_function_is_recorded() -> Result<()> {
    let _turn = turn();
    let _on = Device::cpu().enter();
    let function = Function::new(|x: Tensor| {
        clear_session();
        x.neg()
    });
    assert_eq!(function.call(Tensor::ones([1])?)?.item::<f32>()?, -1.0);
    assert_eq!(function.cache().programs.len(), 1);
    Ok(())
}
