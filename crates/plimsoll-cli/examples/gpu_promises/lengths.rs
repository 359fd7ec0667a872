//! Training on texts of many lengths does not fragment the pool.

use plimsoll::nn::Policy;
use plimsoll::{DType, Device, Owner, Result, Tensor, with_owner};

use super::Outcome;
use super::workload::{Training, recipe};

const N_STEPS: usize = 200;
const BATCH: usize = 16;

/// Whole numbers that depend on a seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Sixteen lengths between 64 and 1024: at most 1.12, and no memory call once each has been seen.
pub fn sixteen() -> Outcome {
    Device::separate_cuda(0).map_or_else(|error| Err(error.to_string()), |device| sixteen_on(&device))
}

/// Any length between 64 and 1024: at most 1.15.
pub fn all() -> Outcome {
    Device::separate_cuda(0).map_or_else(|error| Err(error.to_string()), |device| all_on(&device))
}

/// The same on a given device, which may be a ghost.
pub fn sixteen_on(device: &Device) -> Outcome {
    let mut draw = Draw(1);
    let lengths: Vec<usize> = (0..16).map(|_| 64 + draw.below(961)).collect();
    let drawn: Vec<usize> = (0..N_STEPS).map(|_| lengths[draw.below(16)]).collect();
    train(device, &drawn, 1.12, true).unwrap_or_else(|error| Err(error.to_string()))
}

/// The same on a given device, which may be a ghost.
pub fn all_on(device: &Device) -> Outcome {
    let mut draw = Draw(1);
    let drawn: Vec<usize> = (0..N_STEPS).map(|_| 64 + draw.below(961)).collect();
    train(device, &drawn, 1.15, false).unwrap_or_else(|error| Err(error.to_string()))
}

fn train(device: &Device, lengths: &[usize], most: f64, is_steady: bool) -> Result<Outcome> {
    let mut training = Training::of(&recipe("gpt2-124m"), Policy::MixedBfloat16, 1, device)?;
    let mut seen: Vec<usize> = Vec::new();
    let mut late_calls = 0;
    for &length in lengths {
        let is_new = !seen.contains(&length);
        if is_new {
            seen.push(length);
        }
        let before = device.stats().source.total();
        let _on = device.enter();
        // Data, as the batches of a dataset are: they outlive the step, and lie where steps do not.
        let tokens = || with_owner(Owner::Data, || Tensor::randint([BATCH, length], 0, 50_257, DType::I64));
        training.step_on(tokens()?, tokens()?)?;
        if !is_new && seen.len() == 16 {
            late_calls += device.stats().source.total() - before;
        }
    }
    let stats = device.stats();
    let ratio = stats.peak_committed as f64 / stats.peak_in_use as f64;
    let text = format!(
        "{ratio:.3} ({} committed, {} in use), {late_calls} memory calls in steps of lengths seen before",
        stats.peak_committed, stats.peak_in_use
    );
    Ok(if ratio <= most && (!is_steady || late_calls == 0) { Ok(text) } else { Err(text) })
}
