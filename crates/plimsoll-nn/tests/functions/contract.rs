//! What a function promises: recorded once per signature, eager's bits wherever it is called, and a word where it cannot
//! keep that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_tensor::{Function, Generator, GradientTape, Recording, Result, Tensor, Variable, set_seed};

use crate::networks::gan;
use crate::sweep::device;

/// How often something was called.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn it_is_recorded_once_per_signature_and_now_and_then_to_compare() -> Result<()> {
    let count = Count::default();
    let calls = count.clone();
    let double = Function::new(move |x: Tensor| {
        calls.up();
        x.add(&x)
    });
    let (three, four) = (Tensor::ones([3])?, Tensor::ones([4])?);
    for _ in 0..9 {
        assert_eq!(double.call(three.clone())?.to_vec::<f32>()?, [2.0; 3]);
    }
    // The first, and the checks after one, two, four and eight.
    assert_eq!(count.get(), 5);
    double.call(four)?;
    assert_eq!((count.get(), double.eager_reason()), (6, None));
    Ok(())
}

#[test]
fn a_result_stays_what_it_was() -> Result<()> {
    let shifted = Function::new(|x: Tensor| x.affine(1.0, 1.0)?.affine(2.0, 0.0));
    let first = shifted.call(Tensor::zeros([5])?)?;
    let second = shifted.call(Tensor::ones([5])?)?;
    assert_eq!((first.to_vec::<f32>()?, second.to_vec::<f32>()?), (vec![2.0; 5], vec![4.0; 5]));
    Ok(())
}

#[test]
fn a_function_that_reads_a_value_runs_eagerly_and_says_where() -> Result<()> {
    let function = Function::new(|x: Tensor| match x.sum(..)?.item::<f32>()? > 0.0 {
        true => x.neg(),
        false => Ok(x),
    });
    assert_eq!(function.call(Tensor::ones([2])?)?.to_vec::<f32>()?, [-1.0; 2]);
    let reason = function.eager_reason().expect("it reads a value");
    assert!(reason.contains("contract.rs") && reason.contains("to_vec"), "{reason}");
    assert_eq!(function.call(Tensor::zeros([2])?)?.to_vec::<f32>()?, [0.0; 2]);
    Ok(())
}

#[test]
fn a_function_that_changes_runs_eagerly_and_says_how() -> Result<()> {
    let (count, seen) = (Count::default(), Count::default());
    let counted = count.clone();
    let function = Function::new(move |x: Tensor| {
        seen.up();
        if counted.get() == 0 { x.sin() } else { x.cos() }
    });
    assert_eq!(function.call(Tensor::zeros([1])?)?.to_vec::<f32>()?, [0.0]);
    count.up();
    assert_eq!(function.call(Tensor::zeros([1])?)?.to_vec::<f32>()?, [1.0]);
    let reason = function.eager_reason().expect("it changed");
    assert!(reason.contains("Sin") && reason.contains("Cos"), "{reason}");
    Ok(())
}

#[test]
fn under_a_tape_it_gives_eagers_gradients() -> Result<()> {
    let w = Variable::new(Tensor::from_vec(vec![1.0f32, -2.0, 3.0])?);
    let inside = w.clone();
    let function = Function::new(move |x: Tensor| x.mul(&inside)?.tanh()?.sum(..));
    let x = Tensor::from_vec(vec![0.5f32, 0.25, -0.125])?;
    function.call(x.clone())?;
    let gradients = |call: &dyn Fn() -> Result<Tensor>| -> Result<Vec<Vec<f32>>> {
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let y = tape.record(call)?;
        tape.gradient(&y, [&x, &w])?.iter().map(|gradient| gradient.to_vec::<f32>()).collect()
    };
    let eager = gradients(&|| x.mul(&w)?.tanh()?.sum(..))?;
    assert_eq!(gradients(&|| function.call(x.clone()))?, eager);
    Ok(())
}

#[test]
fn inside_another_function_it_is_part_of_its_program() -> Result<()> {
    let inner = Function::new(|x: Tensor| x.dropout(0.5));
    let outer = Function::new(move |x: Tensor| inner.call(x)?.affine(3.0, 0.0));
    let x = Tensor::ones([64])?;
    let run = |call: &dyn Fn() -> Result<Tensor>| -> Result<(Vec<f32>, Generator)> {
        set_seed(7);
        call()?;
        Ok((call()?.to_vec()?, Generator::current()))
    };
    assert_eq!(run(&|| outer.call(x.clone()))?, run(&|| x.dropout(0.5)?.affine(3.0, 0.0))?);
    Ok(())
}

#[test]
fn two_threads_may_call_it() -> Result<()> {
    let function = Arc::new(Function::new(|x: Tensor| x.matmul(&x)?.sum(..)));
    let expected = {
        let x = Tensor::arange(64)?.reshape([8, 8])?;
        x.matmul(&x)?.sum(..)?.item::<f32>()?
    };
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let function = function.clone();
            std::thread::spawn(move || -> Result<Vec<f32>> {
                let x = Tensor::arange(64)?.reshape([8, 8])?;
                (0..50).map(|_| function.call(x.clone())?.item::<f32>()).collect()
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().expect("no panic")?.iter().all(|&sum| sum == expected));
    }
    Ok(())
}

#[test]
fn variables_that_it_makes_are_its_own() -> Result<()> {
    // The function keeps a state, as a layer that is made when it is first called does.
    let step = |x: &Tensor, weight: &Variable, total: &Variable| -> Result<Tensor> {
        let y = x.dropout(0.5)?.mul(weight)?;
        total.assign_add(&y)?;
        total.add(&y)
    };
    set_seed(11);
    let x = Tensor::ones([32])?;
    let function = Function::new(move |x: Tensor| {
        let weight = Variable::new(Tensor::randn([32])?.affine(0.5, 0.0)?);
        let total = Variable::new(Tensor::zeros([32])?);
        step(&x, &weight, &total)
    });
    let called: Vec<Vec<f32>> = (0..5).map(|_| function.call(x.clone())?.to_vec()).collect::<Result<_>>()?;
    assert_eq!((function.eager_reason(), function.variables().len()), (None, 2));
    set_seed(11);
    let weight = Variable::new(Tensor::randn([32])?.affine(0.5, 0.0)?);
    let total = Variable::new(Tensor::zeros([32])?);
    let eager: Vec<Vec<f32>> = (0..5).map(|_| step(&x, &weight, &total)?.to_vec()).collect::<Result<_>>()?;
    assert_eq!(called, eager);
    Ok(())
}

#[test]
fn a_model_and_an_optimizer_may_be_made_inside() -> Result<()> {
    use std::sync::OnceLock;

    use plimsoll_nn::layers::Dense;
    use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
    use plimsoll_nn::{Layer, Mode, Model};

    let train = |model: &OnceLock<Model>, optimizer: &std::sync::Mutex<_>, x: &Tensor| -> Result<Tensor> {
        if model.get().is_none() {
            let _ = model.set(Dense::new(3).build([4])?);
        }
        let Some(model) = model.get() else { unreachable!("it has just been made") };
        let (variables, tape) = (model.trainable_variables(), GradientTape::new());
        let loss = tape.record(|| model.forward(x, Mode::Train)?.square()?.mean(..))?;
        let gradients = tape.variable_gradients(&loss, &variables)?;
        let mut optimizer: std::sync::MutexGuard<'_, plimsoll_nn::optimizers::Optimizer> =
            optimizer.lock().expect("nobody panics");
        optimizer.apply_gradients(gradients, &variables)?;
        Ok(loss.stop_gradient())
    };
    let losses = |call: &dyn Fn(Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        set_seed(12);
        let x = Tensor::arange(20)?.reshape([5, 4])?;
        (0..6).map(|_| call(x.clone())?.item()).collect()
    };
    let new = || (OnceLock::new(), std::sync::Mutex::new(Adam::new(0.01).build()));
    let (model, optimizer) = new();
    let eager = losses(&|x| train(&model, &optimizer, &x))?;
    let (model, optimizer) = new();
    let function = Function::new(move |x: Tensor| train(&model, &optimizer, &x));
    assert_eq!(losses(&|x| function.call(x))?, eager);
    assert_eq!(function.eager_reason(), None);
    assert!(eager.windows(2).all(|pair| pair[1] < pair[0]), "{eager:?}");
    Ok(())
}

#[test]
fn a_variable_more_than_at_first_is_an_error_with_the_line() -> Result<()> {
    let count = Count::default();
    let calls = count.clone();
    let function = Function::new(move |x: Tensor| {
        calls.up();
        match calls.get() > 2 {
            true => Variable::new(Tensor::ones([2])?).mul(&x),
            false => x.neg(),
        }
    });
    function.call(Tensor::ones([2])?)?;
    function.call(Tensor::ones([2])?)?;
    assert_eq!((count.get(), function.eager_reason()), (2, None));
    let text = function.call(Tensor::ones([2])?).unwrap_err().to_string();
    assert!(text.contains("make it outside") && text.contains("contract.rs"), "{text}");
    Ok(())
}

#[test]
fn one_variable_more_at_each_call_is_an_error_and_no_endless_recording() -> Result<()> {
    let calls = Count::default();
    let function = Function::new(move |x: Tensor| {
        calls.up();
        for _ in 0..calls.get() {
            Variable::new(Tensor::ones([2])?);
        }
        x.neg()
    });
    let text = function.call(Tensor::ones([2])?).unwrap_err().to_string();
    assert!(text.contains("make it outside") && text.contains("contract.rs"), "{text}");
    Ok(())
}

#[test]
fn a_number_that_changes_is_followed_from_call_to_call() -> Result<()> {
    let count = Count::default();
    let number = count.clone();
    let scaled = Function::new(move |x: Tensor| x.affine(number.get() as f64, 1.0));
    for expected in 0..20 {
        let y = scaled.call(Tensor::ones([2])?)?.to_vec::<f32>()?;
        assert_eq!(y, [expected as f32 + 1.0; 2]);
        count.up();
    }
    assert_eq!(scaled.eager_reason(), None);
    Ok(())
}

#[test]
fn a_failing_call_changes_nothing_and_the_next_works() -> Result<()> {
    let device = device();
    let _on = device.enter();
    let network = gan()?;
    let function = Function::new(network.step);
    function.prepare(network.batch.clone())?;
    // As bits, because a number that is not set is none.
    let bits = |v: &Variable| Ok(v.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    let values = || network.state.iter().map(bits).collect::<Result<Vec<Vec<u64>>>>();
    let (before, generator) = (values()?, Generator::current());
    let in_use = device.stats().in_use;
    let least = function.least_limit(network.batch.clone())?;
    device.trim();
    device.set_limit(Some(plimsoll_tensor::Bytes::new(device.stats().committed)))?;
    assert!(function.call(network.batch.clone()).is_err(), "it cannot do without memory");
    assert!(before == values()?, "a failed call changes no variable");
    assert_eq!((Generator::current(), device.stats().in_use), (generator, in_use));
    device.set_limit(Some(plimsoll_tensor::Bytes::new(least)))?;
    function.call(network.batch.clone())?;
    assert!(before != values()?, "a refusal is not remembered");
    Ok(())
}

#[test]
fn parts_of_a_tensor_have_one_program() -> Result<()> {
    let count = Count::default();
    let calls = count.clone();
    let function = Function::new(move |x: Tensor| {
        calls.up();
        Ok((x.narrow(0, 1, 2)?, x.sum(..)?))
    })
    .recording(Recording::Once);
    let all = Tensor::arange(8 * 256)?.reshape([8, 256])?;
    for start in [0, 2, 4] {
        let part = all.narrow(0, start, 4)?;
        let (middle, sum) = function.call(part.clone())?;
        assert_eq!(middle.to_vec::<f32>()?, part.narrow(0, 1, 2)?.to_vec::<f32>()?);
        assert_eq!(sum.item::<f32>()?, part.sum(..)?.item::<f32>()?);
    }
    assert_eq!(count.get(), 1);
    // One that begins where no block could has its own.
    let odd = all.flatten()?.narrow(0, 1, 1024)?.reshape([4, 256])?;
    assert_eq!(function.call(odd.clone())?.1.item::<f32>()?, odd.sum(..)?.item::<f32>()?);
    assert_eq!(count.get(), 2);
    Ok(())
}
