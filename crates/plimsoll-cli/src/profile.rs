//! `--profile FILE`: a run, or the dry run of a plan, recorded for `explain`.

use std::path::Path;

use plimsoll::Device;
use plimsoll::report::Profiler;
use serde_json::json;

use crate::failure::Failure;
use crate::options::RunOptions;
use crate::recipe::Recipe;

/// What a profile says of what it was recorded from.
pub struct About<'a> {
    /// What is trained.
    pub recipe: &'a Recipe,
    /// The examples of one optimizer step.
    pub batch: usize,
    /// The name of the device.
    pub device: &'a str,
    /// The limit on its memory.
    pub limit_bytes: Option<u64>,
    /// Whether nothing is computed.
    pub is_plan: bool,
}

/// Begins to record a device.
///
/// # Errors
/// A file that cannot be written.
pub fn start(
    device: &Device,
    path: &Path,
    options: &RunOptions,
    about: &About<'_>,
) -> Result<Profiler, Failure> {
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "recipe": about.recipe.name(),
        "batch": about.batch,
        "accumulate": options.accumulate,
        "device": about.device,
        "rank": 0,
        "limit_bytes": about.limit_bytes,
        "is_plan": about.is_plan,
    });
    Profiler::start(device.pool(), path, &about).map_err(|error| failed(path, &error))
}

/// Ends a recording.
///
/// # Errors
/// A file that cannot be written to its end.
pub fn finish(profiler: Profiler, path: &Path) -> Result<(), Failure> {
    profiler.finish().map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::file(format!("--profile {}: {error}", path.display()))
}
