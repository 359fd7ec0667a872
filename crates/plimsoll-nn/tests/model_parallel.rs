//! Model parallelism in one process: layers on several devices, trained by a `Trainer` with the bits of one device, each device
//! under its own limit, as planned.

#![forbid(unsafe_code)]

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{BatchNormalization, Dense, Dropout, Functional, Node, Sequential};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::metrics::SparseCategoricalAccuracy;
use plimsoll_nn::optimizers::{Adam, LossScale, Optimizer, OptimizerConfig, ParameterGroup, Schedule};
use plimsoll_nn::plan::{Plan, plan_on};
use plimsoll_nn::train::{Batch, History, Trainer, Until};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, Bytes, Device, Result, Tensor, set_seed};

const WIDTH: usize = 192;
const N_EXAMPLES: usize = 4096;
const N_CLASSES: usize = 10;
const N_STEPS: u64 = 5;

/// A network whose first half is on one device and whose second is on another.
fn model([first, second]: [&Device; 2]) -> Result<Model> {
    let block = || {
        let block = |layers: Sequential, _| {
            let layers = layers.add(Dense::new(WIDTH));
            let layers = layers.add(BatchNormalization::new().activation(Activation::Relu));
            layers.add(Dropout::new(0.1)).add(Dense::new(WIDTH).activation(Activation::Tanh))
        };
        (0..3).fold(Sequential::new(), block)
    };
    Sequential::new()
        .add(block().named("first").on(first))
        .add(block().named("second").on(second))
        .add(Dense::new(N_CLASSES).named("head").on(second))
        .build([WIDTH])
}

/// An optimizer that looks at all gradients together, with a group of its own.
fn optimizer() -> Optimizer {
    let group = ParameterGroup::new(["gamma", "beta"]).learning_rate(1e-4);
    let schedule = Schedule::cosine_decay(1e-3, 0.0, 40).expect("a schedule of 40 steps");
    Adam::new(1e-3).build().schedule(schedule).clip_norm(0.5).group(group)
}

/// A run on devices, of which the first has the data, and these.
fn prepared(devices: [&Device; 2]) -> Result<(Trainer, Dataset)> {
    set_seed(3);
    let inputs = Tensor::randn([N_EXAMPLES + 100, WIDTH])?;
    let labels = inputs.narrow(1, 0, N_CLASSES)?.argmax(1)?;
    let data = Dataset::from_tensor_slices((inputs, labels))?;
    let held_out = data.take(100).batch(100)?;
    let data = data.skip(100).shuffle(N_EXAMPLES, 5).batch(N_EXAMPLES / 2)?;
    let trainer =
        Trainer::new(model(devices)?, optimizer(), SparseCategoricalCrossentropy::new().from_logits(true))
            .held_out(held_out)
            .metric(SparseCategoricalAccuracy::new())
            .training_metric(SparseCategoricalAccuracy::new())
            .check_gradients();
    Ok((trainer, data))
}

/// Trains; returns the run and its losses.
fn train(devices: [&Device; 2], until: Until) -> Result<(Trainer, Vec<f64>)> {
    let _on = devices[0].enter();
    let (mut trainer, data) = prepared(devices)?;
    let history = trainer.fit(&data, until)?;
    Ok((trainer, losses(&history)))
}

/// The losses of epochs, of evaluations, and the last step's.
fn losses(history: &History) -> Vec<f64> {
    let epochs = history.epochs.iter().map(|epoch| epoch.loss);
    let held_out = history.epochs.iter().filter_map(|epoch| Some(epoch.held_out.as_ref()?.loss));
    epochs.chain(held_out).chain(history.loss).collect()
}

fn bits(trainer: &Trainer) -> Result<Vec<(String, Vec<f32>)>> {
    let variables = trainer.model().named_variables().into_iter();
    variables.map(|(name, variable)| Ok((name, variable.value().to_vec::<f32>()?))).collect()
}

fn two_cpus() -> [Device; 2] {
    [Device::separate_cpu(), Device::separate_cpu()]
}

fn run(devices: &[Device]) -> Result<()> {
    let [first, second] = devices else { unreachable!("two devices are planned for") };
    train([first, second], Until::Steps(N_STEPS)).map(drop)
}

/// Weights and losses of a run on one device.
type Outcome = (Vec<(String, Vec<f32>)>, Vec<f64>);

fn on_one_device() -> Result<Outcome> {
    let one = Device::separate_cpu();
    let (trainer, losses) = train([&one, &one], Until::Steps(N_STEPS))?;
    Ok((bits(&trainer)?, losses))
}

#[test]
fn two_pools_train_with_the_bits_of_one_as_planned_under_a_limit_on_each() -> Result<()> {
    let expected = on_one_device()?;
    let natural = plan_on(&two_cpus(), run)?;
    for share in [None, Some(85), Some(80)] {
        let devices = two_cpus();
        for (device, plan) in devices.iter().zip(&natural) {
            device.set_limit(share.map(|share| Bytes::new(plan.committed_bytes * share / 100)))?;
        }
        let plans: Vec<Plan> = plan_on(&devices, run)?;
        let (trainer, losses) = train([&devices[0], &devices[1]], Until::Steps(N_STEPS))?;
        assert_eq!((bits(&trainer)?, losses), expected, "at {share:?} %");
        assert_eq!(trainer.model().devices(), devices);
        for (device, plan) in devices.iter().zip(&plans) {
            let stats = device.stats();
            assert!(plan.fits(), "{:?}", plan.refusal);
            assert_eq!((stats.peak_in_use, stats.peak_committed), (plan.peak_bytes, plan.committed_bytes));
            assert_eq!(stats.peak_rows, plan.owners);
            assert!(share.is_none() || stats.peak_committed <= stats.limit.unwrap_or(0));
            assert_eq!(device.recomputed().ops > 0, share.is_some(), "a limit that matters on {device}");
            let report = device.report().to_string();
            assert!(report.contains("parameters"), "{report}");
        }
        drop(trainer);
        devices.iter().for_each(|device| assert_eq!(device.stats().in_use, 0, "everything came back"));
    }
    Ok(())
}

#[test]
fn a_limit_that_cannot_be_kept_is_refused_for_its_device() -> Result<()> {
    let natural = plan_on(&two_cpus(), run)?;
    let devices = two_cpus();
    devices[1].set_limit(Some(Bytes::new(natural[1].committed_bytes / 4)))?;
    let plans = plan_on(&devices, run)?;
    assert!(plans.iter().all(|plan| plan.refusal.is_some()));
    let error = train([&devices[0], &devices[1]], Until::Steps(1)).err().expect("there is no room");
    assert!(error.is_out_of_memory(), "{error}");
    Ok(())
}

#[test]
fn a_checkpoint_does_not_know_devices() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("plimsoll-model-parallel-{}", std::process::id()));
    let devices = two_cpus();
    let (mut trainer, _) = train([&devices[0], &devices[1]], Until::Steps(3))?;
    trainer.save(&folder)?;
    let on = |devices: [&Device; 2]| -> Result<Outcome> {
        let _on = devices[0].enter();
        let (mut trainer, data) = prepared(devices)?;
        trainer.resume(&folder)?;
        let history = trainer.fit(&data, Until::Steps(N_STEPS))?;
        Ok((bits(&trainer)?, losses(&history)))
    };
    let one = Device::separate_cpu();
    let others = two_cpus();
    let resumed = on([&others[0], &others[1]])?;
    assert_eq!(resumed, on([&one, &one])?);
    assert_eq!(resumed.0, on_one_device()?.0, "a run that was not stopped");
    std::fs::remove_dir_all(&folder).expect("the checkpoint was saved");
    Ok(())
}

#[test]
fn a_device_scope_places_layers_and_copies_are_made_only_where_needed() -> Result<()> {
    let [first, second] = two_cpus();
    let _on = first.enter();
    let (there, here) = (second.clone(), first.clone());
    let model = Functional::new(move |x: Node| {
        let x = Dense::new(4).apply(&x)?;
        let y = {
            let _there = there.enter();
            Dense::new(4).apply(&x)?
        };
        // No variables: it computes where its input is.
        let y = plimsoll_nn::layers::ActivationLayer::new(Activation::Relu).apply(&y)?;
        Dense::new(2).on(&here).apply(&y)
    })
    .build([3])?;
    let on = |name: &str| model.layer(name).map(|layer| layer.own_variables()[0].device());
    assert_eq!([on("dense")?, on("dense_1")?, on("dense_2")?], [first.clone(), second, first.clone()]);
    assert_eq!(model.call(&Tensor::ones([5, 3])?)?.device(), first);
    assert!(model.summary(5)?.to_string().contains("dense_1"));
    Ok(())
}

#[test]
fn a_model_on_one_device_takes_nothing_from_another() -> Result<()> {
    let [first, second] = two_cpus();
    let model = {
        let _on = first.enter();
        Dense::new(2).build([3])?
    };
    let x = {
        let _on = second.enter();
        Tensor::ones([5, 3])?
    };
    let error = model.call(&x).expect_err("the input is elsewhere");
    assert!(error.to_string().contains("to_device"), "{error}");
    let error = Sequential::new().add(model.on(&second)).build([3]).expect_err("it has been built already");
    assert!(error.to_string().contains("build it there"), "{error}");
    Ok(())
}

#[test]
fn a_scaled_loss_is_scaled_on_both_devices() -> Result<()> {
    let train = |devices: [&Device; 2]| -> Result<_> {
        let _on = devices[0].enter();
        set_seed(1);
        let batch = Batch::new(
            Tensor::randn([32, WIDTH])?,
            Tensor::from_vec((0..32).map(|n| n % N_CLASSES as i64).collect())?,
        );
        let optimizer = Adam::new(1e-3).build().loss_scale(LossScale::new());
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let mut trainer = Trainer::new(model(devices)?, optimizer, loss);
        trainer.fit(&vec![batch], Until::Steps(3))?;
        bits(&trainer)
    };
    let (one, [first, second]) = (Device::separate_cpu(), two_cpus());
    assert_eq!(train([&first, &second])?, train([&one, &one])?);
    Ok(())
}

/// A GPU and the host: the losses are as near to either's as these are to each other.
#[test]
fn a_gpu_and_the_host_train_one_model() -> Result<()> {
    let losses = |devices: [&Device; 2]| -> Result<Vec<f64>> {
        let _on = devices[0].enter();
        set_seed(1);
        let labels = || Tensor::from_vec((0..8).map(|n| n % N_CLASSES as i64).collect());
        let batch = || Ok(Batch::new(Tensor::randn([8, WIDTH])?, labels()?));
        let batches = (0..2).map(|_| batch()).collect::<Result<Vec<_>>>()?;
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let mut trainer = Trainer::new(model(devices)?, optimizer(), loss);
        let history = trainer.fit(&batches, Until::Epochs(1))?;
        Ok(history.epochs.iter().map(|epoch| epoch.loss).collect())
    };
    let (gpu, cpu) = (Device::emulated()?, Device::separate_cpu());
    let (on_cpu, on_gpu) = (losses([&cpu, &cpu])?, losses([&gpu, &gpu])?);
    for spread in [losses([&gpu, &cpu])?, losses([&cpu, &gpu])?] {
        for ((both, on_cpu), on_gpu) in spread.iter().zip(&on_cpu).zip(&on_gpu) {
            // Rounding differs in each of the two halves: at most twice as far from either, and a few last bits of float32.
            let apart = 2.0 * (on_cpu - on_gpu).abs() + 1e-6 * on_cpu.abs();
            assert!(
                (both - on_cpu).abs() <= apart && (both - on_gpu).abs() <= apart,
                "{both} {on_cpu} {on_gpu}"
            );
        }
    }
    Ok(())
}
