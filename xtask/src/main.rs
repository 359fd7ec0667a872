//! The workspace's own commands: `cargo xtask check | test | tidy | bench | compare | page | exports | plans | kernels | mpi | sweep | fuzz |
//! soak | kills | gpu-bundle | python | wheel | suites`.
//!
//! Everything that a contributor or the continuous integration runs is here, so that both run the same thing.
//! It uses the standard library alone: whoever can build Plimsoll can run its checks, and this program compiles in
//! seconds. It never changes a file of the repository.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for the terminal")]

mod bench;
mod check;
mod compare;
mod endure;
mod exports;
mod gpu_bundle;
mod json;
mod kernels;
mod mpi;
mod mpi_kills;
mod page;
mod plans;
mod python;
mod step;
mod sweep;
mod test;
mod tidy;
mod times;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  check         format, tidy, clippy, docs, and cargo-deny where it is installed; cheapest first
  test          all tests, then every example, the loom model and valgrind on a sample
  test --fast   all tests only
  check test    both, with one table of seconds per part at the end: what `.ci/run` runs
  tidy          the rules of the house that a text search can hold
  bench [NAME]  every benchmark, one crate after the other; NAME selects those whose name contains it
  compare PROGRAM
                this tree beside another build of `plimsoll`: bits, bytes and times of runs
  page          pages of profiles, opened in Chromium and held against the profiles
  exports       what profiles are exported to, read by PyTorch's, Perfetto's, Prometheus's and TensorBoard's readers
  plans         `plan` for every recipe and device, in all its forms: minutes
  kernels [RECIPE..]
                what the recipes ask of GPUs, compiled for sm_80 and sm_90 without one
  mpi           MPI processes that train together: the same weights for 1, 2, 4 and 8 of them, and each one's memory as planned
  mpi --matrix  all numbers of them and stages of ZeRO, with and without a limit
  mpi --kills N one of four processes killed, N times: the job ends, says who it was, and two go on from what was saved
  fuzz [CASES]  damaged files for every parser, 10,000,000 unless told otherwise
  soak [STEPS]  a long training run that must not grow, 1,000,000 steps unless told otherwise
  kills [N]     four processes that save into one folder, killed 1,000 times unless told otherwise
  sweep [--calls N] [--seed S]
                N calls with hostile arguments, 1,000,000 unless told: a result or an error, never a signal or a panic
  gpu-bundle    tests and benchmark in one folder, for a machine with a GPU and no Rust
  python        the Python package: built, tested, its stubs held against it
  python --valgrind
                some of its tests under valgrind: minutes
  python --peers PYTHON
                memory shared with PyTorch and JAX, by a Python that has them
  wheel         the Python package as it is published: built for speed, and checked
  suites --from DIR [--only TEXT]
                test files that were written for TensorFlow, from a folder of yours, against the Python package
  suites --array-api DIR [--examples N]
  suites --keras DIR [--failed]
                the same for the array API's own suite, and for Keras's tests of layers, losses, optimizers and metrics
";

/// What one command says about how it went; the error is a sentence for a person.
type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(root) = repository() else {
        eprintln!("error: the repository is not known; start this program as `cargo xtask`");
        return ExitCode::from(2);
    };
    let started = Instant::now();
    let outcome = match arguments.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        words => match run(&root, words) {
            Some(outcome) => outcome,
            None => {
                eprint!("error: no command `{}`\n\n{USAGE}", words.join(" "));
                return ExitCode::from(2);
            }
        },
    };
    let seconds = started.elapsed().as_secs_f64();
    if let Some(table) = times::table(seconds) {
        print!("\n{table}\n");
    }
    match outcome {
        Ok(()) => {
            println!("{} succeeded in {seconds:.1} s", arguments.join(" "));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("error: {problem}\n{} failed after {seconds:.1} s", arguments.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// Runs the command that these words are; nothing if they are none.
fn run(root: &Path, words: &[&str]) -> Option<Outcome> {
    let outcome = match words {
        ["check"] => check::run(root),
        ["test"] => test::run(root, test::Extent::Everything),
        ["check", "test"] => check::run(root).and_then(|()| test::run(root, test::Extent::Everything)),
        ["test", "--fast"] => test::run(root, test::Extent::Fast),
        ["tidy"] => tidy::run(root),
        ["bench"] => bench::run(root, None),
        ["bench", filter] => bench::run(root, Some(filter)),
        ["compare", program] => compare::run(root, program),
        ["page"] => page::run(root, page::Extent::Everything),
        ["exports"] => exports::run(root),
        ["plans"] => plans::run(root),
        ["kernels", recipes @ ..] => kernels::run(root, recipes),
        ["mpi"] => mpi::run(root, false),
        ["mpi", "--matrix"] => mpi::run(root, true),
        ["mpi", "--kills", n_kills] => mpi_kills::run(root, n_kills),
        ["fuzz"] => endure::fuzz(root, "10000000"),
        ["fuzz", n_cases] => endure::fuzz(root, n_cases),
        ["soak"] => endure::soak(root, "1000000"),
        ["soak", n_steps] => endure::soak(root, n_steps),
        ["kills"] => endure::kills(root, "1000"),
        ["kills", n_kills] => endure::kills(root, n_kills),
        ["sweep"] => sweep::run(root, "1000000", "1"),
        ["sweep", "--calls", calls] => sweep::run(root, calls, "1"),
        ["sweep", "--calls", calls, "--seed", seed] => sweep::run(root, calls, seed),
        ["gpu-bundle"] => gpu_bundle::run(root),
        ["python"] => python::test(root),
        ["python", "--valgrind"] => python::valgrind(root),
        ["python", "--peers", python] => python::peers(root, python),
        ["wheel"] => python::wheel(root),
        ["suites", "--from", folder, rest @ ..] => python::suites(root, "run.py", folder, rest),
        ["suites", "--array-api", folder, rest @ ..] => python::suites(root, "array_api.py", folder, rest),
        ["suites", "--keras", folder, rest @ ..] => python::suites(root, "keras_tests.py", folder, rest),
        _ => return None,
    };
    Some(outcome)
}

/// The root of the repository that cargo was called in.
///
/// Cargo says it anew on every run, so that the built program holds no path of its own.
fn repository() -> Option<PathBuf> {
    let xtask = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    xtask.parent().map(PathBuf::from)
}
