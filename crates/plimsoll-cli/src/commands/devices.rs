//! `plimsoll devices`: what there is to run on.

use plimsoll::hardware::{self, LibraryInfo, Profile};
use plimsoll::memory::GRANULE;
use plimsoll::threads;
use plimsoll::{Bytes, Device, DriverMemory};
use serde::Serialize;

use crate::failure::Failure;
use crate::machine::{self, HostMemory};
use crate::options::DevicesOptions;
use crate::terminal::{as_json, write_line};

/// What this machine has. The profile of a GPU is what `plan --as` reads.
#[derive(Debug, Serialize)]
struct Machine {
    /// The version of this form.
    version: u32,
    device: &'static str,
    model: Option<String>,
    cores: usize,
    memory_bytes: u64,
    free_bytes: u64,
    granularity_bytes: u64,
    instruction_set: String,
    gpus: Vec<PresentGpu>,
    /// What GPUs need, with versions; the CPU needs none.
    libraries: Vec<Library>,
}

/// A GPU of this machine.
#[derive(Debug, Serialize)]
struct PresentGpu {
    device: String,
    free_bytes: u64,
    /// What the driver counts as used, and what it is made of.
    used_bytes: u64,
    committed_bytes: u64,
    outside_bytes: u64,
    profile: Profile,
    /// The same for people.
    #[serde(skip)]
    memory: DriverMemory,
}

/// A library that GPUs need.
#[derive(Debug, Serialize)]
struct Library {
    name: &'static str,
    version: Option<String>,
    /// The file, or nothing if it cannot be used.
    path: Option<String>,
}

impl Library {
    fn of(info: &LibraryInfo) -> Library {
        let path = info.place.as_ref().ok().map(|path| path.display().to_string());
        Library { name: info.name, version: info.version.clone(), path }
    }
}

/// Lists the devices.
///
/// # Errors
/// A system that does not tell what memory it has.
pub fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let memory = HostMemory::now().ok_or_else(|| {
        Failure::other("this system does not tell how much memory it has (/proc/meminfo is missing)")
    })?;
    let (gpus, none) = gpus();
    let libraries = hardware::libraries();
    let machine = Machine {
        version: 1,
        device: "cpu",
        model: machine::processor(),
        cores: threads::n_threads(),
        memory_bytes: memory.total,
        free_bytes: memory.free,
        granularity_bytes: GRANULE,
        instruction_set: format!("{:?}", hardware::level()).to_lowercase(),
        gpus,
        libraries: libraries.iter().map(Library::of).collect(),
    };
    if options.json {
        return write_line(&as_json(&machine)?);
    }
    let model = machine.model.as_deref().unwrap_or("unknown processor");
    let cores = format!("{} cores, {}", machine.cores, machine.instruction_set);
    write_line(&described("cpu", model, &cores, memory.total, memory.free))?;
    for PresentGpu { device, free_bytes, profile, memory, .. } in &machine.gpus {
        let parts = format!("{} multiprocessors, sm_{}", profile.n_multiprocessors, profile.architecture);
        write_line(&described(device, &profile.name, &parts, profile.memory_bytes, *free_bytes))?;
        for row in memory.to_string().lines() {
            write_line(&format!("         {row}"))?;
        }
    }
    if let Some(why) = none {
        write_line(&format!("no GPU: {why}"))?;
    }
    libraries.iter().try_for_each(|library| write_line(&library_line(library)))
}

fn described(device: &str, model: &str, parts: &str, total: u64, free: u64) -> String {
    let (total, free) = (Bytes::new(total), Bytes::new(free));
    format!("{device:<8} {model}, {parts}\n         {total} in all, {free} free")
}

fn library_line(library: &LibraryInfo) -> String {
    let version = library.version.as_deref().unwrap_or("-");
    match &library.place {
        Ok(path) => format!("{:<8} {version}, {}", library.name, path.display()),
        Err(error) => format!("{:<8} {error}", library.name),
    }
}

/// The GPUs that can be used, or why there is none.
fn gpus() -> (Vec<PresentGpu>, Option<String>) {
    let mut gpus = Vec::new();
    loop {
        let opened = Device::cuda(gpus.len());
        let profile = opened.map_err(|error| error.to_string()).and_then(|device| {
            let memory = device.driver_memory().map_err(|error| error.to_string())?;
            let (Some(memory), Some(profile)) = (memory, device.profile()) else {
                return Err("it is no GPU".to_owned());
            };
            let profile = Profile { memory_bytes: memory.total, ..profile.clone() };
            Ok(PresentGpu {
                device: device.name().to_owned(),
                free_bytes: memory.free(),
                used_bytes: memory.used,
                committed_bytes: memory.committed,
                outside_bytes: memory.outside(),
                profile,
                memory,
            })
        });
        match profile {
            Ok(profile) => gpus.push(profile),
            Err(why) => {
                let none = gpus.is_empty().then_some(why);
                return (gpus, none);
            }
        }
    }
}
