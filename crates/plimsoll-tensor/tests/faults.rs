//! Values that kernels refuse: on a GPU as on the CPU the error is that of whoever called the op, with the same text, and a
//! step or function in which it happens changes nothing.

use std::sync::mpsc::channel;
use std::thread;

use plimsoll_tensor::{
    DType, Device, Error, Function, Generator, Result, Step, Tensor, Variable, scope, set_seed,
};

/// A GPU with a pool of its own.
fn gpu() -> Device {
    match std::env::var("PLIMSOLL_TEST_DEVICE")
        .ok()
        .and_then(|name| name.strip_prefix("cuda:").map(str::to_owned))
    {
        Some(number) => Device::separate_cuda(number.parse().unwrap()).unwrap(),
        None => Device::emulated().unwrap(),
    }
}

/// An op of whole numbers, shape [2, 3], of which it takes 0 to 4.
type Call = fn(&Tensor) -> Result<Tensor>;

fn table() -> Result<Tensor> {
    Tensor::arange_of(0.0, 15.0, 1.0, DType::F32)?.reshape([5, 3])
}

/// Every op that refuses values, in every way in which a GPU runs it.
const CALLS: &[(&str, Call)] = &[
    ("gather", |ids| table()?.gather(0, ids)),
    ("gather", |ids| table()?.t()?.gather(1, &ids.reshape([3, 2])?)),
    ("gather", |ids| table()?.gather(0, &ids.cast(DType::I32)?)),
    ("index_select", |ids| table()?.index_select(0, &ids.flatten()?)),
    ("index_select", |ids| table()?.t()?.index_select(1, &ids.cast(DType::I32)?)),
    ("embedding", |ids| table()?.embedding(ids)),
    ("embedding", |ids| table()?.embedding(&ids.t()?)),
    ("scatter_add", |ids| table()?.scatter_add(0, ids, &Tensor::ones([2, 3])?)),
    ("index_add", |ids| table()?.index_add(0, &ids.flatten()?, &Tensor::ones([6, 3])?)),
    ("index_add", |ids| table()?.index_add(0, ids, &Tensor::ones([2, 3, 3])?)),
    ("one_hot", |ids| ids.one_hot(5, DType::F32)),
    ("one_hot", |ids| ids.t()?.one_hot(5, DType::I64)?.cast(DType::F32)),
    ("sparse_cross_entropy", |ids| Tensor::ones([2, 3, 5])?.sparse_cross_entropy(ids)),
    ("sparse_cross_entropy", |ids| Tensor::ones([2, 3, 5])?.sparse_cross_entropy_ignoring(ids, -1)),
    ("linear_cross_entropy", |ids| {
        Tensor::ones([2, 3, 4])?.linear_cross_entropy(&Tensor::ones([4, 5])?, ids, None)
    }),
];

fn good() -> Result<Tensor> {
    Tensor::from_slice(&[0i64, 4, 2, 3, 1, 0], [2, 3])
}

/// Three of them are refused.
fn bad() -> Result<Tensor> {
    Tensor::from_slice(&[0i64, 4, 2, -9, 1 << 30, 7], [2, 3])
}

/// What a function says when it fails on a device.
fn told<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> String {
    let _on = device.enter();
    f().map(drop).expect_err("a value is refused").to_string()
}

#[test]
fn eager_code_is_told_by_its_next_read_and_always_the_same_as_on_the_cpu() -> Result<()> {
    let gpu = gpu();
    for (name, call) in CALLS {
        let on_cpu = told(&Device::cpu(), || call(&bad()?));
        assert!(on_cpu.starts_with(&format!("{name}: ")), "{on_cpu}");
        for _ in 0..50 {
            assert_eq!(told(&gpu, || call(&bad()?)?.to_vec::<f32>()), on_cpu);
        }
        let _on = gpu.enter();
        // It is told once, and nothing is broken.
        gpu.synchronize()?;
        let on_gpu = call(&good()?)?.to_vec::<f32>()?;
        let _on = Device::cpu().enter();
        let on_cpu = call(&good()?)?.to_vec::<f32>()?;
        assert!(on_gpu.iter().zip(&on_cpu).all(|(gpu, cpu)| (gpu - cpu).abs() < 1e-5), "{name}");
    }
    let place = "index -9 at [1, 0] is out of range for axis 0 of extent 5; indices go from 0 to 4";
    assert_eq!(told(&gpu, || table()?.embedding(&bad()?)?.to_vec::<f32>()), format!("embedding: {place}"));
    Ok(())
}

#[test]
fn the_first_call_that_refused_is_told_with_its_layer() -> Result<()> {
    let run = || {
        table()?.embedding(&good()?)?;
        scope("encoder", || scope("words", || table()?.gather(0, &bad()?)))?;
        let last = table()?.embedding(&bad()?)?;
        last.to_vec::<f32>()
    };
    let text = told(&gpu(), run);
    assert!(
        text.starts_with("gather: in layer `encoder.words`: index -9 at [1, 0] is out of range"),
        "{text}"
    );
    assert_eq!(text, told(&Device::cpu(), run));
    Ok(())
}

/// Runs a step, once with values that it refuses, and says what came of it: the error, the variable, the next draw.
fn after_bad_and_good<S: FnMut(&Tensor) -> Result<Tensor>>(
    device: &Device,
    step_with: impl FnOnce(Variable) -> S,
) -> Result<(String, Vec<f32>, Vec<f32>, Generator)> {
    let _on = device.enter();
    set_seed(3);
    let variable = Variable::new(Tensor::zeros([])?);
    let mut step = step_with(variable.clone());
    step(&good()?)?;
    let (before, generator) = (variable.to_vec::<f32>()?, Generator::current());
    let error = step(&bad()?).expect_err("a value is refused").to_string();
    assert_eq!((variable.to_vec::<f32>()?, Generator::current()), (before.clone(), generator));
    step(&good()?)?;
    Ok((error, before, variable.to_vec::<f32>()?, Generator::current()))
}

/// Adds the mean of what an op makes, and random numbers, to a variable.
fn add_to(variable: &Variable, ids: &Tensor, call: Call) -> Result<Tensor> {
    let sum = call(ids)?.mean(..)?;
    // A sum of small whole numbers is exact, in whatever order they are added.
    variable.assign_add(
        &sum.mul(0.0)?.add(&Tensor::randint([4], 0, 9, DType::I64)?.cast(DType::F32)?.sum(..)?)?,
    )?;
    Ok(sum)
}

#[test]
fn a_step_returns_its_error_and_changes_nothing() -> Result<()> {
    let gpu = gpu();
    for (name, call) in CALLS {
        let run = |device: &Device| {
            after_bad_and_good(device, |variable| {
                move |ids: &Tensor| Step::run(device, || add_to(&variable, ids, *call))
            })
        };
        assert_eq!(run(&gpu)?, run(&Device::cpu())?, "{name}");
    }
    Ok(())
}

#[test]
fn a_function_returns_its_error_and_changes_nothing() -> Result<()> {
    let gpu = gpu();
    for (name, call) in CALLS {
        let run = |device: &Device| {
            after_bad_and_good(device, |variable| {
                let function = Function::new(move |ids: Tensor| add_to(&variable, &ids, *call));
                move |ids: &Tensor| function.call(ids.clone())
            })
        };
        assert_eq!(run(&gpu)?, run(&Device::cpu())?, "{name}");
    }
    // One without effects, too.
    let pure = Function::new(|ids: Tensor| table()?.embedding(&ids));
    assert_eq!(
        told(&gpu, || pure.call(bad()?)),
        told(&Device::cpu(), || Function::new(|ids: Tensor| table()?.embedding(&ids)).call(bad()?))
    );
    Ok(())
}

#[test]
fn a_step_that_commits_if_finite_waits_for_nothing_and_its_loss_tells() -> Result<()> {
    let device = gpu();
    let _on = device.enter();
    let variable = Variable::new(Tensor::zeros([])?);
    let step = |ids: &Tensor| {
        Step::run(&device, || {
            Step::commit_if_finite(&Tensor::ones([])?.cast(DType::F64)?)?;
            // What comes after `commit_if_finite` counts as well.
            variable.assign_add(&table()?.embedding(ids)?.mean(..)?)
        })?;
        Tensor::ones([])?.to_f64_later()
    };
    let n_waits = || device.gpu().map_or(0, |gpu| gpu.n_waits());
    let (good, bad) = (good()?, bad()?);
    let emulated = device.name() == "emulated";
    let before = n_waits();
    Step::run(&device, || variable.assign_add(&Tensor::ones([])?))?;
    Step::run(&device, || {
        Step::commit_if_finite(&Tensor::ones([])?.cast(DType::F64)?)?;
        variable.assign(&variable.add(&table()?.embedding(&good)?.mean(..)?)?)
    })?;
    assert_eq!(n_waits(), before);
    let first = variable.item::<f32>()?;
    let (one, two, three) = (step(&good)?, step(&bad)?, step(&good)?);
    // On a real GPU numbers come by themselves; the emulated one has no such copies.
    assert!(emulated || n_waits() == before + 1);
    // Nobody else is told, whatever he reads.
    let gained = variable.item::<f32>()? - first;
    device.synchronize()?;
    three.get()?;
    let error = two.get().expect_err("a value is refused").to_string();
    one.get()?;
    assert_eq!(
        error,
        told(&Device::cpu(), || table()?.embedding(&Tensor::from_slice(&bad.to_vec::<i64>()?, [2, 3])?))
    );
    assert_eq!(gained, 2.0 * table()?.embedding(&good)?.mean(..)?.item::<f32>()?);
    // Whoever does not ask is told by the next read.
    drop(step(&bad)?);
    device.synchronize()?;
    let unasked = || {
        Step::run(&device, || {
            Step::commit_if_finite(&Tensor::ones([])?.cast(DType::F64)?)?;
            table()?.gather(0, &bad).map(drop)
        })
    };
    unasked()?;
    let is_told = |error: Error| error.to_string().starts_with("gather: index -9 at [1, 0]");
    assert!(variable.item::<f32>().err().is_some_and(is_told));
    // Whoever never reads anything is told in the end.
    assert!((0..100).find_map(|_| unasked().err()).is_some_and(is_told));
    Ok(())
}

#[test]
fn a_step_that_fails_for_another_reason_says_what_went_wrong_first() -> Result<()> {
    let run = |device: &Device| {
        told(device, || {
            Step::run(device, || {
                table()?.embedding(&bad()?)?;
                Err::<(), Error>(Error::argument("later", "this came second"))
            })
        })
    };
    let gpu = gpu();
    assert_eq!(run(&gpu), run(&Device::cpu()));
    gpu.synchronize()?;
    // A panic is nobody's error.
    let _on = gpu.enter();
    let (table, ids) = (table()?, bad()?);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Step::run(&gpu, || -> Result<()> {
            table.embedding(&ids)?;
            panic!("on purpose")
        })
    }));
    assert!(panicked.is_err());
    gpu.synchronize()
}

#[test]
fn a_value_for_later_tells_or_the_read_before_it() -> Result<()> {
    let device = gpu();
    let _on = device.enter();
    let (table, bad) = (table()?, bad()?);
    let later = table.embedding(&bad)?.mean(..)?.to_f64_later()?;
    assert!(later.get().is_err());
    device.synchronize()?;
    let later = table.embedding(&bad)?.mean(..)?.to_f64_later()?;
    assert!(device.synchronize().is_err());
    later.get()?;
    // One that is dropped hides nothing.
    drop(table.embedding(&bad)?.mean(..)?.to_f64_later()?);
    assert!(device.synchronize().is_err());
    // Neither do more calls than a cell has numbers.
    for _ in 0..5000 {
        table.narrow(1, 0, 1)?.index_select(0, &bad.narrow(0, 0, 1)?.flatten()?)?;
    }
    table.embedding(&bad)?;
    assert!(device.synchronize().expect_err("a value is refused").to_string().starts_with("embedding: "));
    Ok(())
}

#[test]
fn another_pool_is_not_told() -> Result<()> {
    let (one, other) = (gpu(), gpu());
    let on = |device: &Device, ids: fn() -> Result<Tensor>| {
        let _on = device.enter();
        table()?.embedding(&ids()?)
    };
    let refused = on(&one, bad)?;
    on(&other, good)?.to_vec::<f32>()?;
    Step::run(&other, || on(&other, good))?;
    other.synchronize()?;
    assert!(refused.to_vec::<f32>().is_err());
    // A pool that is gone takes its faults along.
    let gone = gpu();
    on(&gone, bad)?;
    drop(gone);
    on(&one, good)?.to_vec::<f32>().map(drop)
}

#[test]
fn another_thread_is_not_told() -> Result<()> {
    let device = &gpu();
    let (told_of_bad, bad_is_issued) = channel();
    let (told_of_good, good_is_read) = channel();
    thread::scope(|threads| {
        let refuses = threads.spawn(move || {
            let _on = device.enter();
            let text = Step::run(device, || {
                table()?.gather(0, &bad()?)?;
                told_of_bad.send(()).expect("the other thread waits");
                good_is_read.recv().expect("the other thread answers");
                Ok(())
            });
            text.expect_err("a value is refused").to_string()
        });
        let reads = threads.spawn(move || {
            let _on = device.enter();
            let variable = Variable::new(Tensor::zeros([])?);
            bad_is_issued.recv().expect("the other thread issues");
            let later = table()?.embedding(&good()?)?.mean(..)?.to_f64_later()?;
            device.synchronize()?;
            Step::run(device, || variable.assign_add(&table()?.embedding(&good()?)?.mean(..)?))?;
            told_of_good.send(()).expect("the other thread waits");
            later.get()?;
            variable.item::<f32>()
        });
        assert!(reads.join().expect("no panic")? > 0.0);
        assert!(refuses.join().expect("no panic").starts_with("gather: index -9 at [1, 0]"));
        Ok(())
    })
}
