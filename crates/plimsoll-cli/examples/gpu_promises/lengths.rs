//! Training on texts of many lengths does not fragment the pool.

use std::fmt;

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

/// The number of lengths of the run that becomes steady.
const N_LENGTHS: usize = 16;

/// Sixteen lengths between 64 and 1024: at most 1.12, and no memory call once each has been seen.
pub fn sixteen(device: &Device) -> Outcome {
    let mut draw = Draw(1);
    let mut lengths = Vec::new();
    while lengths.len() < N_LENGTHS {
        let length = 64 + draw.below(961);
        if !lengths.contains(&length) {
            lengths.push(length);
        }
    }
    let drawn: Vec<usize> = (0..N_STEPS).map(|_| lengths[draw.below(N_LENGTHS)]).collect();
    let run = train(device, &drawn).map_err(|error| error.to_string())?;
    // A run that never had its steady steps would prove nothing.
    let (n_steps, n_calls) = (run.calls_of_late_steps.len(), run.calls_of_late_steps.iter().sum::<u64>());
    let text = format!("{run}, {n_calls} memory calls in the {n_steps} steps after each length was seen");
    if run.ratio() <= 1.12 && n_steps > 0 && n_calls == 0 { Ok(text) } else { Err(text) }
}

/// Any length between 64 and 1024: at most 1.15.
pub fn all(device: &Device) -> Outcome {
    let mut draw = Draw(1);
    let drawn: Vec<usize> = (0..N_STEPS).map(|_| 64 + draw.below(961)).collect();
    let run = train(device, &drawn).map_err(|error| error.to_string())?;
    if run.ratio() <= 1.15 { Ok(run.to_string()) } else { Err(run.to_string()) }
}

/// What a run came to.
struct Run {
    peak_committed: u64,
    peak_in_use: u64,
    /// The memory calls of each step after as many lengths were seen as the steady run has.
    calls_of_late_steps: Vec<u64>,
}

impl Run {
    fn ratio(&self) -> f64 {
        self.peak_committed as f64 / self.peak_in_use as f64
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({} committed, {} in use)", self.ratio(), self.peak_committed, self.peak_in_use)
    }
}

fn train(device: &Device, lengths: &[usize]) -> Result<Run> {
    let mut training = Training::of(&recipe("gpt2-124m"), Policy::MixedBfloat16, 1, device)?;
    let mut seen: Vec<usize> = Vec::new();
    let mut calls_of_late_steps = Vec::new();
    for &length in lengths {
        let was_seen = seen.contains(&length);
        if !was_seen {
            seen.push(length);
        }
        let before = device.stats().source.total();
        let _on = device.enter();
        // Data, as the batches of a dataset are: they outlive the step, and lie where steps do not.
        let tokens = || with_owner(Owner::Data, || Tensor::randint([BATCH, length], 0, 50_257, DType::I64));
        training.step_on(tokens()?, tokens()?)?;
        if was_seen && seen.len() == N_LENGTHS {
            calls_of_late_steps.push(device.stats().source.total() - before);
        }
    }
    let stats = device.stats();
    Ok(Run { peak_committed: stats.peak_committed, peak_in_use: stats.peak_in_use, calls_of_late_steps })
}
