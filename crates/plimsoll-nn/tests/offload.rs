//! Offloading: values that backward will read are moved out of a device's memory and back, and no bit changes.
//!
//! On the CPU they go to a nameless file, on a GPU to pinned memory of the host. The GPU is the one that
//! `PLIMSOLL_TEST_DEVICE` names, or else the emulated one, whose copies come as late as they may.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use plimsoll_nn::layers::{BatchNorm, Dense, Dropout, Sequential};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{Adam, Method};
use plimsoll_nn::train::{Callback, Pair, Requests, StepEvent, Trainer, Until};
use plimsoll_nn::{Layer, Model};
use plimsoll_plan::Family;
use plimsoll_tensor::{
    Activation, Bytes, Device, ErrorKind, GradientTape, Offload, Result, Tensor, Variable, set_seed,
};
use plimsoll_testkit::device_under_test;

const BATCH: usize = 128;
const WIDTH: usize = 256;
const STEPS: u64 = 12;

fn gpu() -> Result<Device> {
    match std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu") {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    }
}

/// A folder on a disk.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The ways to offload: a device and where its values go.
fn places() -> Result<Vec<(Device, Offload)>> {
    Ok(vec![(Device::separate_cpu(), Offload::Folder(folder())), (gpu()?, Offload::Host(Bytes::mib(256)))])
}

fn model() -> Result<Model> {
    let block = |model: Sequential| {
        let dense = Dense::new(WIDTH).activation(Activation::Gelu);
        model.add(dense).add(BatchNorm::new()).add(Dropout(0.1))
    };
    (0..5).fold(Sequential::new(), |model, _| block(model)).add(Dense::new(10)).build([WIDTH])
}

fn pairs(device: &Device) -> Result<Vec<Pair>> {
    let _on = device.enter();
    set_seed(21);
    let labels: Vec<i64> = (0..BATCH as i64).map(|idx| idx % 10).collect();
    let pair = |_| {
        let labels = Tensor::from_vec(labels.clone())?;
        Ok(Pair { inputs: Tensor::randn([BATCH, WIDTH])?, labels })
    };
    (0..3).map(pair).collect()
}

fn trainer(device: &Device) -> Result<Trainer> {
    let _on = device.enter();
    set_seed(5);
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Ok(Trainer::new(model()?, Adam::new(1e-3).build(), loss))
}

#[derive(Clone, Default)]
struct Losses(Rc<RefCell<Vec<u64>>>);

impl Callback for Losses {
    fn name(&self) -> &str {
        "losses"
    }

    fn waits_for(&self, _step: u64) -> bool {
        false
    }

    fn on_step(&mut self, event: &StepEvent, _run: &mut Requests<'_>) -> Result<()> {
        self.0.borrow_mut().push(event.loss.to_bits());
        Ok(())
    }
}

/// Trains for a few steps; returns the bits of all losses and of all variables.
fn train(device: &Device, pairs: &Vec<Pair>) -> Result<(Vec<u64>, Vec<u32>)> {
    let _on = device.enter();
    let losses = Losses::default();
    let mut trainer = trainer(device)?.callback(losses.clone());
    trainer.fit(pairs, Until::Steps(STEPS))?;
    let mut bits = Vec::new();
    for variable in trainer.model().variables() {
        bits.extend(variable.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    let losses = losses.0.borrow().clone();
    Ok((losses, bits))
}

/// The ways to make a step on a device.
fn ways(device: &Device, pairs: &[Pair]) -> Result<Family> {
    let _on = device.enter();
    trainer(device)?.ways(&pairs[0])
}

#[test]
fn steps_that_move_values_give_the_same_bits() -> Result<()> {
    for (device, offload) in places()? {
        let pairs = pairs(&device)?;
        let natural = train(&device, &pairs)?;
        assert_eq!(device.offloaded().get(), 0);
        device.set_offload(Some(&offload))?;
        let family = ways(&device, &pairs)?;
        let moving = |member: &&plimsoll_plan::Member| {
            member.decisions.as_ref().is_some_and(|decisions| decisions.offloaded_bytes > 0)
        };
        let limits: Vec<u64> = family.members().iter().filter(moving).map(|it| it.played.committed).collect();
        assert!(!limits.is_empty(), "{device}: no way moves values");
        for limit in [limits[0], limits[limits.len() / 2]] {
            let before = device.offloaded().get();
            device.set_limit(Some(Bytes::new(limit)))?;
            device.pool().reset_peaks();
            let limited = train(&device, &pairs)?;
            assert!(device.stats().peak_committed <= limit, "{device} under {limit}");
            assert!(device.offloaded().get() > before, "{device} under {limit} moved nothing");
            assert!(limited == natural, "{device} under {limit}: other bits");
            device.set_limit(None)?;
        }
        drop(pairs);
        assert_eq!(device.stats().in_use, 0, "{device}");
    }
    Ok(())
}

#[test]
fn with_a_place_to_move_values_to_less_memory_is_enough() -> Result<()> {
    let device = Device::separate_cpu();
    let pairs = pairs(&device)?;
    let without = ways(&device, &pairs)?.least();
    device.set_offload(Some(&Offload::Folder(folder())))?;
    let with = ways(&device, &pairs)?.least();
    assert!(with < without, "{with} with, {without} without");
    Ok(())
}

/// The gradients of a loss over layers, by a bare tape. What each layer makes reads a row from outside that is gone
/// afterwards, so it cannot be made again.
fn bare(device: &Device, weights: &[Variable]) -> Result<Vec<u32>> {
    let _on = device.enter();
    set_seed(8);
    let mut x = Tensor::randn([2048, WIDTH])?;
    let mut rows = weights.iter().map(|_| Tensor::randn([WIDTH])).collect::<Result<Vec<Tensor>>>()?;
    let tape = GradientTape::new();
    let loss = tape.record(|| {
        for weight in weights {
            let row = rows.pop().expect("a row for each weight");
            x = x.matmul(weight)?.tanh()?.add(&row)?;
        }
        x.square()?.sum(..)
    })?;
    drop(x);
    let gradients = tape.variable_gradients(&loss, weights)?;
    let mut bits = Vec::new();
    for gradient in gradients {
        bits.extend(gradient.to_vec::<f32>()?.into_iter().map(f32::to_bits));
    }
    Ok(bits)
}

fn weights(device: &Device) -> Result<Vec<Variable>> {
    let _on = device.enter();
    set_seed(3);
    (0..12).map(|_| Ok(Variable::new(Tensor::randn([WIDTH, WIDTH])?.mul(0.05)?))).collect()
}

#[test]
fn the_guard_moves_what_cannot_be_made_again() -> Result<()> {
    for (device, offload) in places()? {
        let weights = weights(&device)?;
        let natural = bare(&device, &weights)?;
        // Twelve values of 2 MiB cannot be made again; a product and its gradients take a few of them.
        let limit = device.stats().in_use.next_multiple_of(2 << 20) + (16 << 20);
        device.set_limit(Some(Bytes::new(limit)))?;
        let error = bare(&device, &weights).expect_err("there is no room, and nowhere else to go");
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
        device.set_offload(Some(&offload))?;
        device.pool().reset_peaks();
        for _ in 0..3 {
            assert!(bare(&device, &weights)? == natural, "{device}");
        }
        assert!(device.stats().peak_committed <= limit && device.offloaded().get() > 0, "{device}");
    }
    Ok(())
}

#[test]
fn a_place_that_is_not_for_a_device_is_refused() -> Result<()> {
    let cpu = Device::separate_cpu();
    let error = cpu.set_offload(Some(&Offload::Host(Bytes::mib(1)))).expect_err("the CPU is the host");
    assert!(error.to_string().contains("folder"), "{error}");
    let missing = Offload::Folder(folder().join("nowhere"));
    let error = cpu.set_offload(Some(&missing)).expect_err("the folder is not there");
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
    assert!(!cpu.can_offload());
    let gpu = gpu()?;
    assert!(gpu.set_offload(Some(&Offload::Folder(folder()))).is_err());
    Ok(())
}
