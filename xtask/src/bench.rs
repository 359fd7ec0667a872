//! `cargo xtask bench`: every benchmark of the workspace, one crate after the other.
//!
//! Benchmarks never run side by side, because they measure time on the same cores. The crates are found by their
//! `benches` folder; a new benchmark needs no entry here.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Runs the benchmarks whose name contains `filter`, or all of them.
pub fn run(root: &Path, filter: Option<&str>) -> Outcome {
    let crates = crates_with_benches(&root.join("crates"))?;
    if crates.is_empty() {
        return Err("no folder crates/*/benches holds a benchmark".to_owned());
    }
    for name in &crates {
        // The glob leaves out the unit tests, which `cargo bench` would build as well.
        let mut arguments = vec!["bench", "--package", name, "--bench", "*"];
        if let Some(filter) = filter {
            arguments.extend(["--", filter]);
        }
        Step::cargo(root, &arguments).run()?;
    }
    Ok(())
}

/// The names of the crates in `folder` that have at least one benchmark, in alphabetical order.
fn crates_with_benches(folder: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in folder.read_dir().map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let benches = path.join("benches");
        if benches.is_dir() && !crate::test::program_names(&benches)?.is_empty() {
            names.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}
