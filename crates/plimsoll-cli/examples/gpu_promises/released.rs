//! What is dropped goes back to the driver by itself.

use std::time::Instant;

use plimsoll::nn::Policy;
use plimsoll::{Bytes, DType, Device, Function, GradientTape, Result, Tensor, Variable};

use super::Outcome;
use super::workload::{Training, recipe};

/// How many models are made, trained for a step and dropped.
const N_MODELS: usize = 100;

/// How many functions are made, called and dropped; after so many of them the driver's count stays.
const N_FUNCTIONS: usize = 1000;
const N_WARM_UP: usize = 10;

/// What the driver has free.
fn free(device: &Device) -> Result<u64> {
    match device.gpu() {
        Some(gpu) => Ok(gpu.memory()?.free),
        None => Ok(0),
    }
}

/// A run warms up what lies outside the pool; after that, and after each of a hundred models, the driver has the same
/// memory free, to the byte, without a call to `trim`.
pub fn after_each_model() -> Outcome {
    let run = || -> Result<Outcome> {
        let device = Device::separate_cuda(0)?;
        Training::start("gpt2-124m", &device)?.steps(2)?;
        device.trim();
        let (baseline, committed) = (free(&device)?, device.stats().committed);
        if committed != 0 {
            return Ok(Err(format!("{committed} bytes are committed after the warm-up run")));
        }
        Training::start("gpt2-124m", &device)?.steps(2)?;
        let again = free(&device)?;
        if again != baseline {
            return Ok(Err(format!(
                "{baseline} bytes were free after the first run, {again} after the second"
            )));
        }
        let small = recipe("mlp-784-1024-10-b512");
        Training::of(&small, Policy::Float32, 512, &device)?.steps(1)?;
        let baseline = free(&device)?;
        for number in 0..N_MODELS {
            Training::of(&small, Policy::Float32, 512, &device)?.steps(1)?;
            let now = free(&device)?;
            if now != baseline {
                return Ok(Err(format!("{baseline} bytes were free, {now} after model {number}")));
            }
        }
        Ok(Ok(format!("{again} bytes free each time, {N_MODELS} models with no call to `trim`")))
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// Functions that are called until they run as CUDA graphs, and dropped: the driver has the same memory free as after the first few, and
/// the pool nothing in use.
pub fn after_each_function() -> Outcome {
    let run = || -> Result<Outcome> {
        let device = Device::separate_cuda(0)?;
        let _on = device.enter();
        let (mut baseline, graphs_before) = (0, device.n_graph_launches());
        for number in 1..=N_FUNCTIONS {
            let weights = Variable::new(Tensor::randn([32, 32])?);
            let function = Function::new(move |x: Tensor| {
                let tape = GradientTape::new();
                let loss = tape.record(|| {
                    let y = x.matmul(&weights)?.tanh()?.matmul(&weights)?.sigmoid()?;
                    y.add(&Tensor::from_slice(&[0.5f32; 32], [32])?)?.square()?.mean(..)
                })?;
                let [gradient] = tape.gradient(&loss, [&weights])?;
                weights.assign_sub(&gradient)?;
                Ok(loss)
            });
            (0..4).try_for_each(|_| function.call(Tensor::ones([64, 32])?).map(drop))?;
            drop(function);
            device.synchronize()?;
            device.trim();
            let (now, in_use) = (free(&device)?, device.stats().in_use);
            if in_use != 0 {
                return Ok(Err(format!("{in_use} bytes are in use after function {number}")));
            }
            if number == N_WARM_UP {
                baseline = now;
            } else if number > N_WARM_UP && now != baseline {
                return Ok(Err(format!("{baseline} bytes were free, {now} after function {number}")));
            }
        }
        let n_graphs = device.n_graph_launches() - graphs_before;
        Ok(Ok(format!("{N_FUNCTIONS} functions, {n_graphs} of their runs as graphs")))
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// The driver's free memory falls by what the pool commits, and by nothing else, while a model is trained.
pub fn reconciled() -> Outcome {
    let run = || -> Result<Outcome> {
        let device = Device::separate_cuda(0)?;
        Training::start("gpt2-124m", &device)?.steps(2)?;
        device.trim();
        let idle = free(&device)?;
        let mut training = Training::start("gpt2-124m", &device)?;
        training.steps(3)?;
        let (used, committed) = (idle - free(&device)?, device.stats().committed);
        Ok(if used == committed {
            Ok(format!("{} used by the driver's account and by the pool's", Bytes::new(used)))
        } else {
            Err(format!("the driver counts {used} bytes, the pool {committed}"))
        })
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// How long it takes to give 16 GiB back.
pub fn time_of_trim() -> Outcome {
    let run = || -> Result<Outcome> {
        let device = Device::separate_cuda(0)?;
        let _on = device.enter();
        let small = Tensor::zeros([1])?;
        let blocks: Vec<Tensor> =
            (0..16).map(|_| Tensor::zeros_of([1 << 28], DType::F32)).collect::<Result<_>>()?;
        device.synchronize()?;
        drop(blocks);
        let started = Instant::now();
        let given = device.trim();
        let ms = started.elapsed().as_secs_f64() * 1e3;
        drop(small);
        Ok(if given.get() >= 16 << 30 && ms <= 100.0 {
            Ok(format!("{given} in {ms:.0} ms"))
        } else {
            Err(format!("{given} in {ms:.0} ms; 16 GiB within 100 ms were promised"))
        })
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}
