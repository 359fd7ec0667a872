//! `cargo xtask exports`: what a profile is exported to, read by the readers of those tools.
//!
//! PyTorch's is one file of its package, the others are packages of Python's; all are downloaded when the command runs first. That
//! takes minutes and half a gigabyte, so it is a command of its own.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

const PACKAGES: [&str; 4] = ["perfetto", "tensorboard", "prometheus-client", "setuptools<81"];
/// The part of PyTorch's package that reads snapshots.
const READER: &str = "torch/cuda/_memory_viz.py";

/// Takes that part out of the package, and removes the rest.
const UNPACK: &str = "import glob, os, sys, zipfile
wheel = glob.glob(sys.argv[1] + '/torch-*.whl')[0]
zipfile.ZipFile(wheel).extract(sys.argv[2], sys.argv[1])
os.remove(wheel)";

/// Trains, exports and reads.
///
/// # Errors
/// A tool that cannot be had; an export that says something else than the run.
pub fn run(root: &Path) -> Outcome {
    let python = python(root)?;
    let folder = root.join("target/exports");
    let _none_yet = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let path = |name: &str| folder.join(name).display().to_string();
    let program = |words: &[&str]| {
        Step::cargo(root, &[&["run", "--quiet", "--package", "plimsoll-cli", "--"], words].concat())
    };
    let (profile, board) = (path("run.profile"), path("board"));
    let train =
        ["train", "digits", "--epochs", "2", "--json", "--profile", &profile, "--tensorboard", &board];
    let lines = program(&train).read()?;
    std::fs::write(folder.join("run.jsonl"), lines).map_err(|error| format!("run.jsonl: {error}"))?;
    for (option, name) in
        [("--pickle", "run.pickle"), ("--perfetto", "run.pftrace"), ("--openmetrics", "run.prom")]
    {
        program(&["explain", &profile, option, &path(name)]).run()?;
    }
    let reader = root.join("target/exports-python").join(READER).display().to_string();
    Step::new(root, &python, &["xtask/exports/check.py", &folder.display().to_string(), &reader]).run()
}

/// The Python of an environment that has the readers.
fn python(root: &Path) -> Result<String, String> {
    let folder = root.join("target/exports-python");
    let place = folder.display().to_string();
    let python = folder.join("bin/python").display().to_string();
    if !Step::new(root, &python, &["-c", "import perfetto, tensorboard, prometheus_client"]).works() {
        Step::new(root, "python3", &["-m", "venv", &place]).run()?;
        Step::new(root, &python, &[&["-m", "pip", "install", "--quiet"][..], &PACKAGES].concat()).run()?;
    }
    if !folder.join(READER).exists() {
        Step::new(
            root,
            &python,
            &["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &place, "torch"],
        )
        .run()?;
        Step::new(root, &python, &["-c", UNPACK, &place, READER]).run()?;
    }
    Ok(python)
}
