//! Runs under a limit, and what came of them.

use std::sync::{Arc, Mutex};

use plimsoll_memory::Pool;
use plimsoll_memory::testing::FinePages;
use plimsoll_nn::train::callbacks::LambdaCallback;
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Bytes, Device, Recomputed, Result, Variable};

use crate::models::Task;

/// The unit in which limits differ.
pub const GRANULE: u64 = 64 << 10;

/// The epochs of a run: the second begins with a pool that the first has left behind.
const N_EPOCHS: u64 = 2;

/// A CPU with a pool of its own in small granules.
pub fn device() -> Device {
    Device::over("cpu", Pool::new(FinePages::new().expect("the system has addresses to spare")))
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The bits of each step's loss.
    pub losses: Vec<u64>,
    /// The bits of all that the model and the optimizer hold.
    pub state: Vec<Vec<u64>>,
}

/// What a run took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    pub peak_in_use: u64,
    pub peak_committed: u64,
    pub repeated: Recomputed,
}

/// Trains under a limit that holds from before the model is built; with `verify`, what is recomputed is compared with
/// what it first was.
///
/// # Errors
/// What the training says.
pub fn run(task: &Task, limit: Option<u64>, verify: bool) -> Result<(Outcome, Taken)> {
    let device = device();
    device.set_verify(verify);
    device.set_limit(limit.map(Bytes::new))?;
    let _on = device.enter();
    let data = task.batches()?;
    let mut trainer = task.trainer()?;
    let losses = Arc::new(Mutex::new(Vec::new()));
    let kept = losses.clone();
    trainer = trainer.callback(LambdaCallback::new().steps(move |event, _| {
        kept.lock().expect("nobody panics").push(event.loss.to_bits());
        Ok(())
    }));
    trainer.fit(&data, Until::Epochs(N_EPOCHS))?;
    let losses = losses.lock().expect("nobody panics").clone();
    let stats = device.stats();
    let taken = Taken {
        peak_in_use: stats.peak_in_use,
        peak_committed: stats.peak_committed,
        repeated: device.recomputed(),
    };
    Ok((Outcome { losses, state: state(&trainer)? }, taken))
}

/// The bits of all that a model and its optimizer hold, running statistics and values in full precision included.
pub fn state(trainer: &Trainer) -> Result<Vec<Vec<u64>>> {
    let variables = trainer.model().variables();
    let masters: Vec<Variable> = variables.iter().filter_map(|variable| variable.master().cloned()).collect();
    let bits = |variable: &Variable| Ok(variable.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    variables.iter().chain(&masters).chain(&trainer.optimizer().variables()).map(bits).collect()
}
