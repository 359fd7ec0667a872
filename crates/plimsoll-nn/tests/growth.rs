//! Leaks are named by the line and layer that made the values, within ten steps; clean runs have none.

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{Dense, Embedding, LSTM, Sequential};
use plimsoll_nn::losses::{MeanSquaredError, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::callbacks::WatchGrowth;
use plimsoll_nn::train::{Batch, Trainer, Until};
use plimsoll_nn::{Layer, Model};
use plimsoll_report::{Growth, GrowthWatch};
use plimsoll_tensor::{Activation, DType, Device, Function, GradientTape, Owner, Result, Tensor, Variable};

/// What grew after so many steps, on a device of its own.
fn after(n_steps: usize, f: impl FnOnce() -> Result<Box<dyn FnMut() -> Result<()>>>) -> Result<Vec<Growth>> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (mut step, mut watch) = (f()?, GrowthWatch::default());
    for _ in 0..n_steps {
        step()?;
        watch.mark(device.pool());
    }
    Ok(watch.growth())
}

/// Owner, line and layer of all that grew in eleven steps: ten after the first.
fn leaks(f: impl FnOnce() -> Result<Box<dyn FnMut() -> Result<()>>>) -> Result<Vec<(Owner, u64, String)>> {
    let growth = after(11, f)?;
    for row in &growth {
        assert!(row.site.file.ends_with("growth.rs"), "{row}");
        assert!(row.added_blocks >= 10, "{row}");
    }
    Ok(growth.into_iter().map(|row| (row.owner, row.site.line, row.site.scope)).collect())
}

fn weights() -> Result<(Tensor, Variable)> {
    Ok((Tensor::ones([64, 32])?, Variable::new(Tensor::ones([32, 16])?).named("w")))
}

fn model() -> Result<Model> {
    Sequential::new()
        .add(Dense::new(16).activation(Activation::Tanh))
        .add(Dense::new(1).named("head"))
        .build([4])
}

const LOSS: u32 = line!() + 8;

#[test]
fn losses_in_a_list_are_named() -> Result<()> {
    let found = leaks(|| {
        let ((x, w), mut losses) = (weights()?, Vec::new());
        Ok(Box::new(move || {
            let tape = GradientTape::new();
            let loss = tape.record(|| x.matmul(&w)?.mean(..))?;
            tape.gradient(&loss, [&w])?;
            losses.push(loss);
            Ok(())
        }))
    })?;
    assert_eq!(found, [(Owner::Temporary, LOSS.into(), String::new())]);
    Ok(())
}

const RECORDED: u32 = line!() + 8;

#[test]
fn a_tape_that_is_kept_is_named_by_what_it_saved() -> Result<()> {
    let found = leaks(|| {
        let ((x, w), mut tapes) = (weights()?, Vec::new());
        Ok(Box::new(move || {
            let tape = GradientTape::new();
            let y = tape.record(|| x.matmul(&w)?.tanh())?;
            tapes.push((tape, y));
            Ok(())
        }))
    })?;
    assert_eq!(found, [(Owner::Saved, RECORDED.into(), String::new())]);
    Ok(())
}

const GRADIENT: u32 = line!() + 9;

#[test]
fn gradients_that_are_kept_are_named() -> Result<()> {
    let found = leaks(|| {
        let ((x, w), mut kept) = (weights()?, Vec::new());
        Ok(Box::new(move || {
            let tape = GradientTape::new();
            let loss = tape.record(|| x.matmul(&w)?.square()?.mean(..))?;
            kept.push(tape.gradient(&loss, [&w])?);
            Ok(())
        }))
    })?;
    assert_eq!(found, [(Owner::Gradients, GRADIENT.into(), String::new())]);
    Ok(())
}

const CONSTANT: u32 = line!() + 7;

#[test]
fn programs_of_ever_new_shapes_are_named_by_what_they_keep() -> Result<()> {
    let found = leaks(|| {
        // Whatever comes from the host is a constant of the program, and each shape has a program of its own.
        let scaled = Function::new(|x: Tensor| {
            let scale = Tensor::from_slice(&[2.0f32; 64], [64])?;
            x.mul(&scale)?.sum(..)
        });
        let mut n = 0;
        Ok(Box::new(move || {
            n += 1;
            scaled.call(Tensor::ones([n, 64])?).map(drop)
        }))
    })?;
    assert_eq!(found, [(Owner::Graph, CONSTANT.into(), String::new())]);
    Ok(())
}

const ITERATED: u32 = line!() + 8;

#[test]
fn iterators_that_are_kept_are_named() -> Result<()> {
    let found = leaks(|| {
        let dataset = Dataset::from_tensor_slices(Tensor::ones([1024, 8])?)?;
        let (dataset, mut kept) = (dataset.batch(64)?, Vec::new());
        Ok(Box::new(move || {
            let mut batches = dataset.iter();
            drop(batches.next());
            kept.push(batches);
            Ok(())
        }))
    })?;
    assert!(
        !found.is_empty() && found.iter().all(|row| *row == (Owner::Data, ITERATED.into(), String::new())),
        "{found:?}"
    );
    Ok(())
}

const CALLED: u32 = line!() + 7;

#[test]
fn activations_that_are_kept_are_named_by_their_layer() -> Result<()> {
    let found = leaks(|| {
        let (model, x, mut kept) = (model()?, Tensor::ones([8, 4])?, Vec::new());
        Ok(Box::new(move || {
            kept.push(model.call(&x)?.clone());
            Ok(())
        }))
    })?;
    assert_eq!(found, [(Owner::Temporary, CALLED.into(), "head".to_owned())]);
    Ok(())
}

/// Batches whose sizes are never the same twice, an optimizer with state, and a list that is emptied.
#[test]
fn runs_of_varying_lengths_are_clean() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let pair = |n: usize| Ok(Batch::new(Tensor::ones([n, 4])?, Tensor::ones([n, 1])?));
    let batches: Vec<Batch> = (0..40).map(|nth| pair(3 + (nth * 7) % 5)).collect::<Result<_>>()?;
    let watch = WatchGrowth::new(&device);
    let mut trainer =
        Trainer::new(model()?, Adam::new(1e-3).build(), MeanSquaredError).callback(watch.clone());
    trainer.fit(&batches, Until::Epochs(1))?;
    assert_eq!(watch.growth(), []);
    let clean = after(40, || {
        let ((x, w), mut losses) = (weights()?, Vec::new());
        Ok(Box::new(move || {
            losses.push(x.matmul(&w)?.mean(..)?);
            if losses.len() == 4 {
                losses.clear();
            }
            Ok(())
        }))
    })?;
    assert_eq!(clean, []);
    Ok(())
}

/// A language model on texts of which hardly two have the same length: steps that get longer are no leak, and neither are the
/// programs of ever new shapes, of which a cache keeps a bounded number.
#[test]
fn texts_of_varying_lengths_are_clean() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let text = |n: usize| Tensor::randint([2, n], 0, 20, DType::I64);
    for lengths in [(4..40).collect::<Vec<usize>>(), (0..60).map(|nth| 3 + (nth * 13) % 29).collect()] {
        let pair = |&n: &usize| Ok(Batch::new(text(n)?, text(n)?));
        let batches: Vec<Batch> = lengths.iter().map(pair).collect::<Result<_>>()?;
        let model = Sequential::new().add(Embedding::new(20, 8)).add(LSTM::new(8).return_sequences());
        let model = model.add(Dense::new(20)).build([4])?;
        let watch = WatchGrowth::new(&device);
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), loss).callback(watch.clone());
        trainer.fit(&batches, Until::Epochs(1))?;
        assert_eq!(watch.growth(), [], "{lengths:?}");
    }
    Ok(())
}

/// The callback sees what somebody else keeps while a `Trainer` trains.
#[test]
fn the_callback_names_a_leak_beside_the_trainer() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let pair = || Ok(Batch::new(Tensor::ones([8, 4])?, Tensor::ones([8, 1])?));
    let batches: Vec<Batch> = (0..16).map(|_| pair()).collect::<Result<_>>()?;
    let (watch, mut kept) = (WatchGrowth::new(&device), Vec::new());
    let leaking = plimsoll_nn::train::callbacks::LambdaCallback::new().steps(move |event, _| {
        kept.push(Tensor::full([4], event.loss)?);
        Ok(())
    });
    let trainer = Trainer::new(model()?, Adam::new(1e-3).build(), MeanSquaredError);
    // Whatever is made inside `fit` has its line, and the op tells the rest.
    let line = line!() + 1;
    trainer.callback(leaking).callback(watch.clone()).fit(&batches, Until::Epochs(1))?;
    let growth = watch.growth();
    assert_eq!(growth.len(), 1);
    let (site, added) = (&growth[0].site, growth[0].added_blocks);
    assert_eq!((site.line, site.op.as_str(), added), (line.into(), "full", 10));
    Ok(())
}
