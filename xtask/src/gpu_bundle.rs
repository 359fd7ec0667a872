//! `cargo xtask gpu-bundle`: test programs, benchmark and a script in one folder, for a machine with a GPU and no Rust.
//!
//! Programs are built for release and stripped; libraries of CUDA are looked for where they run. The folder is
//! `target/gpu-bundle/plimsoll-gpu`, small enough to be copied around; `run.sh` in it says how it is used.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::step::Step;

/// The folder must be smaller than this.
const MOST_BYTES: u64 = 80 << 20;

const SCRIPT: &str = include_str!("gpu_bundle/run.sh");

/// A program of the bundle: a test or an example of a package, and where it goes. Programs under `programs` are those of the part
/// `promises`.
struct Program {
    package: &'static str,
    kind: Kind,
    name: &'static str,
    place: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Test,
    Example,
}

const fn test(package: &'static str, name: &'static str, place: &'static str) -> Program {
    Program { package, kind: Kind::Test, name, place }
}

const fn example(package: &'static str, name: &'static str, place: &'static str) -> Program {
    Program { package, kind: Kind::Example, name, place }
}

const PROGRAMS: [Program; 10] = [
    test("plimsoll-tensor", "registry", "registry"),
    test("plimsoll-tensor", "long_reductions", "programs/long_reductions"),
    test("plimsoll-tensor", "fusion", "programs/fusion"),
    test("plimsoll-tensor", "function_cache", "programs/function_cache"),
    test("plimsoll-tensor", "cuda_graphs", "programs/graph_functions"),
    test("plimsoll-nn", "cuda_graphs", "programs/graph_training"),
    test("plimsoll-nn", "gpu", "programs/training"),
    example("plimsoll-cuda", "gpu_check", "programs/gpu_check"),
    example("plimsoll-cuda", "graph_memory", "graph_memory"),
    example("plimsoll-cli", "gpu_promises", "programs/gpu_promises"),
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
    for kind in [Kind::Test, Kind::Example] {
        let messages = build(root, &target, kind)?;
        for program in PROGRAMS.iter().filter(|program| program.kind == kind) {
            let built = messages.lines().find_map(|message| executable(message, program));
            let built =
                built.ok_or_else(|| format!("cargo does not say where it has put {}", program.name))?;
            fs::copy(&built, bundle.join(program.place)).map_err(problem)?;
        }
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

/// Builds all programs of a kind; cargo's messages. Both kinds have the features of the whole workspace, so that nothing below them is
/// built twice.
fn build(root: &Path, target: &Path, kind: Kind) -> Result<String, String> {
    const WORKSPACE: [&str; 5] =
        ["--release", "--workspace", "--exclude", "plimsoll-python", "--all-features"];
    const STRIPPED: [&str; 4] =
        ["--config", "profile.release.strip=true", "--config", "profile.release.debug=false"];
    let (command, option) = match kind {
        Kind::Test => (&["test", "--no-run"][..], "--test"),
        Kind::Example => (&["build"][..], "--example"),
    };
    let mut names: Vec<&str> =
        PROGRAMS.iter().filter(|program| program.kind == kind).map(|program| program.name).collect();
    names.sort_unstable();
    names.dedup();
    let chosen: Vec<&str> = names.into_iter().flat_map(|name| [option, name]).collect();
    let target = target.to_string_lossy();
    let rest = ["--target-dir", &target, "--message-format", "json-render-diagnostics"];
    Step::cargo(root, &[command, &WORKSPACE, &chosen, &STRIPPED, &rest].concat()).read()
}

/// The program that a message of cargo's tells of, if it is this one. A search needs no more than this: our names and paths have no quotes.
fn executable(message: &str, program: &Program) -> Option<PathBuf> {
    let is_of_package = message.contains(&format!("/crates/{}/Cargo.toml\"", program.package));
    let is_named = message.contains(&format!("\"name\":\"{}\"", program.name));
    let (_, rest) = message.split_once("\"executable\":\"")?;
    (is_of_package && is_named).then(|| PathBuf::from(rest.split('"').next().unwrap_or_default()))
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
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/plimsoll-nn/Cargo.toml","target":{"kind":["test"],"name":"gpu"},"executable":"/x/deps/gpu-1a2b","fresh":true}"#;
        let found = |package, name| executable(message, &test(package, name, ""));
        assert_eq!(found("plimsoll-nn", "gpu"), Some(PathBuf::from("/x/deps/gpu-1a2b")));
        assert_eq!((found("plimsoll-nn", "cuda_graphs"), found("plimsoll-tensor", "gpu")), (None, None));
        assert_eq!(executable(r#"{"executable":null}"#, &test("plimsoll-nn", "gpu", "")), None);
    }
}
