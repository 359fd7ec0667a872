//! The least limit under which a run can be made, found by making it on ghosts.
//!
//! A ghost's pool takes and refuses what the real one would, so a limit works if a ghost gets through the run's set-up,
//! two full batches, the short last one and an evaluation; later steps repeat these. Saving takes no memory of the
//! device. It is asked for when a run has been refused; a plan that knows before the first step will take its place.

use plimsoll::Device;
use plimsoll::nn::train::Until;
use plimsoll_memory::{Bytes, GRANULE};

use crate::commands::train::allow_spilling;
use crate::failure::{Exit, Failure};
use crate::options::TrainOptions;
use crate::prepared::Prepared;
use crate::recipe::Recipe;

/// A run that was refused for its limit, with the least that works added to the message; any other failure as it is.
pub fn named(
    failure: Failure,
    recipe: &Recipe,
    options: &TrainOptions,
    device: &Device,
    refused: u64,
) -> Failure {
    if failure.exit != Exit::Limit {
        return failure;
    }
    match least(recipe, options, device, refused) {
        // What keeps a ghost from the run is not what kept the run, and the first failure is the one to report.
        Err(_) => failure,
        Ok(least) => {
            let (least, mib) = (Bytes::new(least), least >> 20);
            let message = format!(
                "{failure}\n  the least limit that works for the whole run: {least}, or --limit {mib}MiB"
            );
            Failure { message, ..failure }
        }
    }
}

/// The least limit that works, in whole granules; `refused` is one that does not.
fn least(recipe: &Recipe, options: &TrainOptions, device: &Device, refused: u64) -> Result<u64, Failure> {
    let most = peak_committed(recipe, options, device, None)?;
    let (mut fails, mut works) = (refused / GRANULE, most.div_ceil(GRANULE));
    while works > fails + 1 {
        let between = fails + (works - fails) / 2;
        match peak_committed(recipe, options, device, Some(between * GRANULE)) {
            Ok(_) => works = between,
            Err(failure) if failure.exit == Exit::Limit => fails = between,
            Err(failure) => return Err(failure),
        }
    }
    Ok(works * GRANULE)
}

/// Makes the run on a ghost of an idle device of that kind under a limit, as far as its steps differ from each other.
fn peak_committed(
    recipe: &Recipe,
    options: &TrainOptions,
    device: &Device,
    limit: Option<u64>,
) -> Result<u64, Failure> {
    let device = device.profile().cloned().map_or_else(Device::ghost_cpu, Device::ghost_cuda);
    device.set_limit(limit.map(Into::into))?;
    allow_spilling(&device, options)?;
    let _on = device.enter();
    let mut run = Prepared::new(recipe, options)?;
    let short = run.examples.len().map_or(0, |n| n % run.batch);
    let batches = run.batches(&run.examples.take(2 * run.batch + short))?;
    run.trainer.fit(&batches, Until::Epochs(1))?;
    Ok(device.stats().peak_committed)
}
