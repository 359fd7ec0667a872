//! Programs that fail: for want of memory at each of their acquisitions, because a kernel does not compile, because the driver
//! makes no graph. The error is the caller's, nothing has changed, nothing leaks, and the next call works.

use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_cuda::{Failure, fail_at};
use plimsoll_memory::testing::Fail;
use plimsoll_tensor::{Device, Function, Generator, GradientTape, Result, Tensor, Variable, set_seed};

/// Calls that must succeed: the first ones record, set memory aside for graphs, and capture them.
const N_CALLS: usize = 4;

/// One test at a time: kernels that two programs have in common are loaded once.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<Vec<u32>>,
    weights: Vec<u32>,
    /// How many calls failed, and how many of the others were graphs.
    n_failed: usize,
    n_graphs: u64,
}

/// Calls a train step until it has succeeded so often; `fails` is told before each call how many have failed.
fn train(device: &Device, fails: impl Fn(usize)) -> Result<Outcome> {
    let _on = device.enter();
    set_seed(5);
    let w = Variable::new(Tensor::randn([12, 12])?).named("w");
    let x = Tensor::randn([40, 12])?;
    let step = {
        let w = w.clone();
        Function::new(move |x: Tensor| {
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let mut y = x.clone();
                for _ in 0..6 {
                    y = y.matmul(&w)?.tanh()?.dropout(0.25)?;
                }
                y.square()?.mean(..)
            })?;
            let [grad] = tape.gradient(&loss, [&w])?;
            w.assign_sub(&grad.mul(0.1)?)?;
            Ok(loss)
        })
    };
    let before = device.n_graph_launches();
    let (mut losses, mut n_failed) = (Vec::new(), 0);
    while losses.len() < N_CALLS {
        let state = (bits(&w.value())?, Generator::current(), device.stats().in_use);
        fails(n_failed);
        match step.call(x.clone()) {
            Ok(loss) => losses.push(bits(&loss)?),
            Err(error) => {
                n_failed += 1;
                assert_eq!((bits(&w.value())?, Generator::current()), (state.0, state.1), "{error}");
                assert_eq!(device.pool().verify(), Ok(()), "{error}");
                // What a failed call may leave is the program that it recorded.
                let program = step.cache().device_bytes();
                assert!(device.stats().in_use <= state.2 + program, "{error}");
            }
        }
    }
    let n_graphs = device.n_graph_launches() - before;
    let weights = bits(&w.value())?;
    drop((step, x, w));
    assert_eq!(device.stats().in_use, 0, "everything is given back");
    Ok(Outcome { losses, weights, n_failed, n_graphs })
}

#[test]
fn a_fault_at_each_acquisition_changes_nothing() -> Result<()> {
    let _alone = alone();
    for with_graphs in [false, true] {
        let device = Device::emulated()?;
        device.set_cuda_graphs(with_graphs)?;
        let whole = train(&device, |_| {})?;
        assert_eq!((whole.n_failed, whole.n_graphs > 0), (0, with_graphs));
        let mut n_faults = 0;
        for nth in 1.. {
            // Counted from the first call on; one fault is enough.
            let armed = std::cell::Cell::new(false);
            let fails = |n_failed: usize| {
                if n_failed > 0 {
                    device.pool().fail_acquisitions(Fail::Never);
                } else if !armed.replace(true) {
                    device.pool().fail_acquisition(nth);
                }
            };
            let outcome = train(&device, fails);
            device.pool().fail_acquisitions(Fail::Never);
            let outcome = outcome?;
            assert_eq!((&outcome.losses, &outcome.weights), (&whole.losses, &whole.weights), "{nth}");
            if outcome == whole {
                break;
            }
            n_faults += 1;
        }
        assert!(n_faults > 2 * N_CALLS, "{n_faults} acquisitions failed");
    }
    Ok(())
}

#[test]
fn kernels_that_do_not_compile_and_graphs_that_are_not_made_change_nothing() -> Result<()> {
    let _alone = alone();
    let whole = train(&Device::emulated()?, |_| {})?;
    for (failure, n_failed) in
        [(Failure::Build, 2), (Failure::Capture, 0), (Failure::Patch, 0), (Failure::Launch, 0)]
    {
        let device = Device::emulated()?;
        device.set_cuda_graphs(true)?;
        let outcome = train(&device, |n_failed| fail_at((n_failed < 2).then_some(failure)));
        fail_at(None);
        let outcome = outcome?;
        assert_eq!((&outcome.losses, &outcome.weights), (&whole.losses, &whole.weights), "{failure:?}");
        assert_eq!(outcome.n_failed, n_failed, "{failure:?}");
        // The GPU stays usable.
        assert!(train(&device, |_| {})?.n_graphs > 0, "{failure:?}");
    }
    Ok(())
}

#[test]
fn kernels_that_were_made_for_programs_go_with_the_last_of_them() -> Result<()> {
    let _alone = alone();
    let device = Device::emulated()?;
    let _on = device.enter();
    let n_kernels = || device.gpu().map_or(0, |gpu| gpu.n_generated_kernels());
    let x = Tensor::randn([12, 12])?;
    let make = || Function::new(|x: Tensor| x.exp()?.neg()?.matmul(&x)?.tanh()?.square()?.sum(1));
    let (one, other) = (make(), make());
    let expected = bits(&one.call(x.clone())?)?;
    let n_made = n_kernels();
    assert!(n_made >= 2, "a chain, and one that is reduced: {n_made}");
    assert_eq!((bits(&other.call(x.clone())?)?, n_kernels()), (expected.clone(), n_made));
    drop(one);
    assert_eq!(n_kernels(), n_made);
    other.clear_cache();
    assert_eq!(n_kernels(), 0);
    // They are made anew.
    assert_eq!((bits(&other.call(x.clone())?)?, n_kernels()), (expected, n_made));
    drop(other);
    assert_eq!(n_kernels(), 0);
    // As many as were ever there at a time, however many functions come and go.
    for n in 1..5 {
        let function = Function::new(move |x: Tensor| (0..n).try_fold(x, |x, _| x.sin())?.cos());
        function.call(x.clone())?;
        assert!(n_kernels() <= 1);
    }
    assert_eq!(n_kernels(), 0);
    Ok(())
}
