//! `plimsoll devices`: what there is to run on.

use plimsoll::Bytes;
use plimsoll_cpu::{simd, threads};
use plimsoll_memory::GRANULE;
use serde::Serialize;

use crate::failure::Failure;
use crate::machine::{self, HostMemory};
use crate::options::DevicesOptions;
use crate::terminal::{as_json, write_line};

/// A device profile: what a device is, as far as a plan needs to know.
#[derive(Debug, Serialize)]
struct Profile {
    /// The version of this form.
    version: u32,
    device: &'static str,
    model: Option<String>,
    cores: usize,
    memory_bytes: u64,
    free_bytes: u64,
    granularity_bytes: u64,
    instruction_set: String,
    /// Libraries with their versions; the CPU needs none.
    libraries: Vec<String>,
}

/// Lists the devices.
///
/// # Errors
/// A system that does not tell what memory it has.
pub fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let memory = HostMemory::now().ok_or_else(|| {
        Failure::other("this system does not tell how much memory it has (/proc/meminfo is missing)")
    })?;
    let profile = Profile {
        version: 1,
        device: "cpu",
        model: machine::processor(),
        cores: threads::n_threads(),
        memory_bytes: memory.total,
        free_bytes: memory.free,
        granularity_bytes: GRANULE,
        instruction_set: format!("{:?}", simd::level()).to_lowercase(),
        libraries: Vec::new(),
    };
    if options.json {
        return write_line(&as_json(&profile)?);
    }
    let model = profile.model.as_deref().unwrap_or("unknown processor");
    write_line(&format!(
        "cpu      {model}, {} cores, {}\n         {} in all, {} free",
        profile.cores,
        profile.instruction_set,
        Bytes::new(memory.total),
        Bytes::new(memory.free)
    ))?;
    write_line("no GPU: this version runs on the CPU alone")
}
