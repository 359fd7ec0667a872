//! The device that a plan is for: the ghost of this machine's CPU, of one of its GPUs, or of a GPU that is not there.
//!
//! No device is opened: a GPU of this machine is asked for its model, which takes none of its memory.

use std::path::Path;

use plimsoll::hardware::{Profile, profile_of};
use plimsoll::threads;
use plimsoll::{Device, set_seed};

use crate::failure::Failure;
use crate::machine;
use crate::options::PlanOptions;
use crate::session::{HostShares, allow_spilling, checked, host_limit};
use crate::size::Limit;

/// What a plan is for.
pub struct Target {
    /// A ghost, under the limit.
    pub device: Device,
    /// The name of the device that it stands for.
    pub name: String,
    /// The model of that device.
    pub profile: String,
    /// The limit, and who set it.
    pub limit: Limit,
}

impl Target {
    /// The device that the options name.
    ///
    /// # Errors
    /// An unknown device or model; a limit that leaves room for nothing.
    pub fn of(options: &PlanOptions) -> Result<Target, Failure> {
        let run = &options.run;
        threads::set_threads(run.threads.map_or(0, |n| n.get()));
        set_seed(run.seed);
        let number = match run.device.as_deref().map(Device::gpu_number).transpose() {
            Ok(number) => number,
            Err(error) => return Err(Failure::options(format!("--device: {error}"))),
        };
        let target = match (options.planned_device.as_deref(), number) {
            (Some(model), Some(None)) => {
                return Err(Failure::options(format!(
                    "--as {model}: it is a model of GPU, and --device is cpu; write --device cuda:0, or leave it out"
                )));
            }
            (Some(model), number) => Target::gpu(number.flatten().unwrap_or(0), described(model)?, options)?,
            (None, Some(None)) => Target::cpu(options)?,
            (None, Some(Some(number))) => {
                let profile = profile_of(number).map_err(|error| {
                    Failure::options(format!(
                        "--device cuda:{number}: {error}; name a model with --as to plan for it"
                    ))
                })?;
                Target::gpu(number, profile, options)?
            }
            // As `train` does: the first GPU where there is one, else the CPU.
            (None, None) => match profile_of(0) {
                Ok(profile) => Target::gpu(0, profile, options)?,
                Err(_) => Target::cpu(options)?,
            },
        };
        target.device.set_limit(target.limit.bytes.map(Into::into))?;
        allow_spilling(&target.device, options.spill.as_deref())?;
        target.device.set_deterministic(!run.nondeterministic);
        Ok(target)
    }

    fn cpu(options: &PlanOptions) -> Result<Target, Failure> {
        let limit = host_limit(&[options.run.limit, options.run.host_limit])?;
        let profile = machine::processor().unwrap_or_else(|| "unknown processor".to_owned());
        Ok(Target { device: Device::ghost_cpu(), name: "cpu".to_owned(), profile, limit })
    }

    fn gpu(number: usize, profile: Profile, options: &PlanOptions) -> Result<Target, Failure> {
        // What is free on a GPU that is not opened is what the driver leaves.
        let has_others = options.cluster.as_ref().is_some_and(|cluster| cluster.n_ranks.get() > 1);
        let communicator = if has_others { profile.communicator_bytes } else { 0 };
        let free = (profile.memory_bytes - profile.outside_bytes).saturating_sub(communicator);
        let limit = checked(Limit::resolve(options.run.limit, profile.memory_bytes, free))?;
        let (name, model) = (format!("cuda:{number}"), profile.name.clone());
        let device = Device::ghost_cuda(profile);
        // Nobody knows the host of a GPU that is not there, unless `--host-limit` says what it has.
        if options.planned_device.is_none() || options.run.host_limit.is_some() {
            device.set_offload(HostShares::of(options.run.host_limit)?.offload.as_ref())?;
        }
        Ok(Target { device, name, profile: model, limit })
    }
}

/// The model of a short name, or of a file.
fn described(model: &str) -> Result<Profile, Failure> {
    if let Some(profile) = Profile::named(model) {
        return Ok(profile);
    }
    let path = Path::new(model);
    match path.is_file() {
        true => Profile::read(path).map_err(|error| Failure::file(format!("--as {error}"))),
        false => {
            let known: Vec<&str> = Profile::names().collect();
            Err(Failure::options(format!(
                "--as {model}: there is neither such a model nor such a file; the models are {}",
                known.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    fn target(arguments: &str) -> Result<Target, Failure> {
        let words = ["plimsoll", "plan", "digits"].into_iter().chain(arguments.split_whitespace());
        match Options::parse_from(words).command {
            Command::Plan(options) => Target::of(&options),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_plan_is_for_sums_in_the_order_that_the_run_has() -> Result<(), Failure> {
        assert!(target("--as h200")?.device.is_deterministic());
        assert!(!target("--as h200 --nondeterministic")?.device.is_deterministic());
        assert!(target("--device cpu --nondeterministic")?.device.is_deterministic());
        Ok(())
    }
}
