//! Training on a GPU: the same losses as on the CPU up to rounding, bits that a resumed run repeats, steps that a bad loss
//! does not change, and events that come a step later where nobody waits for them.
//!
//! The GPU is the one that `PLIMSOLL_TEST_DEVICE` names, or else the emulated one.

use std::sync::{Arc, Mutex};

use plimsoll_data::Dataset;
use plimsoll_nn::layers::{
    BatchNormalization, Dense, Dropout, Embedding, LSTM, LayerNormalization, MultiHeadAttention, Residual,
    Sequential,
};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adam, AdamW, Optimizer, OptimizerConfig, SGD};
use plimsoll_nn::plan::plan;
use plimsoll_nn::train::{Batch, Callback, History, Requests, StepEvent, Trainer, Until};
use plimsoll_nn::{Layer, Model, Policy, with_policy};
use plimsoll_tensor::{
    Activation, Bytes, DType, Device, Error, Generator, Owner, Result, Tensor, Variable, set_seed,
};
use plimsoll_testkit::device_under_test;

fn gpu() -> Result<Device> {
    match std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu") {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    }
}

/// 48 examples of three classes, told apart by where their numbers lie.
fn data() -> Result<Dataset> {
    let _host = Device::cpu().enter();
    set_seed(11);
    let labels = Tensor::from_vec((0..48i64).map(|idx| idx % 3).collect())?;
    let inputs = Tensor::randn([48, 6])?.add(&labels.cast(DType::F32)?.reshape([48, 1])?)?;
    Dataset::from_tensor_slices((inputs, labels))?.shuffle(48, 3).batch(16).map(|batches| batches.prefetch(1))
}

fn layers() -> Sequential {
    Sequential::new()
        .add(Dense::new(16).activation(Activation::Relu))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.1))
        .add(Dense::new(3))
}

fn loss() -> SparseCategoricalCrossentropy {
    SparseCategoricalCrossentropy::new().from_logits(true)
}

fn trainer(policy: Policy, optimizer: Optimizer) -> Result<Trainer> {
    set_seed(5);
    Ok(Trainer::new(with_policy(policy, || layers().build([6]))?, optimizer, loss()))
}

/// Keeps the losses of all steps; it need not be told in time.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<f64>>>);

impl Callback for Losses {
    fn name(&self) -> &str {
        "losses"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        assert_eq!(
            event.step as usize,
            self.0.lock().expect("nobody panics").len() + 1,
            "steps are told of in order, each once"
        );
        self.0.lock().expect("nobody panics").push(event.loss);
        Ok(())
    }
}

/// The losses of two epochs on a device.
fn losses_on(device: &Device, policy: Policy, optimizer: Optimizer) -> Result<(Vec<f64>, History)> {
    let _on = device.enter();
    let losses = Losses::default();
    let mut trainer = trainer(policy, optimizer)?.callback(losses.clone()).held_out(data()?);
    let history = trainer.fit(&data()?, Until::Epochs(2))?;
    let kept = losses.0.lock().expect("nobody panics").clone();
    Ok((kept, history))
}

fn bits(variables: &[Variable]) -> Result<Vec<Vec<u64>>> {
    let bits = |variable: &Variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    variables.iter().map(bits).collect()
}

fn all_bits(model: &Model, optimizer: &Optimizer) -> Result<Vec<Vec<u64>>> {
    Ok([bits(&model.variables())?, bits(&optimizer.variables())?].concat())
}

#[test]
fn losses_follow_those_of_the_cpu() -> Result<()> {
    let gpu = gpu()?;
    type Case = (Policy, fn() -> Optimizer, f64);
    let optimizers: [Case; 3] = [
        (Policy::Float32, || Adam::new(0.01).build().clip_norm(1.0), 1e-4),
        (Policy::Float32, || SGD::new(0.05).momentum(0.9).build(), 1e-4),
        // A bfloat16 has eight bits, and rounding differs from the first product on.
        (Policy::MixedBfloat16, || AdamW::new(0.01).build(), 0.05),
    ];
    for (policy, optimizer, tolerance) in optimizers {
        let (on_cpu, told_by_cpu) = losses_on(&Device::separate_cpu(), policy, optimizer())?;
        let (on_gpu, told_by_gpu) = losses_on(&gpu, policy, optimizer())?;
        assert_eq!((on_cpu.len(), on_gpu.len()), (6, 6));
        for (step, (cpu, gpu)) in on_cpu.iter().zip(&on_gpu).enumerate() {
            assert!((cpu - gpu).abs() <= tolerance, "{policy:?}, step {step}: {cpu} and {gpu}");
        }
        let held_out = |history: &History| {
            history.epochs.last().and_then(|epoch| Some(epoch.held_out.as_ref()?.loss)).unwrap_or(f64::NAN)
        };
        let (cpu, gpu) = (held_out(&told_by_cpu), held_out(&told_by_gpu));
        assert!((cpu - gpu).abs() <= tolerance, "{policy:?}, held out: {cpu} and {gpu}");
    }
    Ok(())
}

#[test]
fn a_recurrent_model_follows_the_cpu() -> Result<()> {
    let steps_on = |device: &Device| {
        let _on = device.enter();
        set_seed(2);
        let model = Sequential::new().add(LSTM::new(8)).add(Dense::new(3)).build([5, 4])?;
        let inputs = Tensor::randn([6, 5, 4])?.owned_by(Owner::Data);
        let labels = Tensor::from_vec((0..6i64).map(|idx| idx % 3).collect())?.owned_by(Owner::Data);
        let losses = Losses::default();
        let mut trainer = Trainer::new(model, Adam::new(0.02).build(), loss()).callback(losses.clone());
        trainer.fit(&vec![Batch::new(inputs, labels)], Until::Steps(4))?;
        let kept = losses.0.lock().expect("nobody panics").clone();
        Ok::<Vec<f64>, Error>(kept)
    };
    let (on_cpu, on_gpu) = (steps_on(&Device::separate_cpu())?, steps_on(&gpu()?)?);
    for (cpu, gpu) in on_cpu.iter().zip(&on_gpu) {
        assert!((cpu - gpu).abs() <= 1e-4, "{on_cpu:?} and {on_gpu:?}");
    }
    Ok(())
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_never_stopped() -> Result<()> {
    let device = gpu()?;
    let _on = device.enter();
    let folder = std::env::temp_dir().join(format!("plimsoll-gpu-resume-{}", std::process::id()));
    let adam = || Adam::new(0.01).build();
    let mut whole = trainer(Policy::Float32, adam())?;
    whole.fit(&data()?, Until::Steps(5))?;
    let mut first = trainer(Policy::Float32, adam())?;
    first.fit(&data()?, Until::Steps(2))?;
    first.save(&folder)?;
    let mut second = trainer(Policy::Float32, adam())?;
    second.resume(&folder)?;
    second.fit(&data()?, Until::Steps(5))?;
    std::fs::remove_dir_all(&folder).map_err(|error| Error::io(&folder, error))?;
    assert_eq!(all_bits(whole.model(), whole.optimizer())?, all_bits(second.model(), second.optimizer())?);
    Ok(())
}

#[test]
fn a_loss_that_is_not_finite_changes_nothing_and_is_explained() -> Result<()> {
    let device = gpu()?;
    let _on = device.enter();
    let pair = |value: f32| {
        let mut values = vec![0.5f32; 24];
        values[7] = value;
        let labels = Tensor::from_vec((0..4i64).map(|idx| idx % 3).collect())?;
        Ok::<Batch, Error>(Batch::new(Tensor::from_slice(&values, [4, 6])?, labels))
    };
    let with_bad = vec![pair(1.0)?, pair(f32::NAN)?, pair(2.0)?];
    let without = vec![pair(1.0)?, pair(1.5)?, pair(2.0)?];
    let after = |steps: u64| {
        let mut trainer = trainer(Policy::Float32, Adam::new(0.01).build())?;
        trainer.fit(&without, Until::Steps(steps))?;
        Ok::<_, Error>((all_bits(trainer.model(), trainer.optimizer())?, Generator::current()))
    };
    // Dropout draws from the thread's generator, so one run ends before the next begins.
    let (after_one, after_two) = (after(1)?, after(2)?);
    let mut bad = trainer(Policy::Float32, Adam::new(0.01).build())?.callback(Losses::default());
    let error = bad.fit(&with_bad, Until::Epochs(1)).expect_err("the second batch holds NaN").to_string();
    assert!(error.contains("the loss is NaN") && error.contains("batch 2 of epoch 1"), "{error}");
    assert!(error.contains("\"inputs\" holds NaN at [1, 1]"), "{error}");
    assert_eq!((all_bits(bad.model(), bad.optimizer())?, Generator::current()), after_one);
    // The run goes on from there.
    bad.fit(&without, Until::Steps(2))?;
    assert_eq!((all_bits(bad.model(), bad.optimizer())?, Generator::current()), after_two);
    Ok(())
}

#[test]
fn a_label_that_is_no_class_is_an_error_and_changes_nothing() -> Result<()> {
    let device = gpu()?;
    let _on = device.enter();
    let pair = |label: i64| {
        let labels = Tensor::from_vec(vec![0, 1, label, 2])?;
        Ok::<Batch, Error>(Batch::new(Tensor::ones([4, 6])?, labels))
    };
    let mut bad = trainer(Policy::Float32, SGD::new(0.1).build())?;
    bad.fit(&vec![pair(2)?], Until::Steps(1))?;
    let before = bits(&bad.model().trainable_variables())?;
    let error = bad.fit(&vec![pair(7)?], Until::Steps(2)).expect_err("there are three classes");
    assert!(error.to_string().contains('7'), "{error}");
    assert_eq!(bits(&bad.model().trainable_variables())?, before);
    Ok(())
}

#[test]
fn batches_lie_on_the_device_that_iterates_and_are_made_on_its_host() -> Result<()> {
    let device = gpu()?;
    let _on = device.enter();
    let before = device.stats().in_use;
    let data = data()?;
    let mut n = 0;
    for batch in data.iterate_from(0, 0) {
        let [inputs, labels] = batch?.tensors()?;
        assert_eq!((inputs.device(), labels.device()), (device.clone(), device.clone()));
        assert_eq!((inputs.owner(), inputs.shape().dims()), (Owner::Data, &[16, 6][..]));
        let rows = inputs.shape()[0] * 6 * 4 + 16 * 8;
        assert!(device.stats().in_use - before >= rows as u64);
        n += 1;
    }
    assert_eq!((n, device.stats().in_use), (3, before));
    Ok(())
}

#[test]
fn a_ghost_of_the_gpu_takes_the_same_bytes() -> Result<()> {
    let train_on = |device: &Device| {
        let _on = device.enter();
        let pair = |n: usize| {
            let labels = Tensor::randint([n], 0, 3, DType::I64)?.owned_by(Owner::Data);
            Ok::<Batch, Error>(Batch::new(Tensor::randn([n, 6])?.owned_by(Owner::Data), labels))
        };
        let data = vec![pair(64)?, pair(64)?, pair(40)?];
        let mut trainer = trainer(Policy::MixedBfloat16, AdamW::new(0.01).build().clip_norm(1.0))?;
        trainer.fit(&data, Until::Epochs(2))?;
        let stats = device.stats();
        Ok::<_, Error>((stats.peak_in_use, stats.peak_committed, stats.in_use))
    };
    let device = gpu()?;
    let ghost = device.ghost();
    assert_eq!(train_on(&ghost)?, train_on(&device)?);
    Ok(())
}

#[test]
fn a_plan_of_a_run_on_a_gpu_is_the_run_to_the_byte() -> Result<()> {
    for policy in [Policy::Float32, Policy::MixedBfloat16] {
        let run = || -> Result<()> {
            let mut trainer = trainer(policy, Adam::new(0.01).build())?.accumulate(2).held_out(data()?);
            // Two epochs of three batches, and one step of the third.
            trainer.fit(&data()?, Until::Steps(7)).map(drop)
        };
        let device = gpu()?;
        let planned = plan(&device, run)?;
        let _on = device.enter();
        device.pool().reset_peaks();
        run()?;
        let stats = device.stats();
        let planned_peaks = (planned.peak_bytes, planned.committed_bytes, planned.owners);
        assert_eq!(planned_peaks, (stats.peak_in_use, stats.peak_committed, stats.peak_rows), "{policy:?}");
    }
    Ok(())
}

/// Words are looked up and attn to each other: both have gradients that can be made in any order.
fn reader(policy: Policy) -> Result<Trainer> {
    set_seed(5);
    let attn = Sequential::new().add(LayerNormalization::new()).add(MultiHeadAttention::new(2).causal());
    let layers = Sequential::new().add(Embedding::new(20, 16)).add(Residual::new(attn)).add(Dense::new(20));
    Ok(Trainer::new(with_policy(policy, || layers.build([8]))?, SGD::new(0.1).build(), loss()))
}

fn sentences() -> Result<Vec<Batch>> {
    set_seed(7);
    let words = || Ok::<Tensor, Error>(Tensor::randint([4, 8], 0, 20, DType::I64)?.owned_by(Owner::Data));
    (0..3).map(|_| Ok(Batch::new(words()?, words()?))).collect()
}

/// Under a limit, where steps are planned, run as planned and compared: bytes as planned, and losses as with one order.
#[test]
fn sums_in_any_order_are_planned_to_the_byte_and_change_last_bits_at_most() -> Result<()> {
    for (policy, tolerance) in [(Policy::Float32, 1e-5), (Policy::MixedBfloat16, 1e-2)] {
        let losses = [true, false].map(|is_deterministic| {
            let device = gpu()?.limit(Bytes::mib(64))?;
            device.set_deterministic(is_deterministic);
            device.set_verify(true);
            let run = || -> Result<Vec<f64>> {
                let losses = Losses::default();
                reader(policy)?.callback(losses.clone()).fit(&sentences()?, Until::Epochs(2))?;
                Ok(std::mem::take(&mut *losses.0.lock().expect("nobody panics")))
            };
            let planned = plan(&device, || run().map(drop))?;
            let _on = device.enter();
            device.pool().reset_peaks();
            let losses = run()?;
            let stats = device.stats();
            assert_eq!(
                (planned.peak_bytes, planned.owners),
                (stats.peak_in_use, stats.peak_rows),
                "{policy:?}"
            );
            Ok::<_, Error>(losses)
        });
        let [ordered, unordered] = losses;
        let (ordered, unordered) = (ordered?, unordered?);
        assert_eq!((ordered.len(), ordered[0]), (6, unordered[0]), "forward has one order");
        for (ordered, unordered) in ordered.iter().zip(&unordered) {
            assert!((ordered - unordered).abs() <= tolerance * ordered, "{policy:?}: {ordered}, {unordered}");
        }
    }
    Ok(())
}
