//! `cargo xtask gpu-bundle`: test programs, benchmark and a script in one folder, for a machine with a GPU and no Rust.
//!
//! Programs are built for release and stripped; libraries of CUDA are looked for where they run. The folder is
//! `target/gpu-bundle/plimsoll-gpu`, small enough to be copied around; `run.sh` in it says how it is used.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::step::Step;

/// The folder must be smaller than this.
const MOST_BYTES: u64 = 72 << 20;

const SCRIPT: &str = include_str!("gpu_bundle/run.sh");

/// A program of the bundle: what cargo is asked for, the program's name there, and where it goes.
struct Program {
    arguments: &'static [&'static str],
    name: &'static str,
    place: &'static str,
}

/// Everything in the bundle. Programs under `programs` are those of the part `promises`.
const PROGRAMS: [Program; 10] = [
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-tensor", "--test", "registry"],
        name: "registry",
        place: "registry",
    },
    Program {
        arguments: &["build", "--package", "plimsoll-cuda", "--example", "gpu_check"],
        name: "gpu_check",
        place: "programs/gpu_check",
    },
    Program {
        arguments: &["build", "--package", "plimsoll-cuda", "--example", "graph_memory"],
        name: "graph_memory",
        place: "graph_memory",
    },
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-tensor", "--test", "long_reductions"],
        name: "long_reductions",
        place: "programs/long_reductions",
    },
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-tensor", "--test", "fusion"],
        name: "fusion",
        place: "programs/fusion",
    },
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-tensor", "--test", "function_cache"],
        name: "function_cache",
        place: "programs/function_cache",
    },
    Program {
        arguments: &["build", "--package", "plimsoll-cli", "--example", "gpu_promises"],
        name: "gpu_promises",
        place: "programs/gpu_promises",
    },
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-nn", "--test", "gpu"],
        name: "gpu",
        place: "programs/training",
    },
    Program {
        arguments: &[
            "test",
            "--no-run",
            "--package",
            "plimsoll-tensor",
            "--features",
            "emulated",
            "--test",
            "cuda_graphs",
        ],
        name: "cuda_graphs",
        place: "programs/graph_functions",
    },
    Program {
        arguments: &["test", "--no-run", "--package", "plimsoll-nn", "--test", "cuda_graphs"],
        name: "cuda_graphs",
        place: "programs/graph_training",
    },
];

/// Builds the bundle of the repository in `root`.
pub fn run(root: &Path) -> Outcome {
    let target = root.join("target/gpu-bundle");
    let bundle = target.join("plimsoll-gpu");
    let problem = |error: std::io::Error| format!("cannot write {}: {error}", bundle.display());
    if bundle.exists() {
        fs::remove_dir_all(&bundle).map_err(problem)?;
    }
    fs::create_dir_all(bundle.join("programs")).map_err(problem)?;
    for program in &PROGRAMS {
        let built = build(root, &target, program)?;
        fs::copy(&built, bundle.join(program.place)).map_err(problem)?;
    }
    fs::copy(root.join("crates/plimsoll-testkit/golden/values.json"), bundle.join("values.json"))
        .map_err(problem)?;
    fs::copy(root.join("crates/plimsoll-cli/peers/gpu_losses.py"), bundle.join("gpu_losses.py"))
        .map_err(problem)?;
    let script = bundle.join("run.sh");
    fs::write(&script, SCRIPT).map_err(problem)?;
    Step::new(root, "chmod", &["+x", &script.to_string_lossy()]).run()?;
    let bytes = size_of_folder(&bundle).map_err(problem)?;
    println!("{}: {:.1} MiB", bundle.display(), bytes as f64 / f64::from(1 << 20));
    match bytes <= MOST_BYTES {
        true => Ok(()),
        false => Err(format!("the bundle has {bytes} bytes; it must stay below {MOST_BYTES}")),
    }
}

/// Builds a program and returns its file.
fn build(root: &Path, target: &Path, program: &Program) -> Result<PathBuf, String> {
    let target = target.to_string_lossy();
    let arguments = [
        program.arguments,
        &[
            "--release",
            "--target-dir",
            &target,
            "--config",
            "profile.release.strip=true",
            "--config",
            "profile.release.debug=false",
            "--message-format",
            "json-render-diagnostics",
        ],
    ]
    .concat();
    let messages = Step::cargo(root, &arguments).read()?;
    messages
        .lines()
        .filter_map(executable)
        .find(|path| path.file_name().is_some_and(|file| is_named(&file.to_string_lossy(), program.name)))
        .ok_or_else(|| format!("cargo does not say where it has put {}", program.name))
}

/// The program that a message of cargo's tells of. A path needs no more than this: ours have no quotes.
fn executable(message: &str) -> Option<PathBuf> {
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}

/// Whether a file is the program of that name, perhaps with cargo's mark behind it.
fn is_named(file: &str, name: &str) -> bool {
    file == name || file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
}

fn size_of_folder(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in folder.read_dir()? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size_of_folder(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let message = r#"{"reason":"compiler-artifact","executable":"/x/deps/gpu-1a2b","fresh":true}"#;
        assert_eq!(executable(message), Some(PathBuf::from("/x/deps/gpu-1a2b")));
        assert_eq!(executable(r#"{"executable":null}"#), None);
        assert!(is_named("gpu-1a2b", "gpu") && is_named("gpu_check", "gpu_check"));
        assert!(!is_named("gpu_check", "gpu"));
    }
}
