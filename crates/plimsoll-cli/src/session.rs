//! The environment of a run: threads, the device with its limit, and the seed.

use std::path::Path;

use plimsoll::threads;
use plimsoll::{Bytes, Device, DriverMemory, Error, Offload, set_seed};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::machine::{HostMemory, Resident};
use crate::options::RunOptions;
use crate::size::{Limit, LimitFrom, Size};

/// A device that is ready, and how it was set up.
#[derive(Debug)]
pub struct Session {
    /// The device of the run.
    pub device: Device,
    /// The most that its pool may commit, and who said so.
    pub limit: Limit,
    /// What everything random is drawn from.
    pub seed: u64,
}

impl Session {
    /// Sets threads, limits and seed as the options say.
    ///
    /// # Errors
    /// An unknown device; a limit that cannot be kept.
    pub fn open(options: &RunOptions) -> Result<Session, Failure> {
        threads::set_threads(options.threads.map_or(0, |n| n.get()));
        let device = match options.device.as_deref() {
            Some(name) => {
                Device::named(name).map_err(|error| Failure::options(format!("--device: {error}")))?
            }
            None => Device::best(),
        };
        // Now rather than in the middle of the run, and after the pool has its addresses.
        threads::start()
            .map_err(|error| Failure::other(format!("{error}; --threads 1 does without them")))?;
        let limit = match device.gpu() {
            None => host_limit(&[options.limit, options.host_limit])?.shared(options.n_sharing),
            Some(gpu) => {
                let host = HostShares::of(options.host_limit)?;
                Device::cpu().set_limit(host.pool)?;
                device.set_offload(host.offload.as_ref())?;
                let memory = gpu.memory().map_err(|error| Failure::other(error.to_string()))?;
                checked(Limit::resolve(options.limit, memory.total, memory.free))?.shared(options.n_sharing)
            }
        };
        device.set_limit(limit.bytes.map(Into::into))?;
        device.set_tf32(options.tf32);
        device.set_deterministic(!options.nondeterministic);
        set_seed(options.seed);
        Ok(Session { device, limit, seed: options.seed })
    }

    /// What lies outside the pool now, where the system or the driver reports it.
    pub fn outside(&self) -> Option<Outside> {
        match self.device.driver_memory() {
            Ok(Some(memory)) => Some(Outside::OnGpu(memory)),
            Ok(None) => {
                let resident = Resident::now()?.now;
                Some(Outside::InProcess(resident.saturating_sub(self.device.stats().committed)))
            }
            Err(_) => None,
        }
    }
}

/// What lies outside the pool.
#[derive(Clone, Copy, Debug)]
pub enum Outside {
    /// Bytes of this process.
    InProcess(u64),
    /// The whole GPU as its driver counts it.
    OnGpu(DriverMemory),
}

impl Outside {
    /// The bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Outside::InProcess(bytes) => bytes,
            Outside::OnGpu(memory) => memory.outside(),
        }
    }

    /// For a profile: what the system or the driver counts beside the pool.
    pub fn to_json(self) -> Value {
        let driver = match self {
            Outside::InProcess(_) => None,
            Outside::OnGpu(memory) => Some(memory),
        };
        json!({
            "outside_bytes": self.bytes(),
            "driver_used_bytes": driver.map(|memory| memory.used),
            "driver_total_bytes": driver.map(|memory| memory.total),
        })
    }
}

/// The limit of the host: the smallest of those that are asked for; on the CPU device and host are one.
pub fn host_limit(asked: &[Option<Size>]) -> Result<Limit, Failure> {
    let memory = HostMemory::now();
    let (total, free) = match memory {
        Some(memory) => (memory.total, memory.default_limit()),
        // Without figures there is nothing to take a share of, and no default but none.
        None if asked.iter().all(Option::is_none) => {
            return Ok(Limit { bytes: None, from: LimitFrom::None });
        }
        None => (u64::MAX, u64::MAX),
    };
    let limits = asked.iter().flatten().map(|&size| Limit::resolve(Some(size), total, free));
    let limit = limits.min_by_key(|limit| limit.bytes.unwrap_or(u64::MAX));
    checked(limit.unwrap_or_else(|| Limit::resolve(None, total, free)))
}

/// How a GPU uses the memory of its host.
#[derive(Debug, PartialEq, Eq)]
pub struct HostShares {
    /// The limit of the pool in which batches are made.
    pub pool: Option<Bytes>,
    /// Where the GPU may offload values: to the other half, unless that is too little to be worthwhile.
    pub offload: Option<Offload>,
}

impl HostShares {
    /// The shares under `--host-limit`.
    ///
    /// # Errors
    /// A limit that leaves room for nothing.
    pub fn of(asked: Option<Size>) -> Result<HostShares, Failure> {
        const LEAST: u64 = 256 << 20;
        let limit = host_limit(&[asked])?.bytes;
        let there = limit.or_else(|| HostMemory::now().map(|memory| memory.default_limit()));
        let pinned = there.map(|bytes| bytes / 2).filter(|&half| half >= LEAST);
        let pool = limit.map(|bytes| Bytes::new(bytes - pinned.unwrap_or(0)));
        Ok(HostShares { pool, offload: pinned.map(|bytes| Offload::Host(Bytes::new(bytes))) })
    }
}

/// Lets a device, or the ghost of one, offload values to the folder of `--spill`, if there is one.
///
/// # Errors
/// A device that is no CPU; a folder that cannot be used.
pub fn allow_spilling(device: &Device, folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    if !device.is_host() {
        return Err(Failure::options(
            "--spill is for the CPU; a GPU offloads values to the memory of its host, within --host-limit",
        ));
    }
    let said = |error: Error| Failure::with(Exit::File, format!("--spill: {error}"));
    device.set_offload(Some(&Offload::Folder(folder.to_owned()))).map_err(said)
}

/// Refuses a limit under which nothing fits.
pub fn checked(limit: Limit) -> Result<Limit, Failure> {
    match limit.bytes {
        Some(0) => {
            let message = "a limit of 0 bytes leaves room for nothing; the least that can work is 2MiB";
            Err(Failure::with(Exit::Limit, message))
        }
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
            Command::Train(options) => host_limit(&[options.run.limit, options.run.host_limit]),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn a_gpu_gets_half_of_its_hosts_memory_if_that_is_worth_while() -> Result<(), Failure> {
        let shares = |mib| HostShares::of(Some(Size::Bytes(Bytes::mib(mib))));
        let (pool, offload) = (Some(Bytes::mib(300)), Some(Offload::Host(Bytes::mib(300))));
        assert_eq!(shares(600)?, HostShares { pool, offload });
        assert_eq!(shares(500)?, HostShares { pool: Some(Bytes::mib(500)), offload: None });
        Ok(())
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
