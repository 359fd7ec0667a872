//! What the program knows of a run before it begins, by making it on ghosts first.
//!
//! A run that its limit cannot hold is refused before its first step, with the least limit that works. What keeps a ghost
//! from the run for another reason, such as data that only values can tell, keeps the program from predicting and not from
//! running.

use plimsoll::Device;
use plimsoll::nn::plan::{Peaks, RunError, least_limit, predict};
use plimsoll_memory::Bytes;

use crate::failure::Failure;
use crate::options::TrainOptions;
use crate::prepared::Prepared;
use crate::recipe::Recipe;

/// The whole run on the current device, with nobody told of it; for ghosts.
///
/// # Errors
/// Those of the run.
pub fn dry_run(recipe: &Recipe, options: &TrainOptions) -> Result<(), Failure> {
    let mut run = Prepared::new(recipe, options)?.saving(options);
    run.take_up(options)?;
    run.fit()?;
    run.last_part().map(drop)
}

/// The peaks that a run will have on a device as it is, if they can be known.
///
/// # Errors
/// A limit that cannot be kept; the message names the least that can.
pub fn peaks(recipe: &Recipe, options: &TrainOptions, device: &Device) -> Result<Option<Peaks>, Failure> {
    match predict(device, || dry_run(recipe, options)) {
        Ok(peaks) => Ok(Some(peaks)),
        Err(refused) if refused.is_over_limit() => Err(with_least_limit(refused, recipe, options, device)),
        Err(_) => Ok(None),
    }
}

/// A run that was refused for its limit, with the least that works added to the message.
pub fn with_least_limit(
    refused: Failure,
    recipe: &Recipe,
    options: &TrainOptions,
    device: &Device,
) -> Failure {
    match least_limit(device, || dry_run(recipe, options)) {
        // What keeps a ghost from the run is not what kept the run, and the first failure is the one to report.
        Err(_) => refused,
        Ok(least) => {
            let (least, mib) = (Bytes::new(least), least >> 20);
            let message = format!(
                "{refused}\n  the least limit that works for the whole run: {least}, or --limit {mib}MiB"
            );
            Failure { message, ..refused }
        }
    }
}
