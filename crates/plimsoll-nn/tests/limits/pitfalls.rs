//! The known ways in which computing again goes wrong, one test each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_nn::layers::{BatchNormalization, Conv2D, Dense, Flatten, Sequential};
use plimsoll_nn::{Layer, Mode};
use plimsoll_tensor::op::{Meta, Outputs, Run, SavedRef, SavedRefs, one};
use plimsoll_tensor::{
    Backward, Bytes, Device, Function, GradientTape, Op, OpRef, Result, Step, Tensor, Variable, apply, scope,
    set_seed,
};

use crate::run::device;

/// Enough for everything here: a limit there must be, or there is no log of the step.
const ROOMY: Bytes = Bytes::new(1 << 30);

/// A device whose guard is awake.
fn limited() -> Result<Device> {
    device().limit(ROOMY)
}

/// Makes the evictor free everything that it can: an acquisition of that many bytes is refused once.
fn squeeze(device: &Device) -> Result<()> {
    device.pool().fail_acquisition(1);
    Tensor::zeros([1 << 20]).map(drop)
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect())
}

/// Runs `f` twice, where its calls of the function that it is given do nothing and where they squeeze: the same bits, and
/// something was recomputed.
#[track_caller]
fn same_when_squeezed(f: impl Fn(&dyn Fn() -> Result<()>) -> Result<Vec<Tensor>>) -> Result<u64> {
    let mut seen = Vec::new();
    let mut repeated = 0;
    for squeezes in [false, true] {
        let device = limited()?;
        let _on = device.enter();
        set_seed(8);
        let gradients = f(&|| if squeezes { squeeze(&device) } else { Ok(()) })?;
        seen.push(gradients.iter().map(bits).collect::<Result<Vec<_>>>()?);
        drop(gradients);
        assert_eq!(device.pool().verify(), Ok(()));
        assert_eq!(device.stats().in_use, 0, "something is held after the run");
        repeated = device.recomputed().ops;
    }
    assert_eq!(seen[0], seen[1]);
    assert!(repeated > 0, "nothing was recomputed");
    Ok(repeated)
}

fn kernel() -> Result<Variable> {
    Ok(Variable::new(Tensor::randn([48, 48])?))
}

#[test]
fn dropout_draws_the_same_again() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let (x, v, w) = (Tensor::randn([64, 48])?, kernel()?, kernel()?);
        let tape = GradientTape::new();
        let y = tape.record(|| x.matmul(&v)?.tanh()?.dropout(0.5)?.matmul(&w)?.dropout(0.5)?.square())?;
        squeeze()?;
        // The draws of backward, if there were any, and those after it do not depend on what was recomputed.
        let next = Tensor::randn([4])?;
        Ok([&tape.gradient(&y, [&v, &w])?[..], &[next, Tensor::randn([4])?]].concat())
    })?;
    Ok(())
}

#[test]
fn running_statistics_are_updated_once() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let layers = Sequential::new()
            .add(Conv2D::new(8, 3).no_bias())
            .add(BatchNormalization::new())
            .add(Conv2D::new(8, 3).no_bias())
            .add(BatchNormalization::new())
            .add(Flatten::new())
            .add(Dense::new(3));
        let model = layers.build([10, 10, 2])?;
        let x = Tensor::randn([8, 10, 10, 2])?;
        let variables = model.trainable_variables();
        let versions = || model.variables().iter().map(Variable::version).collect::<Vec<u64>>();
        let before = versions();
        let gradients = Step::run(&x.device(), || {
            let tape = GradientTape::new();
            let y = tape.record(|| model.forward(&x, Mode::Train)?.square()?.sum(..))?;
            squeeze()?;
            tape.variable_gradients(&y, &variables)
        })?;
        let n_updated: u64 = versions().iter().zip(before).map(|(after, before)| after - before).sum();
        assert_eq!(n_updated, 4, "a mean and a variance for each of two layers, once");
        Ok(gradients.into_iter().chain(model.variables().iter().map(Variable::value)).collect())
    })?;
    Ok(())
}

#[test]
fn a_variable_that_is_assigned_before_backward() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let (x, v, w) = (Tensor::randn([64, 48])?, kernel()?, kernel()?);
        let tape = GradientTape::new();
        let y = tape.record(|| x.matmul(&v)?.tanh()?.matmul(&w)?.square())?;
        squeeze()?;
        v.assign(&Tensor::zeros([48, 48])?)?;
        Ok(tape.gradient(&y, [&v, &w])?.into())
    })?;
    Ok(())
}

#[test]
fn a_variable_that_is_assigned_inside_the_step() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let (x, v, w) = (Tensor::randn([64, 48])?, kernel()?, kernel()?);
        Step::run(&x.device(), || {
            let tape = GradientTape::new();
            let y = tape.record(|| x.matmul(&v)?.tanh()?.matmul(&w)?.square())?;
            squeeze()?;
            // It is read as zeros from here on, by everybody but those who have read it.
            v.assign(&Tensor::zeros([48, 48])?)?;
            Ok([&tape.gradient(&y, [&v, &w])?[..], &[v.value()]].concat())
        })
    })?;
    Ok(())
}

#[test]
fn a_value_read_after_an_assignment_in_the_step() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let (x, v, w, other) = (Tensor::randn([64, 48])?, kernel()?, kernel()?, kernel()?);
        Step::run(&x.device(), || {
            v.assign(&other.value())?;
            let tape = GradientTape::new();
            let y = tape.record(|| x.matmul(&v)?.tanh()?.matmul(&w)?.square())?;
            v.assign(&Tensor::zeros([48, 48])?)?;
            squeeze()?;
            Ok(tape.gradient(&y, [&v, &w])?.into())
        })
    })?;
    Ok(())
}

#[test]
fn a_variable_that_was_overwritten_in_place_before_memory_was_short() -> Result<()> {
    let device = limited()?;
    let _on = device.enter();
    let (v, w) = (kernel()?, kernel()?);
    let tape = GradientTape::new();
    let y = tape.record(|| {
        // Nobody watches this read of `v`, so nobody holds it when it is written over.
        let h = v.value().stop_gradient().exp()?;
        h.matmul(&w)
    })?;
    let expected = bits(&v.value().exp()?.transpose(0, 1)?.matmul(&Tensor::ones_like(&y)?)?)?;
    v.assign(&Tensor::zeros([48, 48])?)?;
    // What the exponential was made from is gone, so it is not evicted, and there is nothing else.
    assert!(squeeze(&device).unwrap_err().is_out_of_memory());
    assert_eq!(bits(&tape.gradient(&y, [&w])?[0])?, expected);
    Ok(())
}

#[test]
fn an_input_that_is_dropped_after_memory_was_short() -> Result<()> {
    same_when_squeezed(|squeeze| {
        let w = kernel()?;
        let x = Tensor::randn([64, 48])?;
        let tape = GradientTape::new();
        // What is saved is the exponential; nothing but the evictor holds what it is computed from.
        let y = tape.record(|| x.exp()?.matmul(&w))?;
        squeeze()?;
        drop(x);
        Ok(tape.gradient(&y, [&w])?.into())
    })?;
    Ok(())
}

#[test]
fn an_input_that_was_dropped_before_memory_was_short() -> Result<()> {
    let device = limited()?;
    let _on = device.enter();
    let (v, w) = (kernel()?, kernel()?);
    let x = Tensor::randn([64, 48])?;
    let tape = GradientTape::new();
    let y = tape.record(|| x.exp()?.matmul(&v)?.tanh()?.matmul(&w))?;
    drop(x);
    squeeze(&device)?;
    // The exponential cannot be recomputed and stays; the hyperbolic tangent is recomputed from it.
    let [dv, dw] = tape.gradient(&y, [&v, &w])?;
    assert!(device.recomputed().ops > 0);
    assert_eq!((dv.shape(), dw.shape()), (v.shape(), w.shape()));
    Ok(())
}

#[test]
fn views_of_one_storage_are_evicted_together_and_recomputed_once() -> Result<()> {
    let repeated = same_when_squeezed(|squeeze| {
        let (x, v, w) = (Tensor::randn([48, 48])?, kernel()?, kernel()?);
        let tape = GradientTape::new();
        let y = tape.record(|| {
            let h = x.matmul(&v)?.exp()?;
            let turned = h.transpose(0, 1)?;
            let part = h.narrow(0, 8, 40)?;
            turned.matmul(&w)?.sum(..)?.add(&part.matmul(&w)?.sum(..)?)
        })?;
        squeeze()?;
        Ok(tape.gradient(&y, [&v, &w])?.into())
    })?;
    assert_eq!(repeated, 2, "the product and its exponential");
    Ok(())
}

#[test]
fn a_value_that_several_ops_save_is_recomputed_once() -> Result<()> {
    let repeated = same_when_squeezed(|squeeze| {
        let (x, v) = (Tensor::randn([64, 48])?, kernel()?);
        let kernels: Vec<Variable> = (0..5).map(|_| kernel()).collect::<Result<_>>()?;
        let tape = GradientTape::new();
        let y = tape.record(|| {
            let h = x.matmul(&v)?.exp()?;
            kernels.iter().map(|w| h.matmul(w)?.sum(..)).reduce(|a, b| a?.add(&b?)).unwrap_or(Ok(h))
        })?;
        squeeze()?;
        tape.variable_gradients(&y, &kernels)
    })?;
    assert_eq!(repeated, 2, "the product and its exponential, for five readers");
    Ok(())
}

/// Multiplies by how often it has run: not a function of its input.
#[derive(Debug)]
struct Impure(Arc<AtomicU32>);

impl Op for Impure {
    fn name(&self) -> &'static str {
        "impure"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let factor = self.0.fetch_add(1, Ordering::Relaxed) as f32;
        let (inputs, mut outputs) = run.slices::<f32>(self.name())?;
        for (y, x) in outputs[0].iter_mut().zip(inputs[0]) {
            *y = x * factor;
        }
        Ok(())
    }

    fn saved(&self, _wanted: &[bool]) -> SavedRefs {
        SavedRefs::from_slice(&[SavedRef::Input(0)])
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        backward.set_grad(0, gradient)
    }
}

#[test]
fn an_impure_op_is_caught_and_named() -> Result<()> {
    let device = limited()?;
    let _on = device.enter();
    let w = kernel()?;
    let x = Tensor::randn([64, 48])?;
    let gradient = || {
        let tape = GradientTape::new();
        let y = tape.record(|| {
            let impure = OpRef::new(Impure(Arc::default()));
            let h = scope("noisy", || apply(impure, &[&x]))?.remove(0);
            h.matmul(&w)
        })?;
        squeeze(&device)?;
        tape.gradient(&y, [&w]).map(|_| ())
    };
    // Nobody looks: the gradient is wrong, and nobody knows.
    gradient()?;
    device.set_verify(true);
    let error = gradient().unwrap_err().to_string();
    for word in ["impure", "noisy", file!(), "not what it was"] {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    device.set_verify(false);
    gradient()
}

#[test]
fn a_planned_function_is_compared_with_one_that_is_not() -> Result<()> {
    let device = limited()?;
    let _on = device.enter();
    let function = |op: OpRef| {
        Function::new(move |x: Tensor| {
            scope("noisy", || apply(op.clone(), &[&x]))?.remove(0).square()?.sum(..)
        })
    };
    let impure = function(OpRef::new(Impure(Arc::default())));
    impure.call(Tensor::ones([64])?)?;
    device.set_verify(true);
    let error = impure.call(Tensor::ones([64])?).unwrap_err().to_string();
    for word in ["impure", "noisy", file!(), "not what it was"] {
        assert!(error.contains(word), "no {word:?} in: {error}");
    }
    let pure = Function::new(|x: Tensor| x.dropout(0.5)?.square()?.sum(..));
    (0..5).try_for_each(|_| pure.call(Tensor::ones([64])?).map(drop))
}
