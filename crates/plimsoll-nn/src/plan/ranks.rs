//! Plans of a run that several ranks make together.
//!
//! Ranks that have a model's parameters in shards run the same plan of a step, which must fit on all of them. So dry runs are made
//! by all ranks at the same time, and again with what the others need, until nothing changes; what they say then is what the run does.

use std::sync::Arc;

use plimsoll_dist::{Communicator, Settled};
use plimsoll_tensor::{Bytes, Device, Error, Rows};

use super::{Plan, RunError, least_limit, one, tracked};

/// Makes dry runs until all ranks agree; all of them call this at the same time, each with a dry run of its own part.
///
/// # Errors
/// Those of the dry run; a limit that another rank cannot keep.
pub fn agreed<R, E: RunError>(
    communicator: &Arc<dyn Communicator>,
    mut dry_run: impl FnMut() -> Result<R, E>,
) -> Result<R, E> {
    let agreements = communicator.agreements();
    agreements.begin();
    loop {
        let outcome = dry_run();
        if communicator.size() == 1 {
            return outcome;
        }
        let refused = match &outcome {
            Err(error) if error.is_over_limit() => Some(error.enough().unwrap_or(0)),
            Err(error) => {
                communicator.report_failure(&error.to_string());
                return outcome;
            }
            Ok(_) => None,
        };
        match agreements.settle(&communicator.all_gather(&agreements.note(refused))?)? {
            Settled::No => {}
            Settled::Yes => return outcome,
            Settled::Refused { .. } if refused.is_some() => return outcome,
            Settled::Refused { rank, least } => {
                let refusal = Error::limit(least, least, least, Rows::default());
                return Err(Error::within(format!("rank {rank} cannot keep its limit"), refusal).into());
            }
        }
    }
}

/// Plans this rank's part of a run as [`plan`](super::plan) does; all ranks call this at the same time. A limit that one of them
/// cannot keep is refused on all.
///
/// # Errors
/// Those of the run, except for a limit that cannot be kept, which is in the plan; a rank that fails.
pub fn plan_of_ranks<E: RunError>(
    communicator: &Arc<dyn Communicator>,
    device: &Device,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<Plan, E> {
    let limit = device.pool().limit();
    let mut planned = |limit: Option<Bytes>| {
        let mut plans = tracked(std::slice::from_ref(device), &[limit], |_| run())?;
        Ok::<Plan, E>(plans.swap_remove(0))
    };
    match agreed(communicator, || planned(limit)) {
        Err(error) if error.is_over_limit() => {
            let limit = limit.map(Bytes::get);
            communicator.agreements().begin();
            Ok(Plan { limit, refusal: Some(error.to_string()), ..planned(None)? })
        }
        other => other,
    }
}

/// The least limit under which all ranks can make a run, each on its device as it is, in whole granules; all ranks call this at the
/// same time.
///
/// # Errors
/// Those of the run without a limit; a rank that fails.
pub fn least_limit_of_ranks<E: RunError>(
    communicator: &Arc<dyn Communicator>,
    device: &Device,
    mut run: impl FnMut() -> Result<(), E>,
) -> Result<u64, E> {
    communicator.agreements().begin();
    let mut own = least_limit(device, &mut run)?;
    loop {
        let all = communicator.all_gather(&own.to_le_bytes())?;
        let limits = all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap_or_default()));
        let limit = limits.max().unwrap_or(own);
        let dry_run = || one(super::dry_run(&[device.ghost()], &[Some(Bytes::new(limit))], |_| run()));
        match agreed(communicator, dry_run) {
            Ok(_) => return Ok(limit),
            // What one rank needs may be more than another one has room for, where each alone would have another plan.
            Err(error) if error.is_over_limit() => own = limit + device.pool().granule(),
            Err(error) => return Err(error),
        }
    }
}
