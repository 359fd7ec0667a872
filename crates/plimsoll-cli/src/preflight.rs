//! Preflight: what the program knows of a run before it begins, by a dry run on a ghost.
//!
//! A run that does not fit its limit is refused before its first step, with the least limit that works. Where a dry run
//! fails for another reason, such as data whose values must be read, the program does not predict, but it does run.

use plimsoll::Bytes;
use plimsoll::Device;
use plimsoll::nn::plan::{Footprint, RunError, agreed, least_limit, least_limit_of_ranks, predict};

use crate::failure::Failure;
use crate::options::TrainOptions;
use crate::recipe::Recipe;
use crate::run_setup::RunSetup;

/// The whole run on the current device without any report; for ghosts.
///
/// # Errors
/// Those of the run.
pub fn dry_run(recipe: &Recipe, options: &TrainOptions) -> Result<(), Failure> {
    dry_run_with(recipe, options, || ())
}

/// The same, being recorded: who keeps alive what is there after the last step is noted in the profile.
///
/// # Errors
/// Those of the run.
pub fn recorded_dry_run(recipe: &Recipe, options: &TrainOptions) -> Result<(), Failure> {
    dry_run_with(recipe, options, || drop(Device::current().why_alive()))
}

fn dry_run_with(recipe: &Recipe, options: &TrainOptions, after: impl FnOnce()) -> Result<(), Failure> {
    let mut run = RunSetup::new(recipe, options)?.saving(options);
    run.resume(options)?;
    run.fit()?;
    after();
    run.eval_partial_epoch().map(drop)
}

/// The predicted footprint of a run on a device as it is, if it can be predicted.
///
/// # Errors
/// A limit that cannot be kept; the message names the least that can.
pub fn predicted(
    recipe: &Recipe,
    options: &TrainOptions,
    device: &Device,
) -> Result<Option<Footprint>, Failure> {
    let predict = || predict(device, || dry_run(recipe, options));
    let outcome = match &options.strategy {
        None => predict(),
        Some(strategy) => agreed(strategy.communicator(), predict),
    };
    match outcome {
        Ok(footprint) => Ok(Some(footprint)),
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
    // All ranks are refused together.
    let least = match &options.strategy {
        None => least_limit(device, || dry_run(recipe, options)),
        Some(strategy) => least_limit_of_ranks(strategy.communicator(), device, || dry_run(recipe, options)),
    };
    match least {
        // The dry run failed for another reason than the run, whose failure is the one to report.
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
