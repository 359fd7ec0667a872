//! Offloading: values that backward will read are copied out of a device's memory, freed and reloaded, and no bit changes.
//!
//! On the CPU they go to a nameless file, on a GPU to pinned memory of the host. The GPU is the one that
//! `PLIMSOLL_TEST_DEVICE` names, or else the emulated one, whose copies come as late as they may.

use std::path::PathBuf;

use plimsoll_plan::{Weights, decide};
use plimsoll_tensor::{
    Bytes, Decisions, Device, ErrorKind, GradientTape, Offload, PlannedProgram, Program, Result, Tensor,
    Trace, Variable, set_seed,
};
use plimsoll_testkit::device_under_test;

const BATCH: usize = 512;
const WIDTH: usize = 256;
const STEPS: usize = 5;

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

/// A step: layers with dropout, and an update of their weights.
fn step(weights: &[Variable], input: &Tensor) -> Result<()> {
    let tape = GradientTape::new();
    let loss = tape.record(|| {
        let mut x = input.clone();
        for weight in weights {
            x = x.matmul(weight)?.gelu()?.dropout(0.1)?;
        }
        x.square()?.mean(..)
    })?;
    let gradients = tape.variable_gradients(&loss, weights)?;
    for (weight, gradient) in weights.iter().zip(gradients) {
        weight.assign_sub(&gradient.mul(0.5)?)?;
    }
    Ok(())
}

/// A step as a program, with what it reads and writes.
struct Recorded {
    program: Program,
    weights: Vec<Variable>,
    input: Tensor,
}

impl Recorded {
    fn new(device: &Device) -> Result<Recorded> {
        let _on = device.enter();
        let weights = weights(device)?;
        let input = Tensor::randn([BATCH, WIDTH])?;
        let program = Program::record(device, &[&input], |input| {
            step(&weights, &input[0])?;
            Ok(Vec::new())
        })?;
        Ok(Recorded { program, weights, input })
    }

    /// The bits of all weights after some steps, as decided.
    fn train(self, device: &Device, trace: &Trace, decisions: Option<&Decisions>) -> Result<Vec<u32>> {
        let _on = device.enter();
        let Recorded { program, weights, input } = self;
        let program = match decisions {
            Some(decisions) => program.rematerialised(trace, decisions).expect("it can be recomputed"),
            None => program,
        };
        let mut program = PlannedProgram::new(program);
        for _ in 0..STEPS {
            program.run(&[&input])?;
        }
        let mut bits = Vec::new();
        for weight in &weights {
            bits.extend(weight.to_vec::<f32>()?.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }
}

#[test]
fn steps_that_move_values_give_the_same_bits() -> Result<()> {
    for (device, offload) in places()? {
        move_values(&device, &offload, false)?;
    }
    Ok(())
}

#[test]
fn steps_that_move_values_are_graphs_between_their_copies() -> Result<()> {
    let device = gpu()?;
    move_values(&device, &Offload::Host(Bytes::mib(256)), true)?;
    assert!(device.n_graph_launches() > 0);
    Ok(())
}

/// Steps with various decisions have the bits of launches without any, and keep to the bytes that were decided.
fn move_values(device: &Device, offload: &Offload, with_graphs: bool) -> Result<()> {
    device.set_offload(Some(offload))?;
    device.set_cuda_graphs(false)?;
    let recorded = Recorded::new(device)?;
    let trace = recorded.program.trace(device, device.stats().in_use);
    let natural = recorded.train(device, &trace, None)?;
    device.set_cuda_graphs(with_graphs)?;
    let mut n_prefetched = 0;
    for offload_weight in [0.0, 0.02] {
        let targets = [60, 80].map(|percent| trace.natural_peak() * percent / 100);
        let weights = Weights { distance_weight: 0.5, offload_weight };
        let plans = targets.map(|target| (target, decide(&trace, target, weights)));
        for (target, decisions) in plans {
            let Some(decisions) = decisions else { continue };
            let expected = decisions.offloaded_bytes * STEPS as u64;
            n_prefetched += decisions.prefetched.len();
            let recorded = Recorded::new(device)?;
            let before = device.offloaded().get();
            device.pool().reset_peaks();
            let moved = recorded.train(device, &trace, Some(&decisions))?;
            assert!(moved == natural, "{device}, {target} bytes, weight {offload_weight}: other bits");
            let peak = device.stats().peak_in_use;
            assert!(peak <= target, "{device}, weight {offload_weight}: {peak} is more than {target}");
            assert_eq!(device.offloaded().get() - before, expected, "{device}, weight {offload_weight}");
        }
    }
    assert!(device.offloaded().get() > 0, "{device} moved nothing");
    assert_eq!(n_prefetched > 0, !device.is_host(), "{device}");
    assert_eq!(device.stats().in_use, 0, "{device}");
    Ok(())
}

/// The gradients of a loss over layers, by a bare tape. What each layer makes reads a row from outside that is gone
/// afterwards, so it cannot be recomputed.
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
fn the_evictor_offloads_what_cannot_be_recomputed() -> Result<()> {
    for (device, offload) in places()? {
        let weights = weights(&device)?;
        let natural = bare(&device, &weights)?;
        // Twelve values of 2 MiB cannot be recomputed; a product and its gradients take a few of them.
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
