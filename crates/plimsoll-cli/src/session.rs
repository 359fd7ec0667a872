//! What a run stands on: threads, the device with its limit, the policy and the seed.

use plimsoll::nn::Policy;
use plimsoll::{Device, set_seed};
use plimsoll_cpu::threads;

use crate::failure::{Exit, Failure};
use crate::machine::HostMemory;
use crate::options::RunOptions;
use crate::size::{Limit, LimitFrom};

/// A device that is ready, and how it was set up.
#[derive(Debug)]
pub struct Session {
    /// Where the run happens.
    pub device: Device,
    /// The most that its pool may commit, and who said so.
    pub limit: Limit,
    /// How layers compute.
    pub policy: Policy,
    /// What everything random is drawn from.
    pub seed: u64,
}

impl Session {
    /// Sets threads, limit and seed as the options say.
    ///
    /// # Errors
    /// A device that is not there; a limit that cannot be kept.
    pub fn open(options: &RunOptions) -> Result<Session, Failure> {
        threads::set_threads(options.threads.map_or(0, |n| n.get()));
        let name = options.device.as_deref().unwrap_or("cpu");
        let device = Device::named(name).map_err(|error| Failure::options(format!("--device: {error}")))?;
        let limit = limit(options)?;
        device.set_limit(limit.bytes.map(Into::into))?;
        set_seed(options.seed);
        Ok(Session { device, limit, policy: options.precision, seed: options.seed })
    }
}

/// The limit of the CPU: the smaller of those that the options ask for, since device and host are one.
fn limit(options: &RunOptions) -> Result<Limit, Failure> {
    let memory = HostMemory::now();
    let (total, free) = match memory {
        Some(memory) => (memory.total, memory.default_limit()),
        // Without figures there is nothing to take a share of, and no default but none.
        None if options.limit.is_none() && options.host_limit.is_none() => {
            return Ok(Limit { bytes: None, from: LimitFrom::None });
        }
        None => (u64::MAX, u64::MAX),
    };
    let asked = [options.limit, options.host_limit].into_iter().flatten();
    let limits = asked.map(|size| Limit::resolve(Some(size), total, free));
    let limit = limits.min_by_key(|limit| limit.bytes.unwrap_or(u64::MAX));
    let limit = limit.unwrap_or_else(|| Limit::resolve(None, total, free));
    match limit.bytes {
        Some(0) => Err(Failure {
            exit: Exit::Limit,
            message: "a limit of 0 bytes leaves room for nothing; the least that can work is 2MiB".to_owned(),
        }),
        _ => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use plimsoll::Bytes;

    use super::*;
    use crate::options::{Command, Options};

    fn limit_of(arguments: &str) -> Result<Limit, Failure> {
        let words = ["plimsoll", "train", "digits"].into_iter().chain(arguments.split_whitespace());
        match Options::parse_from(words).command {
            Command::Train(options) => limit(&options.run),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn the_smaller_of_both_limits_counts() -> Result<(), Failure> {
        let mib = |n| Some(Bytes::mib(n).get());
        assert_eq!(limit_of("--limit 64MiB --host-limit 32MiB")?.bytes, mib(32));
        assert_eq!(limit_of("--limit 64MiB --host-limit none")?.bytes, mib(64));
        assert_eq!(limit_of("--limit none")?, Limit { bytes: None, from: LimitFrom::None });
        assert_eq!(limit_of("")?.from, LimitFrom::Device);
        assert_eq!(limit_of("--limit 0").expect_err("nothing fits").exit, Exit::Limit);
        Ok(())
    }
}
