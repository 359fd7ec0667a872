//! A run that is saved, thrown away and resumed goes on bit for bit as if it had never stopped: weights, what the
//! optimizer keeps, the loss scale, the generator, losses and what callbacks know.

use std::sync::{Arc, Mutex};

use plimsoll_data::Dataset;
use plimsoll_nn::checkpoint;
use plimsoll_nn::layers::{Dense, Dropout, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, LossScale, OptimizerConfig};
use plimsoll_nn::train::callbacks::{
    EarlyStopping, LambdaCallback, LearningRateScheduler, Log, ModelCheckpoint,
};
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_nn::{Layer, Policy, with_policy};
use plimsoll_tensor::{Activation, Generator, Result, Tensor, Variable, set_seed};
use plimsoll_testkit::Folder;

/// Fifty examples, shuffled anew for every epoch, in batches of eight, the last of two, made ahead by a thread.
fn shuffled() -> Result<Dataset> {
    set_seed(100);
    let inputs = Tensor::randn([50, 6])?;
    let labels = inputs.sum(1)?.sin()?.reshape([50, 1])?;
    Ok(Dataset::from_tensor_slices((inputs, labels))?.shuffle(50, 7).batch(8)?.prefetch(2))
}

#[test]
fn a_run_goes_on_only_as_it_was_begun() -> Result<()> {
    let folder = Folder::new("resume-otherwise");
    let losses = Losses::default();
    let data =
        |batch| Dataset::from_tensor_slices((Tensor::ones([50, 6])?, Tensor::ones([50, 1])?))?.batch(batch);
    let begun =
        |seed: u64| Ok::<_, plimsoll_tensor::Error>(run(1, Policy::Float32, &losses)?.setting("seed", seed));
    let mut first = begun(7)?;
    first.fit(&data(8)?, Until::Steps(3))?;
    first.save(folder.path())?;
    for (seed, batch, wrong) in [(7, 8, ""), (7, 9, "batches of 9"), (8, 8, "seed 7, and this one has 8")] {
        let mut resumed = begun(seed)?;
        let went_on =
            resumed.resume(folder.path()).and_then(|()| resumed.fit(&data(batch)?, Until::Steps(4)));
        match wrong.is_empty() {
            true => assert_eq!(went_on?.steps, 4),
            false => {
                let error = went_on.expect_err(wrong).to_string();
                assert!(error.contains(wrong), "{error}");
            }
        }
    }
    // With the next epoch, batches may be of another size.
    first.fit(&data(8)?, Until::Epochs(1))?;
    assert!(first.fit(&data(9)?, Until::Epochs(2)).is_ok());
    // A setting that the checkpoint does not know is no difference.
    run(1, Policy::Float32, &losses)?.setting("colour", "blue").resume(folder.path())
}

/// The bits of all losses, in the order of the steps.
type Losses = Arc<Mutex<Vec<u64>>>;

/// A run with everything that could differ: dropout, a loss scale that overflows and grows, parts of batches, a last batch
/// that is smaller, and a learning rate of the callback's.
fn run(seed: u64, policy: Policy, losses: &Losses) -> Result<Trainer> {
    set_seed(seed);
    let layers = Sequential::new()
        .add(Dense::new(24).activation(Activation::Tanh))
        .add(Dropout::new(0.25))
        .add(Dense::new(1));
    let model = with_policy(policy, || layers.build([6]))?;
    let scale = LossScale::new().initial(1e6).growth_interval(2);
    let optimizer = Adam::new(0.01).build().clip_norm(1.0);
    let optimizer = if policy == Policy::MixedFloat16 { optimizer.loss_scale(scale) } else { optimizer };
    let kept = losses.clone();
    let watch = LambdaCallback::new().steps(move |event, _| {
        kept.lock().expect("nobody panics").push(event.loss.to_bits());
        Ok(())
    });
    Ok(Trainer::new(model, optimizer, MeanSquaredError)
        .accumulate(3)
        .held_out(shuffled()?)
        .callback(EarlyStopping::new(50))
        .callback(LearningRateScheduler::new(|step| 0.01 / (1.0 + step as f64 / 10.0)))
        .callback(watch))
}

fn bits(trainer: &Trainer) -> Result<Vec<(String, Vec<u64>)>> {
    let weights = trainer.model().variables();
    let masters: Vec<Variable> = weights.iter().filter_map(|variable| variable.master().cloned()).collect();
    let all = weights.into_iter().chain(masters).chain(trainer.optimizer().variables());
    all.map(|variable| Ok((variable.name(), variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect())))
        .collect()
}

#[test]
fn a_resumed_run_is_the_same_run() -> Result<()> {
    let data = shuffled()?;
    for policy in [Policy::MixedFloat16, Policy::MixedBfloat16, Policy::Float32] {
        let whole_losses = Losses::default();
        let mut whole = run(3, policy, &whole_losses)?;
        let history = whole.fit(&data, Until::Epochs(4))?;
        let (whole_bits, generator) = (bits(&whole)?, Generator::current());
        // Before the first step, in the first epoch, within one, at its last batch, and between two.
        for stop in [0, 1, 10, 13, 14] {
            let folder = Folder::new(&format!("resume-{policy}-{stop}"));
            let losses = Losses::default();
            let mut first = run(3, policy, &losses)?;
            first.fit(&data, Until::Steps(stop))?;
            first.save(folder.path())?;
            drop(first);
            let mut second = run(77, policy, &losses)?;
            second.resume(folder.path())?;
            // Draws between resuming and going on do not matter.
            Tensor::randn([3])?;
            let resumed = second.fit(&data, Until::Epochs(4))?;
            assert_eq!(
                *losses.lock().expect("nobody panics"),
                *whole_losses.lock().expect("nobody panics"),
                "{policy}, stopped after {stop}"
            );
            assert_eq!(bits(&second)?, whole_bits, "{policy}, stopped after {stop}");
            assert_eq!((second.state(), Generator::current()), (whole.state(), generator));
            let n_told = resumed.epochs.len();
            assert!(resumed.epochs.iter().eq(history.epochs.iter().skip(history.epochs.len() - n_told)));
        }
    }
    Ok(())
}

#[test]
fn the_loss_scale_of_that_run_moves_both_ways() -> Result<()> {
    let data = shuffled()?;
    let scales = Arc::new(Mutex::new(Vec::new()));
    let kept = scales.clone();
    let watch = LambdaCallback::new().steps(move |event, _| {
        kept.lock().expect("nobody panics").push(event.loss_scale);
        Ok(())
    });
    let mut trainer = run(3, Policy::MixedFloat16, &Losses::default())?.callback(watch);
    trainer.fit(&data, Until::Steps(14))?;
    let scales = scales.lock().expect("nobody panics");
    assert!(scales.windows(2).any(|pair| pair[1] > pair[0]), "it grows: {scales:?}");
    assert!(scales.windows(2).any(|pair| pair[1] < pair[0]), "it shrinks: {scales:?}");
    Ok(())
}

#[test]
fn a_checkpoint_of_another_run_is_refused_and_changes_nothing() -> Result<()> {
    let folder = Folder::new("refused");
    let data = shuffled()?;
    let mut saved = run(3, Policy::Float32, &Losses::default())?;
    saved.fit(&data, Until::Steps(2))?;
    saved.save(folder.path())?;
    let model = Sequential::new().add(Dense::new(1)).build([6])?;
    let mut other = Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError);
    let before = bits(&other)?;
    let error = other.resume(folder.path()).unwrap_err().to_string();
    assert!(error.contains("nothing here takes its") && error.contains("dense_1"), "{error}");
    assert_eq!(bits(&other)?[..before.len()], before[..]);
    assert_eq!(other.state().step, 0);
    Ok(())
}

#[test]
fn checkpoints_are_made_when_they_are_due_and_at_the_end() -> Result<()> {
    let folder = Folder::new("due");
    for checkpoint in
        [ModelCheckpoint::new(folder.path()).every_steps(5), ModelCheckpoint::new(folder.path())]
    {
        let mut trainer = run(3, Policy::Float32, &Losses::default())?.callback(checkpoint);
        trainer.fit(&shuffled()?, Until::Steps(24))?;
        assert_eq!(checkpoint::peek(folder.path())?, trainer.state());
    }

    let kept = folder.path().to_owned();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let mut trainer = run(3, Policy::Float32, &Losses::default())?
        .callback(ModelCheckpoint::new(folder.path()).every_steps(5))
        .callback(LambdaCallback::new().steps(move |event, _| {
            // What was asked for at the step before has been done by now.
            seen.lock().expect("nobody panics").push((event.step, checkpoint::peek(&kept)?.step));
            Ok(())
        }));
    trainer.save(folder.path())?;
    trainer.fit(&shuffled()?, Until::Steps(12))?;
    assert_eq!(
        steps.lock().expect("nobody panics")[..],
        (1..=12).map(|step| (step, (step - 1) / 5 * 5)).collect::<Vec<_>>()[..]
    );
    Ok(())
}

#[test]
fn the_best_epoch_is_kept_and_its_weights_come_back() -> Result<()> {
    let folder = Folder::new("best");
    let data = shuffled()?;
    let best_weights = Arc::new(Mutex::new((f64::INFINITY, Vec::new())));
    let seen = best_weights.clone();
    // A learning rate that ruins the model after some epochs.
    let mut trainer = {
        set_seed(3);
        let model = Sequential::new()
            .add(Dense::new(8).activation(Activation::Tanh))
            .add(Dense::new(1))
            .build([6])?;
        Trainer::new(model, Adam::new(0.01).build(), MeanSquaredError)
            .held_out(shuffled()?)
            .callback(LearningRateScheduler::new(|step| if step < 21 { 0.01 } else { 3.0 }))
            .callback(EarlyStopping::new(2).restore_best_weights(folder.path()))
            .callback(LambdaCallback::new().epochs(move |event, run| {
                let loss = event.held_out.as_ref().map_or(f64::NAN, |held_out| held_out.loss);
                if loss < seen.lock().expect("nobody panics").0 {
                    let weights =
                        run.model().variables().iter().map(|v| v.to_vec::<f32>()).collect::<Result<_>>()?;
                    *seen.lock().expect("nobody panics") = (loss, weights);
                }
                Ok(())
            }))
    };
    let history = trainer.fit(&data, Until::Epochs(50))?;
    let why = history.stopped.clone().expect("it is stopped");
    assert!(why.contains("for 2 epochs"), "{why}");
    assert!(history.epochs.len() < 50);
    let weights: Vec<Vec<f32>> =
        trainer.model().variables().iter().map(|v| v.to_vec::<f32>()).collect::<Result<_>>()?;
    let (best, expected) = best_weights.lock().expect("nobody panics").clone();
    assert_eq!(weights, expected);
    assert_eq!(trainer.evaluate(&data)?.loss, best);
    Ok(())
}

#[test]
fn a_log_has_a_line_for_each_epoch() -> Result<()> {
    let mut lines = Vec::new();
    let mut trainer = run(3, Policy::MixedFloat16, &Losses::default())?;
    let shared = Arc::new(Mutex::new(Vec::<u8>::new()));
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("nobody panics").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    trainer = trainer.callback(Log::new(Shared(shared.clone())).every_steps(10));
    trainer.fit(&shuffled()?, Until::Epochs(2))?;
    lines.extend(String::from_utf8_lossy(&shared.lock().expect("nobody panics")).lines().map(str::to_owned));
    assert!(lines.iter().any(|line| line.starts_with("epoch 2: loss ") && line.contains("held out: loss ")));
    assert!(lines.iter().any(|line| line.starts_with("step 10 (epoch 2, batch 3): loss ")), "{lines:?}");
    assert!(lines[0].contains("skipped: the gradient of dense"), "{lines:?}");
    Ok(())
}

#[test]
fn a_callback_stops_the_run_and_its_error_ends_it() -> Result<()> {
    let stop = LambdaCallback::new().steps(|event, run| {
        if event.step == 3 {
            run.stop("enough");
        }
        Ok(())
    });
    let mut trainer = run(3, Policy::Float32, &Losses::default())?.callback(stop);
    let history = trainer.fit(&shuffled()?, Until::Epochs(2))?;
    assert_eq!((history.steps, history.stopped.as_deref()), (3, Some("enough")));
    let fail = LambdaCallback::new()
        .steps(|_, _| Err(plimsoll_tensor::Error::argument("bar", "the terminal is gone")));
    let mut trainer = run(3, Policy::Float32, &Losses::default())?.callback(fail);
    let error = trainer.fit(&shuffled()?, Until::Epochs(2)).unwrap_err().to_string();
    assert!(error.contains("the terminal is gone"), "{error}");
    Ok(())
}
