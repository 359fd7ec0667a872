//! NVIDIA's libraries: where they are looked for, and what is missing without them.
//!
//! cudarc loads a library by name at the first call into it, and panics if there is none. So every library is asked for
//! here first: it is looked for in more places than the system's loader knows, opened by its path, so that the name finds
//! it afterwards, and asked for its version. What comes of it is kept for the life of the process.

use std::collections::BTreeSet;
use std::env;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::{cublaslt, cudnn, driver, nvrtc};
use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};

/// The folders that are searched first, separated by colons.
const FOLDERS: &str = "PLIMSOLL_CUDA_LIBRARIES";

/// A library of NVIDIA's, and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryInfo {
    /// What people call it.
    pub name: &'static str,
    /// Its version, where it was found.
    pub version: Option<String>,
    /// Its file, or why it cannot be used.
    pub place: Result<PathBuf>,
}

/// The libraries that GPUs need, and whether they can be used. Looks for them if nobody has yet.
pub fn libraries() -> Vec<LibraryInfo> {
    let info = |library: Library| {
        let found = library.find();
        LibraryInfo {
            name: library.facts().name,
            version: found.as_ref().ok().map(|found| written(found.version)),
            place: found.as_ref().map(|found| found.path.clone()).map_err(Clone::clone),
        }
    };
    Library::ALL.map(info).to_vec()
}

/// A version: major, minor, patch.
pub(super) type Version = [u32; 3];

fn written([major, minor, patch]: Version) -> String {
    format!("{major}.{minor}.{patch}")
}

/// The libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Driver,
    Compiler,
    Matmul,
    Convolution,
    Collectives,
}

/// What is known of a library before it is found.
struct Facts {
    name: &'static str,
    /// The file's name.
    file: &'static str,
    least: Version,
    /// What its absence means.
    without: &'static str,
    /// Whether cudarc finds it, where it knows the library.
    is_present: unsafe fn() -> bool,
    version: fn() -> Option<Version>,
}

/// A library that can be used.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub version: Version,
    path: PathBuf,
}

impl Library {
    const ALL: [Library; 5] =
        [Library::Driver, Library::Compiler, Library::Matmul, Library::Convolution, Library::Collectives];

    fn facts(self) -> Facts {
        match self {
            Library::Driver => Facts {
                name: "CUDA driver",
                file: "libcuda.so.1",
                least: [13, 0, 0],
                without: "there are no GPUs; everything runs on the CPU",
                is_present: driver::sys::is_culib_present,
                version: driver_version,
            },
            Library::Compiler => Facts {
                name: "NVRTC",
                file: "libnvrtc.so.13",
                least: [13, 0, 0],
                without: "no kernel can be compiled for a GPU; everything runs on the CPU",
                is_present: nvrtc::sys::is_culib_present,
                version: compiler_version,
            },
            Library::Matmul => Facts {
                name: "cuBLASLt",
                file: "libcublasLt.so.13",
                least: [13, 0, 0],
                without: "a GPU cannot compute matrix products; ops without them work",
                is_present: cublaslt::sys::is_culib_present,
                version: matmul_version,
            },
            Library::Convolution => Facts {
                name: "cuDNN",
                file: "libcudnn.so.9",
                least: [9, 10, 0],
                without: "a GPU cannot compute convolutions; everything else works",
                is_present: cudnn::sys::is_culib_present,
                version: convolution_version,
            },
            Library::Collectives => Facts {
                name: "NCCL",
                file: "libnccl.so.2",
                least: [2, 19, 0],
                without: "ranks on several GPUs exchange bytes through the memory of the host",
                is_present: || false,
                version: super::nccl::version,
            },
        }
    }

    /// The library, if it can be used; must be asked for before the first call into it.
    pub fn find(self) -> &'static Result<Found> {
        static FOUND: [OnceLock<Result<Found>>; 5] = [const { OnceLock::new() }; 5];
        FOUND[self as usize].get_or_init(|| self.look())
    }

    /// The library, or an error that says where it was looked for.
    pub fn require(self) -> Result<&'static Found> {
        self.find().as_ref().map_err(Clone::clone)
    }

    fn look(self) -> Result<Found> {
        let facts = self.facts();
        if self == Library::Convolution {
            // cuDNN opens these two by name; where they lie in folders of their own it finds them once they are open.
            let _ = (Library::Compiler.find(), Library::Matmul.find());
        }
        let places = self.places();
        let found = places.iter().any(|place| open(place));
        // SAFETY: looks for the library by its names; nothing runs but its own start.
        if !found && !unsafe { (facts.is_present)() } {
            let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            return Err(Error::new(format!(
                "{} was not found: looked for {} (a bare name is looked for by the system's loader, in LD_LIBRARY_PATH \
                 too); {FOLDERS}=FOLDER:FOLDER names further folders; without it, {}",
                facts.name,
                looked.join(", "),
                facts.without
            )));
        }
        let path = mapped(facts.file).unwrap_or_else(|| PathBuf::from(facts.file));
        open_companions(&path);
        let version = (facts.version)().ok_or_else(|| {
            Error::new(format!("{} at {} does not tell its version", facts.name, path.display()))
        })?;
        if version < facts.least {
            return Err(Error::new(format!(
                "{} at {} is version {}, and {} or later is needed; {FOLDERS}=FOLDER:FOLDER names folders with another \
                 one; without it, {}",
                facts.name,
                path.display(),
                written(version),
                written(facts.least),
                facts.without
            )));
        }
        log::debug!("{} {} from {}", facts.name, written(version), path.display());
        Ok(Found { version, path })
    }

    /// Where to look, in this order. The driver lies where the system has it, and nowhere else.
    fn places(self) -> Vec<PathBuf> {
        let file = self.facts().file;
        let mut places: Vec<PathBuf> =
            env::var_os(FOLDERS).iter().flat_map(env::split_paths).map(|folder| folder.join(file)).collect();
        places.push(PathBuf::from(file));
        if self != Library::Driver {
            let toolkits = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(env::var_os).map(PathBuf::from);
            let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]);
            places.extend(toolkits.map(|toolkit| toolkit.join("lib64").join(file)));
            places.extend(
                python_folders().into_iter().map(|folder| folder.join(file)).filter(|file| file.exists()),
            );
        }
        places
    }
}

/// Opens a file for the rest of the process, its symbols for all; whether that worked.
fn open(path: &Path) -> bool {
    // SAFETY: the file is one of NVIDIA's libraries, whose initialisation has no demands.
    match unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
        Ok(library) => {
            // Closing it again would take away what it was opened for.
            std::mem::forget(library);
            true
        }
        Err(error) => {
            log::debug!("{}: {error}", path.display());
            false
        }
    }
}

/// Opens what NVRTC looks for by name when it compiles, and would not find in a folder that the loader does not know.
fn open_companions(path: &Path) {
    let is_companion = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("libnvrtc-builtins.so."))
    };
    let is_compiler = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"));
    for file in
        path.parent().filter(|_| is_compiler).map(entries).iter().flatten().filter(|file| is_companion(file))
    {
        open(file);
    }
}

/// The folders with libraries of the PyPI packages beside every Python that the environment names.
fn python_folders() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    let prefixes: BTreeSet<PathBuf> =
        environments.chain(beside.filter_map(|folder| Some(folder.parent()?.to_owned()))).collect();
    let pythons = prefixes.iter().flat_map(|prefix| entries(&prefix.join("lib")));
    let packages =
        pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    packages
        .flat_map(|packages| entries(&packages.join("nvidia")))
        .map(|package| package.join("lib"))
        .collect()
}

/// What a folder holds, in a fixed order; nothing if it cannot be read.
fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The file of an open library, from the process's map of memory.
fn mapped(file: &str) -> Option<PathBuf> {
    let stem = file.split(".so").next()?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let is_it = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so")))
    };
    paths.find(is_it).map(Path::to_owned)
}

fn driver_version() -> Option<Version> {
    let mut version: c_int = 0;
    // SAFETY: the library is there; the call writes one number and needs no initialisation.
    let status = unsafe { driver::sys::cuDriverGetVersion(&raw mut version) };
    let version = u32::try_from(version).ok()?;
    let known = status == driver::sys::CUresult::CUDA_SUCCESS && version > 0;
    known.then_some([version / 1000, version % 1000 / 10, version % 10])
}

fn compiler_version() -> Option<Version> {
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is there; the call writes two numbers.
    let status = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    let known = status == nvrtc::sys::nvrtcResult::NVRTC_SUCCESS;
    known.then_some([major.try_into().ok()?, minor.try_into().ok()?, 0])
}

fn matmul_version() -> Option<Version> {
    // SAFETY: the library is there; the call has no parameters.
    let version = unsafe { cublaslt::sys::cublasLtGetVersion() } as u32;
    Some([version / 10_000, version / 100 % 100, version % 100])
}

fn convolution_version() -> Option<Version> {
    // SAFETY: the library is there; the call has no parameters.
    let version = unsafe { cudnn::sys::cudnnGetVersion() } as u32;
    Some([version / 10_000, version / 100 % 100, version % 100])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_listed_with_a_place_or_a_reason() {
        let infos = libraries();
        assert_eq!(infos.len(), Library::ALL.len());
        for info in infos {
            match info.place {
                Ok(path) => {
                    assert!(info.version.is_some(), "{} at {} has no version", info.name, path.display())
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with(info.name) && text.contains("without it"), "{text}");
                }
            }
        }
    }

    #[test]
    fn the_message_names_file_and_folders() {
        let places = Library::Matmul.places();
        assert!(places.contains(&PathBuf::from("libcublasLt.so.13")), "{places:?}");
        assert!(places.contains(&PathBuf::from("/usr/local/cuda/lib64/libcublasLt.so.13")), "{places:?}");
        let driver = Library::Driver.places();
        assert!(driver.iter().all(|place| !place.starts_with("/usr/local/cuda")), "{driver:?}");
    }
}
