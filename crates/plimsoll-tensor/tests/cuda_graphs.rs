//! Programs as CUDA graphs: the bits of launches, whatever changes from run to run; memory that is set aside and given back;
//! failures that end in launches.
//!
//! The GPU is the one that `PLIMSOLL_TEST_DEVICE` names, or else the emulated one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_cuda::{Failure, fail_at};
use plimsoll_tensor::{
    Bytes, Device, Function, GradientTape, Result, Tensor, Variable, clear_session, set_seed,
};
use plimsoll_testkit::device_under_test;

/// One test at a time: clearing the session is about the programs of all.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu() -> Result<Device> {
    match std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu") {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    }
}

/// A train step with dropout, whose batch moves, and what ten runs of it leave.
struct Outcome {
    losses: Vec<u32>,
    weights: Vec<u32>,
    n_graphs: u64,
    /// The bytes of the driver's that the function says its executables have.
    graph_bytes: u64,
    peak: u64,
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

fn train(device: &Device, with_graphs: bool) -> Result<Outcome> {
    device.set_cuda_graphs(with_graphs)?;
    let _on = device.enter();
    set_seed(7);
    let w = Variable::new(Tensor::randn([24, 16])?).named("w");
    let v = Variable::new(Tensor::randn([16, 24])?).named("v");
    let step = {
        let (w, v) = (w.clone(), v.clone());
        Function::new(move |x: Tensor| {
            let tape = GradientTape::new();
            let loss = tape.record(|| {
                let mut y = x.matmul(&w)?.tanh()?.dropout(0.25)?.matmul(&v)?;
                for _ in 0..4 {
                    y = y.matmul(&w)?.tanh()?.matmul(&v)?.tanh()?;
                }
                y.square()?.mean(..)
            })?;
            let [dw, dv] = tape.gradient(&loss, [&w, &v])?;
            w.assign_sub(&dw.mul(0.1)?)?;
            v.assign_sub(&dv.mul(0.1)?)?;
            Ok(loss)
        })
    };
    let before = device.n_graph_launches();
    let (mut losses, mut held) = (Vec::new(), Vec::new());
    for idx in 0..10 {
        let x = Tensor::randn([64, 24])?;
        let loss = step.call(x.clone())?;
        losses.extend(bits(&loss)?);
        // Batches that stay, and losses, so that the next ones lie elsewhere.
        if idx < 3 {
            held.push((x, loss));
        }
    }
    let kept: Result<Vec<Vec<u32>>> = held.iter().map(|(_, loss)| bits(loss)).collect();
    assert_eq!(kept?.concat(), losses[..3], "what a run returned stays what it was");
    let weights = [bits(&w.value())?, bits(&v.value())?].concat();
    let (n_graphs, graph_bytes) = (device.n_graph_launches() - before, step.cache().device_bytes());
    let peak = device.stats().peak_in_use;
    Ok(Outcome { losses, weights, n_graphs, graph_bytes, peak })
}

fn assert_same(graphs: &Outcome, launches: &Outcome) {
    assert_eq!((&graphs.losses, &graphs.weights), (&launches.losses, &launches.weights));
    assert_eq!((launches.n_graphs, launches.graph_bytes), (0, 0));
}

#[test]
fn a_function_has_the_bits_of_launches() -> Result<()> {
    let _alone = alone();
    let device = gpu()?;
    let (launches, graphs) = (train(&device, false)?, train(&device, true)?);
    assert_same(&graphs, &launches);
    assert!(graphs.n_graphs >= 4, "{} of ten runs were graphs", graphs.n_graphs);
    assert!(graphs.graph_bytes > 0 && device.graph_bytes() >= graphs.graph_bytes);
    assert_eq!(graphs.peak, launches.peak, "executables are in no block");
    Ok(())
}

#[test]
fn a_limit_with_recomputation_holds() -> Result<()> {
    let _alone = alone();
    // Twelve activations of 1 MiB each are saved.
    let train = |limit: Option<u64>, with_graphs: bool| -> Result<Trained> {
        let device = gpu()?;
        let device = match limit {
            Some(bytes) => device.limit(Bytes::new(bytes))?,
            None => device,
        };
        device.set_cuda_graphs(with_graphs)?;
        let _on = device.enter();
        set_seed(3);
        let w = Variable::new(Tensor::randn([32, 32])?.mul(0.1)?).named("w");
        let x = Tensor::randn([8192, 32])?;
        let step = {
            let w = w.clone();
            Function::new(move |x: Tensor| {
                let tape = GradientTape::new();
                let loss = tape.record(|| {
                    let mut y = x.matmul(&w)?.tanh()?;
                    for _ in 0..11 {
                        y = y.matmul(&w)?.tanh()?;
                    }
                    y.square()?.mean(..)
                })?;
                let [grad] = tape.gradient(&loss, [&w])?;
                w.assign_sub(&grad.mul(0.1)?)?;
                Ok(loss)
            })
        };
        let losses: Result<Vec<Vec<u32>>> = (0..5).map(|_| bits(&step.call(x.clone())?)).collect();
        if let Some(bytes) = limit {
            assert!(device.stats().peak_committed <= bytes, "{bytes} bytes");
        }
        let (n_graphs, n_recomputed) = (device.n_graph_launches(), device.recomputed().ops);
        Ok(Trained { losses: losses?.concat(), n_graphs, n_recomputed, least: step.least_limit(x)? })
    };
    let natural = train(None, false)?;
    // The least is the program's own; a MiB of granules and the memory of graphs are beside it.
    let limited = train(Some(natural.least + (4 << 20)), true)?;
    assert_eq!(limited.losses, natural.losses);
    let Trained { n_graphs, n_recomputed, .. } = limited;
    assert!(n_graphs >= 2 && n_recomputed > 0, "{n_graphs} graphs, {n_recomputed} ops recomputed");
    Ok(())
}

/// Five steps of a function, and the least limit that it can run under.
struct Trained {
    losses: Vec<u32>,
    n_graphs: u64,
    n_recomputed: u64,
    least: u64,
}

#[test]
fn failures_end_in_launches() -> Result<()> {
    let _alone = alone();
    // Only the emulated GPU fails when it is told to.
    let launches = train(&Device::emulated()?, false)?;
    for failure in [Failure::Capture, Failure::Patch, Failure::Launch] {
        let device = Device::emulated()?;
        fail_at(Some(failure));
        let graphs = train(&device, true);
        fail_at(None);
        let graphs = graphs?;
        assert_same(&graphs, &launches);
        assert!(graphs.n_graphs <= 2, "{failure:?}: {} graphs", graphs.n_graphs);
        // The GPU stays usable, and what comes next runs as graphs again.
        assert!(train(&device, true)?.n_graphs >= 4, "{failure:?}");
    }
    Ok(())
}

#[test]
fn clearing_the_session_gives_executables_back() -> Result<()> {
    let _alone = alone();
    let device = gpu()?;
    device.set_cuda_graphs(true)?;
    let _on = device.enter();
    let square = Function::new(|x: Tensor| x.matmul(&x)?.tanh()?.square());
    let x = Tensor::randn([32, 32])?;
    let expected = bits(&square.call(x.clone())?)?;
    for _ in 0..4 {
        assert_eq!(bits(&square.call(x.clone())?)?, expected);
    }
    assert!(square.cache().device_bytes() > 0);
    clear_session();
    assert_eq!(square.cache().device_bytes(), 0);
    assert_eq!(bits(&square.call(x)?)?, expected);
    Ok(())
}

#[test]
fn work_of_another_thread_ends_a_recording() -> Result<()> {
    let _alone = alone();
    let device = gpu()?;
    device.set_cuda_graphs(true)?;
    let alone = {
        let _on = device.enter();
        bits(&Tensor::ones([64, 64])?.matmul(&Tensor::ones([64, 64])?)?)?
    };
    let other = device.clone();
    let busy = std::thread::spawn(move || -> Result<bool> {
        let _on = other.enter();
        let x = Tensor::ones([64, 64])?;
        let product = || bits(&x.matmul(&x)?);
        (0..40).try_fold(true, |is_same, _| Ok(is_same && product()? == alone))
    });
    let launches = train(&gpu()?, false)?;
    let graphs = train(&device, true)?;
    assert!(busy.join().expect("it does not panic")?);
    assert_same(&graphs, &launches);
    Ok(())
}

/// A function of a few products, which is a program for each number of rows.
fn chain() -> Result<Function<Tensor, Tensor, impl Fn(Tensor) -> Result<Tensor>>> {
    let w = Tensor::randn([16, 16])?.mul(0.1)?;
    Ok(Function::new(move |x: Tensor| {
        let mut y = x.matmul(&w)?;
        for _ in 0..12 {
            y = y.matmul(&w)?;
        }
        y.sum(..)
    }))
}

#[test]
fn programs_share_the_room_for_executables() -> Result<()> {
    let _alone = alone();
    let device = gpu()?.limit(Bytes::mib(256))?;
    device.set_cuda_graphs(true)?;
    let _on = device.enter();
    let (aside, step) = (device.pool().aside(), chain()?);
    let run = |rows: usize| -> Result<bool> {
        let before = device.n_graph_launches();
        step.call(Tensor::ones([rows, 16])?)?;
        assert!(step.cache().device_bytes() <= device.graph_bytes() && device.graph_bytes() <= aside);
        Ok(device.n_graph_launches() > before)
    };
    // More programs than there is room for; the first ones have it.
    let mut were_graphs = Vec::new();
    for rows in 1..=48 {
        were_graphs.push((0..5).try_fold(false, |any, _| Ok::<_, plimsoll_tensor::Error>(any | run(rows)?))?);
    }
    assert!(were_graphs[0]);
    if device.name() == "emulated" {
        assert!(!were_graphs[47], "{aside} bytes are enough for 48 programs");
        // One that goes on alone has room once the others have not run for long, and no other program had to give way lately.
        let runs = (0..400).map(|_| run(48)).collect::<Result<Vec<bool>>>()?;
        let first = runs.iter().position(|&is_graph| is_graph).unwrap_or(runs.len());
        assert!((1..300).contains(&first) && runs[first..].iter().all(|&is_graph| is_graph), "{first}");
    }
    drop(step);
    assert!(device.graph_bytes() > 0, "a driver keeps what it has taken");
    Ok(())
}

#[test]
fn a_lower_limit_leaves_less_room() -> Result<()> {
    let _alone = alone();
    let device = gpu()?;
    device.set_cuda_graphs(true)?;
    let _on = device.enter();
    let (step, x) = (chain()?, Tensor::ones([64, 16])?);
    let expected = bits(&step.call(x.clone())?)?;
    for _ in 0..4 {
        assert_eq!(bits(&step.call(x.clone())?)?, expected);
    }
    let (taken, executables) = (device.graph_bytes(), step.cache().device_bytes());
    assert!(taken >= executables && executables > 0);
    // There is no room for any under this limit, but what the driver has taken counts.
    let (limit, committed) = (Bytes::mib(16), device.stats().committed);
    device.set_limit(Some(limit))?;
    assert_eq!(device.pool().aside(), taken.max(device.pool().aside()));
    assert!(committed + device.pool().aside() <= limit.get());
    device.set_cuda_graphs(false)?;
    assert_eq!((step.cache().device_bytes(), device.pool().aside()), (0, taken));
    assert_eq!(bits(&step.call(x.clone())?)?, expected);
    // A ghost predicts with the same room.
    assert_eq!(device.ghost().pool().capacity(), device.pool().capacity());
    Ok(())
}

#[test]
fn the_least_limit_has_room_for_what_is_set_aside() -> Result<()> {
    let _alone = alone();
    let least = |with_graphs: bool| -> Result<u64> {
        let device = gpu()?;
        device.set_cuda_graphs(with_graphs)?;
        let _on = device.enter();
        let (step, x) = (chain()?, Tensor::ones([65536, 16])?);
        let least = step.least_limit(x.clone())?;
        device.set_limit(Some(Bytes::new(least - device.pool().granule())))?;
        let refused = step.call(x.clone()).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        device.set_limit(Some(Bytes::new(least)))?;
        (0..4).try_for_each(|_| step.call(x.clone()).map(drop))?;
        assert!(device.stats().peak_committed + device.pool().aside() <= least);
        Ok(least)
    };
    let (launches, graphs) = (least(false)?, least(true)?);
    assert!(launches < graphs && graphs <= launches + launches / 63 + 1, "{launches} and {graphs}");
    Ok(())
}
