//! Kernels as libraries of the host: compiled by the system's C++ compiler, kept in a folder, loaded.
//!
//! A library is named after its entry and the hash of all that it depends on; it is written under another name and
//! renamed, so that whoever finds it finds it whole. The text stays beside it: errors name its lines.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use sha2::{Digest, Sha256};

use super::fiber::STACK_BYTES;
use super::machine::{Run, State};
use crate::error::{Error, Result};

/// What stands before every kernel's text.
const PRELUDE: &str = include_str!("prelude.hpp");

/// Contracting products and sums is left to what the text says with `fma`, so that all hosts give the same numbers. The
/// checks of addresses and indices call the prelude, not the sanitizer's library.
const FLAGS: [&str; 7] = [
    "-std=c++17",
    "-O1",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fsanitize=alignment,bounds,null",
];

/// What it is linked with: the C library and its functions of floats.
const LIBRARIES: [&str; 3] = ["-nodefaultlibs", "-lm", "-lc"];

/// A kernel that is loaded, until the process ends.
pub struct Module {
    /// The kernel's entry.
    pub name: String,
    /// Where its text is.
    pub text: PathBuf,
    /// Its entry.
    pub run: Run,
    /// What it sees of the machine.
    pub state: *mut State,
    /// The shared memory that it declares.
    pub shared_start: *mut u8,
    shared_end: *mut u8,
    /// Held while it runs: state and shared memory are there once.
    pub lock: Mutex<()>,
    _library: Library,
}

// SAFETY: state and shared memory are used under the lock.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// The shared memory that it declares, in bytes.
    pub fn shared_bytes(&self) -> usize {
        self.shared_end.addr() - self.shared_start.addr()
    }

    /// Loads what `Compiler` compiled.
    fn load(name: &str, text: &Path, library: &Path) -> Result<Module, libloading::Error> {
        // SAFETY: the library runs nothing when it is loaded; the symbols have these types, see `prelude.hpp`.
        unsafe {
            let library = Library::new(library)?;
            let run = *library.get::<Run>("emulated_run")?;
            let state = library.get::<extern "C" fn() -> *mut State>("emulated_state")?();
            let shared_start = library.get::<extern "C" fn() -> *mut u8>("emulated_shared_start")?();
            let shared_end = library.get::<extern "C" fn() -> *mut u8>("emulated_shared_end")?();
            let (name, text) = (name.to_owned(), text.to_owned());
            Ok(Module {
                name,
                text,
                run,
                state,
                shared_start,
                shared_end,
                lock: Mutex::new(()),
                _library: library,
            })
        }
    }
}

/// Modules by the paths of their libraries. The system loads a file once however often it is asked, so that all GPUs of
/// the process share them.
static LOADED: Mutex<Option<HashMap<PathBuf, &'static Module>>> = Mutex::new(None);

/// The C++ compiler.
pub struct Compiler {
    /// The program, and arguments that come first.
    command: Vec<String>,
    version: Vec<u8>,
    folder: PathBuf,
}

impl Compiler {
    /// The one that `CXX` names, or `c++`; looked for once.
    pub fn find() -> Result<&'static Compiler> {
        static FOUND: OnceLock<Result<Compiler>> = OnceLock::new();
        FOUND.get_or_init(Compiler::look).as_ref().map_err(Error::clone)
    }

    fn look() -> Result<Compiler> {
        let command = std::env::var("CXX").unwrap_or_default();
        let mut command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            command.push("c++".to_owned());
        }
        let output = Command::new(&command[0]).args(&command[1..]).arg("--version").output().map_err(|error| {
            Error::new(format!(
                "an emulated GPU needs a C++ compiler: `{}` could not be run ({error}); CXX may name another",
                command[0]
            ))
        })?;
        Ok(Compiler { command, version: output.stdout, folder: folder()? })
    }

    /// The module of a text with that entry: one that is loaded, one that was compiled before, or a new one.
    pub fn build(&self, entry: &str, source: &str) -> Result<&'static Module> {
        let text = format!("{PRELUDE}{source}\nEMULATED_EXPORTS({entry})\n");
        let mut hash = Sha256::new();
        for part in
            [text.as_bytes(), &self.version, self.command.join(" ").as_bytes(), FLAGS.join(" ").as_bytes()]
        {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let library = self.folder.join(format!("{entry}-{hash}.so"));
        if let Some(module) = loaded(&library) {
            return Ok(module);
        }
        let kept = library.with_extension("cpp");
        if !library.exists() {
            self.compile(entry, &text, &kept, &library)?;
        }
        let module = Module::load(entry, &kept, &library).map_err(|error| {
            Error::new(format!("kernel `{entry}` was compiled but cannot be loaded: {error}"))
        })?;
        let mut modules = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been quicker; both know the same library.
        let module =
            modules.get_or_insert_default().entry(library).or_insert_with(|| Box::leak(Box::new(module)));
        Ok(module)
    }

    fn compile(&self, entry: &str, text: &str, kept: &Path, library: &Path) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let failed = |error| {
            Error::new(format!("kernel `{entry}` could not be compiled by `{}`: {error}", self.command[0]))
        };
        let fresh = self.folder.join(format!("{entry}-{}-{number}.new", std::process::id()));
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, kept)).map_err(failed)?;
        let output = Command::new(&self.command[0])
            .args(&self.command[1..])
            .args(FLAGS)
            .arg(format!("-Werror=frame-larger-than={}", STACK_BYTES / 2))
            .arg("-o")
            .args([&fresh, kept])
            .args(LIBRARIES)
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!(
                "kernel `{entry}` was refused by the C++ compiler:\n{}",
                said.trim_end()
            )));
        }
        fs::rename(&fresh, library).map_err(failed)
    }
}

/// A module that this process has loaded.
fn loaded(library: &Path) -> Option<&'static Module> {
    let modules = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    modules.as_ref().and_then(|modules| modules.get(library)).copied()
}

/// The folder of compiled kernels. What lies there is run, so that it must be this user's own.
fn folder() -> Result<PathBuf> {
    let own = fs::metadata("/proc/self").map(|process| process.uid());
    let folder = match (std::env::var_os("PLIMSOLL_CACHE"), &own) {
        (Some(cache), _) => PathBuf::from(cache).join("emulated"),
        (None, Ok(user)) => std::env::temp_dir().join(format!("plimsoll-emulated-{user}")),
        (None, Err(_)) => std::env::temp_dir().join("plimsoll-emulated"),
    };
    let failed = |why: String| {
        let folder = folder.display();
        Error::new(format!(
            "the emulated GPU cannot keep kernels in {folder}: {why}; PLIMSOLL_CACHE may name a folder"
        ))
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| failed(error.to_string()))?;
    let owner = fs::metadata(&folder).map_err(|error| failed(error.to_string()))?.uid();
    match own {
        Ok(user) if user != owner => Err(failed(format!("it belongs to user {owner}, not to user {user}"))),
        _ => Ok(folder),
    }
}
