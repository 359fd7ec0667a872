//! What the train loop promises: atomic steps, the same gradients in parts, errors that say where, steady bytes.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_memory::testing::Fail;
use plimsoll_nn::layers::{Dense, Dropout, Lambda, Sequential};
use plimsoll_nn::losses::{Loss, MeanSquaredError, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, LossScale, Optimizer, OptimizerConfig, SGD};
use plimsoll_nn::train::callbacks::LambdaCallback;
use plimsoll_nn::train::{Batch, Epoch, Examples, StepEvent, Trainer, Until};
use plimsoll_nn::{BuiltLayer, Layer, Mode, Model, Policy, add_loss, with_policy};
use plimsoll_tensor::{
    Activation, Bytes, DType, Device, Generator, GradientTape, Owner, Result, Shape, Tensor, Variable,
    set_seed,
};

/// `n_batches` batches of `batch` examples whose labels are a fixed function of their inputs.
fn batches(n_batches: usize, batch: usize) -> Result<Vec<Batch>> {
    let pair = |_| {
        let inputs = Tensor::randn([batch, 4])?.owned_by(Owner::Data);
        let labels = inputs.sum(1)?.tanh()?.reshape([batch, 1])?.owned_by(Owner::Data);
        Ok(Batch::new(inputs, labels))
    };
    (0..n_batches).map(pair).collect()
}

fn model(policy: Policy) -> Result<Model> {
    let layers = Sequential::new()
        .add(Dense::new(16).activation(Activation::Tanh))
        .add(Dropout::new(0.2))
        .add(Dense::new(1).named("head"));
    with_policy(policy, || layers.build([4]))
}

/// A model and an optimizer for it, the same for every call.
fn trainer(policy: Policy, optimizer: Optimizer) -> Result<Trainer> {
    set_seed(5);
    Ok(Trainer::new(model(policy)?, optimizer, MeanSquaredError))
}

/// The bits of the values of variables.
type Bits = Vec<Vec<u64>>;

fn values(variables: &[Variable]) -> Result<Bits> {
    let masters = variables.iter().filter_map(|variable| variable.master());
    let bits = |variable: &Variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    variables.iter().chain(masters).map(bits).collect()
}

/// The bits of everything that a run is made of.
fn bits(trainer: &Trainer) -> Result<(Bits, Bits, Generator)> {
    let weights = values(&trainer.model().variables())?;
    Ok((weights, values(&trainer.optimizer().variables())?, Generator::current()))
}

/// A callback that keeps the events of all steps, and where they are kept.
fn kept_events() -> (LambdaCallback, Arc<Mutex<Vec<StepEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    let watch = LambdaCallback::new().steps(move |event, _| {
        kept.lock().expect("nobody panics").push(event.clone());
        Ok(())
    });
    (watch, events)
}

#[test]
fn a_model_learns_and_the_history_tells() -> Result<()> {
    set_seed(1);
    let (data, held_out) = (batches(8, 16)?, batches(2, 16)?);
    let (watch, events) = kept_events();
    let mut trainer = trainer(Policy::Float32, Adam::new(0.02).build())?.held_out(held_out).callback(watch);
    let history = trainer.fit(&data, Until::Epochs(20))?;
    assert_eq!((history.epochs.len(), history.steps), (20, 160));
    let (first, last) = (history.epochs.get(0).expect("twenty"), history.epochs.last().expect("twenty"));
    assert!(last.loss < first.loss / 4.0, "{} after {}", last.loss, first.loss);
    assert!(last.held_out.as_ref().is_some_and(|held_out| held_out.loss < 0.1), "{last}");
    let events = events.lock().expect("nobody panics");
    let numbers: Vec<(u64, u64, u64)> = events.iter().map(|e| (e.step, e.epoch, e.batch)).collect();
    assert_eq!((numbers[0], numbers[7], numbers[8]), ((1, 1, 1), (8, 1, 8), (9, 2, 1)));
    let mean = events[..8].iter().map(|event| event.loss).sum::<f64>() / 8.0;
    assert_eq!(first.loss, mean);
    assert!(events.iter().all(|e| e.n_batches == Some(8) && e.n_examples == 16 && e.learning_rate == 0.02));
    assert!(events.iter().all(|e| e.memory.in_use > 0 && e.memory.peak > e.memory.in_use));
    Ok(())
}

#[test]
fn steps_end_a_run_in_the_middle_of_an_epoch_and_it_goes_on_from_there() -> Result<()> {
    set_seed(1);
    let data = batches(3, 4)?;
    let mut whole = trainer(Policy::Float32, Adam::new(0.1).build())?;
    whole.fit(&data, Until::Steps(7))?;
    let mut parts = trainer(Policy::Float32, Adam::new(0.1).build())?;
    assert_eq!(parts.fit(&data, Until::Steps(2))?.epochs.len(), 0);
    assert_eq!(parts.fit(&data, Until::Steps(3))?.epochs.len(), 1);
    assert_eq!(parts.fit(&data, Until::Epochs(1))?.steps, 3);
    parts.fit(&data, Until::Steps(7))?;
    assert_eq!(bits(&whole)?, bits(&parts)?);
    Ok(())
}

#[test]
fn another_run_goes_on_with_the_optimizer_of_one_that_is_over() -> Result<()> {
    set_seed(1);
    let data = batches(3, 4)?;
    let mut whole = trainer(Policy::Float32, Adam::new(0.1).build())?;
    whole.fit(&data, Until::Epochs(2))?;
    let mut first = trainer(Policy::Float32, Adam::new(0.1).build())?;
    first.fit(&data, Until::Epochs(1))?;
    let model = first.model().clone();
    let mut second = Trainer::new(model, first.into_optimizer(), MeanSquaredError);
    second.fit(&data, Until::Epochs(1))?;
    assert_eq!(bits(&whole)?, bits(&second)?);
    Ok(())
}

#[test]
fn parts_of_a_batch_give_the_gradient_of_the_whole() -> Result<()> {
    set_seed(1);
    let data = batches(1, 13)?;
    let run = |policy: Policy, n_parts: usize| {
        set_seed(5);
        let layers = Sequential::new().add(Dense::new(16).activation(Activation::Tanh)).add(Dense::new(1));
        let model = with_policy(policy, || layers.build([4]))?;
        let mut trainer = Trainer::new(model, SGD::new(1.0).build(), MeanSquaredError).accumulate(n_parts);
        let history = trainer.fit(&data, Until::Steps(1))?;
        let weights = trainer.model().variables();
        let wide = |variable: &Variable| variable.master().unwrap_or(variable).to_f64_vec();
        let weights: Vec<f64> = weights.iter().map(wide).collect::<Result<Vec<_>>>()?.concat();
        Ok::<_, plimsoll_tensor::Error>((history.loss.unwrap_or(f64::NAN), weights))
    };
    // The sums are the same but for rounding: of f32, and of one bf16 gradient against a sum of several in f32.
    for (policy, tolerance) in
        [(Policy::Float64, 1e-14), (Policy::Float32, 1e-6), (Policy::MixedBfloat16, 2e-2)]
    {
        let (loss, weights) = run(policy, 1)?;
        for n_parts in [2, 3, 5, 13, 50] {
            let (other_loss, other) = run(policy, n_parts)?;
            assert!((loss - other_loss).abs() <= tolerance * loss, "{policy}, {n_parts} parts");
            for (one, other) in weights.iter().zip(&other) {
                assert!((one - other).abs() <= tolerance, "{policy}, {n_parts} parts: {one} and {other}");
            }
        }
    }
    Ok(())
}

#[test]
fn parts_of_a_batch_need_less_memory() -> Result<()> {
    let peak = |n_parts: usize| {
        let device = Device::separate_cpu();
        let _on = device.enter();
        let model = Sequential::new()
            .add(Dense::new(512).activation(Activation::Tanh))
            .add(Dense::new(1))
            .build([4])?;
        let data = batches(1, 1024)?;
        let mut trainer = Trainer::new(model, SGD::new(0.1).build(), MeanSquaredError).accumulate(n_parts);
        trainer.fit(&data, Until::Steps(2))?;
        Ok::<_, plimsoll_tensor::Error>(device.stats().peak_in_use)
    };
    let (whole, parts) = (peak(1)?, peak(8)?);
    assert!(parts * 3 < whole, "{parts} in eight parts, {whole} in one");
    Ok(())
}

#[test]
fn each_acquisition_failing_in_turn_leaves_the_run_as_it_was() -> Result<()> {
    for policy in [Policy::Float32, Policy::MixedFloat16] {
        let device = Device::separate_cpu();
        let _on = device.enter();
        set_seed(1);
        let data = batches(2, 6)?;
        let begun = || {
            let mut trainer = trainer(policy, Adam::new(0.1).build().clip_norm(1.0))?.accumulate(2);
            trainer.fit(&data, Until::Steps(1))?;
            Ok::<_, plimsoll_tensor::Error>(trainer)
        };
        let mut whole = begun()?;
        let loss = whole.fit(&data, Until::Steps(2))?.loss;
        let expected = bits(&whole)?;
        drop(whole);
        let mut n_failed = 0;
        for nth in 1.. {
            let mut trainer = begun()?;
            let before = (bits(&trainer)?, device.stats().in_use, trainer.state());
            device.pool().fail_acquisition(nth);
            let outcome = trainer.fit(&data, Until::Steps(2));
            device.pool().fail_acquisitions(Fail::Never);
            match outcome {
                Ok(history) => {
                    assert_eq!(history.loss, loss);
                    break;
                }
                Err(error) => {
                    assert!(error.is_out_of_memory(), "{error}");
                    let after = (bits(&trainer)?, device.stats().in_use, trainer.state());
                    assert_eq!(after, before, "{policy}, acquisition {nth}");
                    assert_eq!(
                        trainer.fit(&data, Until::Steps(2))?.loss,
                        loss,
                        "{policy}, acquisition {nth}"
                    );
                    assert_eq!(bits(&trainer)?, expected, "{policy}, acquisition {nth}");
                    n_failed += 1;
                }
            }
        }
        assert!(n_failed > 30, "{policy}: a step takes memory more than {n_failed} times");
    }
    Ok(())
}

#[test]
fn fifty_epochs_leave_the_same_bytes_after_every_step() -> Result<()> {
    for policy in [Policy::Float32, Policy::MixedFloat16] {
        let device = Device::separate_cpu();
        let _on = device.enter();
        set_seed(1);
        // The last batch of an epoch is smaller.
        let mut data = batches(4, 32)?;
        data.extend(batches(1, 7)?);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (kept, pool) = (calls.clone(), device.clone());
        let watch = LambdaCallback::new().steps(move |event, _| {
            kept.lock().expect("nobody panics").push((event.memory.in_use, pool.stats().source));
            Ok(())
        });
        let mut trainer =
            trainer(policy, Adam::new(0.01).build())?.accumulate(2).held_out(data.clone()).callback(watch);
        trainer.fit(&data, Until::Epochs(50))?;
        let calls = calls.lock().expect("nobody panics");
        assert_eq!(calls.len(), 250);
        for (step, (in_use, source)) in calls.iter().enumerate().skip(1) {
            assert_eq!(*in_use, calls[0].0, "{policy}: bytes in use after step {}", step + 1);
            assert_eq!(*source, calls[1].1, "{policy}: calls to the system until step {}", step + 1);
        }
    }
    Ok(())
}

#[test]
fn a_ghost_takes_the_same_bytes() -> Result<()> {
    let peaks = [Device::separate_cpu(), Device::ghost_cpu()].map(|device| {
        let _on = device.enter();
        let data = batches(2, 50)?;
        let mut trainer =
            trainer(Policy::MixedFloat16, Adam::new(0.01).build().clip_norm(1.0))?.accumulate(3);
        trainer.fit(&data, Until::Steps(3))?;
        let stats = device.stats();
        Ok::<_, plimsoll_tensor::Error>((stats.in_use, stats.peak_in_use, stats.peak_committed))
    });
    let [real, ghost] = peaks;
    assert_eq!(real?, ghost?);
    Ok(())
}

fn error_of(trainer: &mut Trainer, data: &dyn Examples) -> String {
    trainer.fit(data, Until::Epochs(1)).expect_err("something is wrong").to_string()
}

#[test]
fn values_that_are_not_finite_are_found() -> Result<()> {
    set_seed(1);
    let mut data = batches(3, 4)?;
    let mut inputs = data[2].input_and_label()?.0.to_vec::<f32>()?;
    inputs[9] = f32::NAN;
    data[2].inputs = Tensor::from_slice(&inputs, [4, 4])?.into();
    let mut run = trainer(Policy::Float32, Adam::new(0.1).build())?;
    run.fit(&data, Until::Steps(2))?;
    let before = bits(&run)?;
    let error = error_of(&mut run, &data);
    assert!(error.contains("the loss is NaN") && error.contains("\"inputs\" holds NaN at [2, 1]"), "{error}");
    assert!(error.contains("batch 3 of epoch 1"), "{error}");
    assert_eq!(bits(&run)?, before);

    let data = batches(1, 4)?;
    let mut run = trainer(Policy::Float32, Adam::new(0.1).build())?;
    run.model().variables()[3].assign(&Tensor::full([1], f64::INFINITY)?)?;
    let error = error_of(&mut run, &data);
    assert!(error.contains("variable \"head.bias\" holds values that are not finite"), "{error}");

    set_seed(1);
    let root = Lambda::new(|x: &Tensor| x.sub(x)?.sqrt()).named("root");
    let model = Sequential::new().add(Dense::new(1)).add(root).build([4])?;
    let mut run = Trainer::new(model, SGD::new(0.1).build(), MeanSquaredError).check_gradients();
    let before = bits(&run)?;
    let error = error_of(&mut run, &data);
    assert!(error.contains("the gradient of variable \"dense.kernel\" is not finite"), "{error}");
    assert_eq!(bits(&run)?.0, before.0);
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let optimizer = || SGD::new(0.1).build();
    let error = error_of(&mut trainer(Policy::Float32, optimizer())?, &Vec::<Batch>::new());
    assert!(error.contains("the data are empty"), "{error}");

    struct Named(Vec<Batch>);
    impl Examples for Named {
        fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
            self.0.epoch(epoch, batch)
        }
        fn n_batches(&self) -> Option<u64> {
            None
        }
        fn names(&self) -> Vec<String> {
            ["pixels", "digits"].map(str::to_owned).into()
        }
    }
    let wide = Named(vec![Batch::new(Tensor::zeros([2, 5])?, Tensor::zeros([2, 1])?)]);
    let error = error_of(&mut trainer(Policy::Float32, optimizer())?, &wide);
    assert!(error.contains("in layer `dense`") && error.contains("\"pixels\" is float32 [2, 5]"), "{error}");
    let uneven = Named(vec![Batch::new(Tensor::zeros([2, 4])?, Tensor::zeros([3, 1])?)]);
    let error = error_of(&mut trainer(Policy::Float32, optimizer())?, &uneven);
    assert!(error.contains("inputs of [2, 4] and labels of [3, 1]"), "{error}");

    let classes = Named(vec![Batch::new(Tensor::zeros([2, 4])?, Tensor::from_vec(vec![0i64, 3])?)]);
    let model = Sequential::new().add(Dense::new(3)).build([4])?;
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let error = error_of(&mut Trainer::new(model, optimizer(), loss), &classes);
    assert!(error.contains('3') && error.contains("\"digits\" is int64 [2]"), "{error}");

    let cut = Lambda::new(|x: &Tensor| Ok(x.stop_gradient())).named("cut");
    let model = Sequential::new().add(Dense::new(2)).add(cut).add(Dense::new(1).named("head")).build([4])?;
    let mut run = Trainer::new(model, optimizer(), MeanSquaredError);
    let error = error_of(&mut run, &batches(1, 2)?);
    assert!(
        error.contains("dense.kernel") && error.contains("dense.bias") && !error.contains("head"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_step_that_overflows_is_skipped_and_says_where() -> Result<()> {
    set_seed(1);
    let data = batches(2, 8)?;
    let (watch, events) = kept_events();
    let scale = LossScale::new().initial(1e9).growth_interval(3);
    let mut run = trainer(Policy::MixedFloat16, Adam::new(0.01).build().loss_scale(scale))?.callback(watch);
    let before = values(&run.model().variables())?;
    run.fit(&data, Until::Steps(1))?;
    assert_eq!(values(&run.model().variables())?, before);
    let name = events.lock().expect("nobody panics")[0].skipped.clone().expect("it overflows");
    assert!(run.model().variables().iter().any(|variable| variable.name() == name), "{name}");
    run.fit(&data, Until::Steps(40))?;
    assert_ne!(values(&run.model().variables())?, before);
    let events = events.lock().expect("nobody panics");
    let scales: Vec<f64> = events.iter().map(|event| event.loss_scale).collect();
    assert_eq!(scales[0], 5e8);
    assert!(scales.windows(2).any(|pair| pair[1] == 2.0 * pair[0]), "it grows again: {scales:?}");
    assert!(events.iter().all(|event| event.loss.is_finite()));
    Ok(())
}

#[test]
fn a_prediction_holds_one_layers_input_and_output() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let layers =
        (0..8).fold(Sequential::new(), |layers, _| layers.add(Dense::new(256).activation(Activation::Relu)));
    let model = layers.add(Dense::new(1)).build([256])?;
    let inputs = Tensor::zeros([64, 256])?.owned_by(Owner::Data);
    let before = device.stats();
    device.pool().reset_peaks();
    let outputs = model.predict(&inputs, 16)?;
    assert_eq!(outputs.shape().dims(), [64, 1]);
    let peak = device.stats().peak_rows;
    // Two activations of 16 examples, and the outputs of the batches before.
    assert!(peak.get(Owner::Temporary) <= 2 * 16 * 256 * 4 + 2 * 64 * 4, "{peak:?}");
    assert_eq!(device.stats().rows().get(Owner::Parameters), before.rows().get(Owner::Parameters));
    let whole = model.infer(&inputs)?;
    assert_eq!(outputs.cast(DType::F64)?.to_vec::<f64>()?, whole.cast(DType::F64)?.to_vec::<f64>()?);
    assert!(model.predict(&inputs, 0).unwrap_err().to_string().contains("batches of 0"));
    Ok(())
}

/// Data of which nobody knows how many batches there are.
struct Endless(Vec<Batch>);

impl Examples for Endless {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        self.0.epoch(epoch, batch)
    }

    fn n_batches(&self) -> Option<u64> {
        None
    }
}

#[test]
fn what_would_fail_in_evaluation_is_refused_before_the_first_step() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let data = batches(3, 8)?;
    let narrow = vec![Batch::new(Tensor::randn([8, 3])?, Tensor::randn([8, 1])?)];
    let wide_labels = vec![Batch::new(Tensor::randn([8, 4])?, Tensor::randn([8, 7])?)];
    let uneven = vec![Batch::new(Tensor::randn([8, 4])?, Tensor::randn([5, 1])?)];
    let fresh = || trainer(Policy::Float32, Adam::new(0.01).build());
    let cases: [(Box<dyn Examples>, &str); 4] = [
        (Box::new(narrow), "[8, 3]"),
        (Box::new(wide_labels.clone()), "[8, 7]"),
        (Box::new(uneven), "labels of [5, 1]"),
        (Box::new(Vec::<Batch>::new()), "there is no batch"),
    ];
    for (held_out, names) in cases {
        let mut trainer = fresh()?.held_out(Held(held_out));
        trainer.fit(&Vec::<Batch>::new(), Until::Epochs(0))?;
        let before = bits(&trainer)?;
        let refused = trainer.fit(&data, Until::Epochs(1)).expect_err(names).to_string();
        assert!(refused.contains("held-out data") && refused.contains(names), "{refused}");
        assert_eq!(bits(&trainer)?, before, "{names}: nothing was trained");
    }
    // A run that ends before its first evaluation is not held up, and the number of batches need not be known.
    fresh()?.held_out(wide_labels.clone()).fit(&data, Until::Steps(2))?;
    fresh()?.held_out(wide_labels).fit(&Endless(data.clone()), Until::Epochs(1)).expect_err("[8, 7]");
    // Data that can be evaluated change no bit.
    let mut plain = fresh()?;
    plain.fit(&data, Until::Epochs(2))?;
    let expected = bits(&plain)?;
    let mut evaluated = fresh()?.held_out(data.clone());
    evaluated.fit(&data, Until::Epochs(2))?;
    assert_eq!(bits(&evaluated)?, expected);
    Ok(())
}

/// Data behind a pointer.
struct Held(Box<dyn Examples>);

impl Examples for Held {
    fn epoch(&self, epoch: u64, batch: u64) -> Result<Epoch<'_>> {
        self.0.epoch(epoch, batch)
    }

    fn n_batches(&self) -> Option<u64> {
        self.0.n_batches()
    }
}

#[test]
fn an_evaluation_that_the_limit_has_no_room_for_is_refused_before_the_first_step() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let (data, held_out) = (batches(3, 8)?, batches(1, 1 << 17)?);
    let mut trainer = trainer(Policy::Float32, Adam::new(0.01).build())?.held_out(held_out);
    trainer.fit(&Vec::<Batch>::new(), Until::Epochs(0))?;
    device.trim();
    // Room for a step, and not for the 8 MiB of a hidden layer's values.
    device.set_limit(Some(Bytes::new(device.stats().committed + (6 << 20))))?;
    let before = bits(&trainer)?;
    let refused = trainer.fit(&data, Until::Epochs(1)).expect_err("8 MiB do not fit");
    assert!(refused.is_out_of_memory() && refused.to_string().contains("held-out data"), "{refused}");
    assert_eq!(bits(&trainer)?, before, "nothing was trained");
    device.set_limit(None)?;
    assert!(
        trainer.fit(&data, Until::Epochs(1))?.epochs.last().is_some_and(|epoch| epoch.held_out.is_some()),
        "the refusal is not remembered"
    );
    Ok(())
}

/// The identity, until it is told to panic.
struct Fuse(Arc<AtomicBool>);

impl Layer for Fuse {
    fn name(&self) -> &str {
        "fuse"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let panics = self.0.clone();
        BuiltLayer::new(input, move |x, _| {
            let y = x.dropout(0.3)?;
            assert!(!panics.load(Ordering::Relaxed), "a layer of the user's panics");
            Ok(y)
        })
    }
}

#[test]
fn a_run_goes_on_after_a_panic_as_if_there_had_been_none() -> Result<()> {
    let run = |panics: bool, limit: Option<Bytes>| {
        let device = Device::separate_cpu();
        device.set_limit(limit)?;
        let _on = device.enter();
        set_seed(5);
        let fuse = Arc::new(AtomicBool::new(false));
        let layers = || Sequential::new().add(Dense::new(16)).add(Fuse(fuse.clone())).add(Dense::new(1));
        let trainer = Trainer::new(layers().build([4])?, Adam::new(0.01).build(), MeanSquaredError);
        let data = batches(3, 8)?;
        let mut trainer = trainer.held_out(data.clone());
        for step in 1..=7 {
            if panics {
                fuse.store(true, Ordering::Relaxed);
                let fit = AssertUnwindSafe(|| trainer.fit(&data, Until::Steps(step)));
                panic::catch_unwind(fit).expect_err("it panics");
                fuse.store(false, Ordering::Relaxed);
            }
            trainer.fit(&data, Until::Steps(step))?;
        }
        Ok::<_, plimsoll_tensor::Error>((bits(&trainer)?, device.stats().in_use))
    };
    for limit in [None, Some(Bytes::mib(16))] {
        assert_eq!(run(true, limit)?, run(false, limit)?, "under {limit:?}");
    }
    Ok(())
}

/// A dense layer that adds the mean square of what it gives to the loss.
struct Quiet;

impl Layer for Quiet {
    fn name(&self) -> &str {
        "quiet"
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let dense = Dense::new(2).build(*input)?;
        BuiltLayer::new(*dense.output_shape(), move |x, mode| {
            let y = dense.forward(x, mode)?;
            add_loss(&y.square()?.mean(..)?.mul(0.5)?)?;
            Ok(y)
        })
    }
}

#[test]
fn a_loss_that_a_layer_adds_is_part_of_the_loss_and_of_the_gradients() -> Result<()> {
    let batch = || -> Result<Batch> {
        set_seed(11);
        Ok(Batch::new(Tensor::randn([6, 3])?, Tensor::randn([6, 2])?))
    };
    let model = || -> Result<Model> {
        set_seed(5);
        Sequential::new().add(Quiet.pure()).build([3])
    };
    let mut trainer = Trainer::new(model()?, SGD::new(0.5).build(), MeanSquaredError);
    let told = trainer.fit(&vec![batch()?], Until::Epochs(1))?.loss;
    // The same by hand.
    let (by_hand, batch) = (model()?, batch()?);
    let tape = GradientTape::new();
    let (x, labels) = (batch.inputs.one().unwrap(), batch.labels.one().unwrap());
    let loss = tape.record(|| {
        let y = by_hand.forward(x, Mode::Train)?;
        MeanSquaredError.call(labels, &y)?.add(&y.square()?.mean(..)?.mul(0.5)?)
    })?;
    let variables = by_hand.variables();
    let gradients = tape.variable_gradients(&loss, &variables)?;
    for (variable, gradient) in variables.iter().zip(gradients) {
        variable.assign_sub(&gradient.mul(0.5)?)?;
    }
    assert_eq!(told, Some(f64::from(loss.item::<f32>()?)));
    for (trained, expected) in trainer.model().variables().iter().zip(&variables) {
        assert_eq!(trained.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    }
    // In an evaluation it counts, too; elsewhere nobody listens.
    let evaluated = trainer.evaluate(&vec![batch.clone()])?.loss;
    let y = trainer.model().call(x)?;
    let alone = MeanSquaredError.call(labels, &y)?.add(&y.square()?.mean(..)?.mul(0.5)?)?;
    assert_eq!(evaluated, f64::from(alone.item::<f32>()?));
    assert!(!add_loss(&alone)?);
    assert!(add_loss(&y).unwrap_err().to_string().contains("must be one number"));
    Ok(())
}

#[test]
fn a_layer_that_is_recomputed_cannot_add_a_loss() -> Result<()> {
    let model = Sequential::new().add(Quiet.recompute()).build([3])?;
    let mut trainer = Trainer::new(model, SGD::new(0.5).build(), MeanSquaredError);
    let batch = Batch::new(Tensor::ones([6, 3])?, Tensor::ones([6, 2])?);
    let error = trainer.fit(&vec![batch], Until::Epochs(1)).unwrap_err().to_string();
    assert!(error.contains("a layer that is recomputed cannot add a loss"), "{error}");
    Ok(())
}
