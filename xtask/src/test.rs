//! `cargo xtask test`: everything the tests need, then all tests.
//!
//! After the ordinary tests come the things that `cargo test` does not run: every example must end well, that of a crate
//! outside the workspace included, the pool's concurrency is explored by loom, and valgrind watches a sample for errors
//! that no assertion sees. At last pages
//! of profiles are opened in a browser, the Python package is built and tested (see `python`), and MPI's processes train
//! together. Valgrind and Chromium are tools that Rust does not bring along; where one cannot be had, the
//! step says so and is left out. The emulated GPU
//! compiles its kernels with the system's C++ compiler, which must be there: see [`compiler`].

use std::path::Path;

use crate::Outcome;
use crate::kernels;
use crate::mpi;
use crate::page;
use crate::python;
use crate::step::Step;
use crate::times::part;

/// How much to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// `cargo test` alone.
    Fast,
    /// The tests, the examples, loom and valgrind.
    Everything,
}

/// Runs the tests of the repository in `root`.
pub fn run(root: &Path, extent: Extent) -> Outcome {
    compiler(root)?;
    // The Python package has tests of its own, which need an interpreter.
    let tests = ["test", "--workspace", "--exclude", "plimsoll-python", "--all-features"];
    part("tests, building", || Step::cargo(root, &[&tests[..], &["--no-run"]].concat()).run())?;
    part("tests, running", || Step::cargo(root, &tests).run())?;
    if extent == Extent::Everything {
        part("examples", || examples(root))?;
        part("own recipe", || own_recipe(root))?;
        part("emulated GPU", || emulated(root))?;
        part("loom", || loom(root))?;
        part("memcheck", || memcheck(root))?;
        part("pages", || page::where_possible(root))?;
        part("python", || python::test(root))?;
        part("mpi", || mpi::run(root, false))?;
    }
    Ok(())
}

/// The C++ compiler that the emulated GPU compiles kernels with: without one its tests would fail one by one, minutes later.
fn compiler(root: &Path) -> Outcome {
    // `CXX` may have words after the program, such as those of ccache.
    let named = std::env::var("CXX").unwrap_or_default();
    let mut words: Vec<&str> = named.split_whitespace().chain(["--version"]).collect();
    if words.len() == 1 {
        words.insert(0, "c++");
    }
    let compiler = words[0];
    match Step::new(root, compiler, &words[1..]).works() {
        true => Ok(()),
        false => Err(format!(
            "the tests of the emulated GPU need a C++ compiler, and `{compiler} --version` does not run; install one \
             (Debian: apt-get install g++) or name it in CXX"
        )),
    }
}

/// Runs every example of the crate `plimsoll`; a status other than zero is a failure.
///
/// The tests have built them, with the features of the whole workspace; `cargo run` would build everything below them again,
/// with fewer.
fn examples(root: &Path) -> Outcome {
    let own = std::env::current_exe().map_err(|error| format!("cannot tell where programs are: {error}"))?;
    let programs = own.with_file_name("examples");
    // Numbered examples lie at the top, where readers look for them; cargo finds others by itself in the crate.
    for folder in [root.join("examples"), root.join("crates/plimsoll/examples")] {
        if !folder.is_dir() {
            continue;
        }
        for name in program_names(&folder)? {
            Step::new(root, &programs.join(name).to_string_lossy(), &[]).run()?;
        }
    }
    Ok(())
}

/// Builds a crate of somebody's own outside the workspace, and trains and measures its recipe.
fn own_recipe(root: &Path) -> Outcome {
    const MANIFEST: &str = "examples/own-recipe/Cargo.toml";
    // The versions that the workspace has locked are those that it was tested with.
    let lock = root.join("examples/own-recipe/Cargo.lock");
    std::fs::copy(root.join("Cargo.lock"), &lock)
        .map_err(|error| format!("cannot write {}: {error}", lock.display()))?;
    let run = ["run", "--quiet", "--manifest-path", MANIFEST, "--target-dir", "target/own-recipe", "--"];
    for arguments in [["train", "wave", "--epochs", "2"], ["bench", "wave", "--steps", "1"]] {
        // Nobody debugs it, and without what a debugger needs it is built sooner.
        Step::cargo(root, &[&run[..], &arguments].concat()).env("CARGO_PROFILE_DEV_DEBUG", "none").run()?;
    }
    Ok(())
}

/// Runs the generated suite, long sums, a few random fused programs and training steps on the emulated GPU, and compiles every
/// kernel that they launch for the GPUs of 2020 and 2022. Compiling is nearly all that it takes, so that the suite leaves out there what only
/// repeats with other kernels. Then the kernels of all recipes are compiled.
///
/// The compiler is NVIDIA's own, which needs no GPU; where it cannot be had, kernels are only run.
fn emulated(root: &Path) -> Outcome {
    // The same features as the tests before, so that nothing is built again.
    let suite = [
        "test",
        "--workspace",
        "--exclude",
        "plimsoll-python",
        "--all-features",
        "--test",
        "registry",
        "--test",
        "long_reductions",
        "--test",
        "fusion",
        "--test",
        "cuda_graphs",
    ];
    let step = Step::cargo(root, &suite).env("PLIMSOLL_TEST_DEVICE", "emulated").env("PLIMSOLL_CHAINS", "1");
    match kernels::nvrtc(root) {
        Some(folder) => {
            step.env("PLIMSOLL_CUDA_LIBRARIES", &folder).env("PLIMSOLL_COMPILE_FOR", "80,90").run()?;
            kernels::run(root, &[])
        }
        None => {
            println!("left out: kernels compiled for GPUs (NVRTC is missing and could not be installed)");
            step.run()
        }
    }
}

/// Explores the interleavings of the memory pool.
///
/// The `loom` flag replaces the synchronisation primitives of the whole build, hence a target directory of its own:
/// sharing one would make every other command build everything again.
fn loom(root: &Path) -> Outcome {
    let arguments = [
        "test",
        "--package",
        "plimsoll-memory",
        "--test",
        "loom",
        "--release",
        "--target-dir",
        "target/loom",
    ];
    Step::cargo(root, &arguments).env("RUSTFLAGS", "--cfg loom").run()
}

/// Runs the sample under valgrind's memcheck: invalid reads and writes, undefined values, lost blocks.
fn memcheck(root: &Path) -> Outcome {
    // Only blocks that nothing points to count as lost: the test harness leaves some that it can still reach.
    const RUNNER: &str = concat!(
        r#"target."cfg(all())".runner = ["valgrind", "--quiet", "--error-exitcode=1", "#,
        r#""--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]"#
    );
    if !root.join("crates/plimsoll/tests/memcheck_sample.rs").exists() {
        return Ok(());
    }
    if !has_valgrind(root) {
        println!("left out: memcheck (valgrind is missing and could not be installed)");
        return Ok(());
    }
    // The same features as the tests before, so that nothing is built again.
    let tests = ["test", "--config", RUNNER, "--workspace", "--exclude", "plimsoll-python", "--all-features"];
    // Valgrind runs one thread at a time; several tests at once would only mix their reports.
    Step::cargo(root, &[&tests[..], &["--test", "memcheck_sample", "--", "--test-threads=1"]].concat()).run()
}

/// Tells whether valgrind is there, after trying to install it where that is allowed.
pub fn has_valgrind(root: &Path) -> bool {
    let installed = || Step::new(root, "valgrind", &["--version"]).works();
    let is_root = || Step::new(root, "id", &["-u"]).read().is_ok_and(|id| id.trim() == "0");
    if !installed() && is_root() {
        // Whether these two succeed shows in the next line; a machine without apt is no failure of the tests.
        for arguments in [&["update"][..], &["install", "-y", "valgrind"]] {
            if let Err(problem) = Step::new(root, "apt-get", arguments).run() {
                println!("  {problem}");
            }
        }
    }
    installed()
}

/// The names of the programs in a folder of examples or benchmarks, in alphabetical order: `NAME.rs` and
/// `NAME/main.rs`, as cargo finds them.
pub fn program_names(folder: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in folder.read_dir().map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file() {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn programs_are_files_and_folders_with_a_main() {
        // This crate's own folders serve as the example: `src` holds files, and is itself a folder with a main.
        let xtask = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for tests"));
        let names = program_names(&xtask.join("src")).unwrap();
        let expected = [
            "bench",
            "check",
            "compare",
            "endure",
            "exports",
            "gpu_bundle",
            "json",
            "kernels",
            "main",
            "mpi",
            "mpi_kills",
            "page",
            "plans",
            "python",
            "step",
            "sweep",
            "test",
            "tidy",
            "times",
        ];
        assert_eq!(names, expected);
        assert_eq!(program_names(&xtask).unwrap(), ["src"]);
    }
}
