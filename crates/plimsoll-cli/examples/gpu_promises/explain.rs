//! Profiles of three recipes, with CUDA graphs and without: recording changes neither bits nor bytes, what is recorded adds up to
//! what the pool counts itself, a clean run has no leak, in the checking mode a run has at every event the bytes that its dry run
//! predicts, the driver counts what the profile says is committed, and what recording costs.

use std::path::{Path, PathBuf};

use plimsoll::report::{Agreement, Explanation, Page, Profile, Profiler};
use plimsoll::{Device, Result as Done};
use serde_json::{Value, json};

use super::Outcome;
use super::recipes::{event_with, number};
use super::workload::Training;

/// A recipe, its precision, and how many steps it makes.
const RUNS: [(&str, &str, &str); 3] = [
    ("digits", "float32", "200"),
    ("gpt2-124m", "mixed_bfloat16", "40"),
    ("resnet50", "mixed_bfloat16", "40"),
];
/// How many steps are taken in the checking mode, which runs each of them twice.
const CHECKED_STEPS: &str = "6";
/// Workloads of which the driver's count is compared.
const DRIVEN: [&str; 3] = ["mlp-784-1024-10-b512", "gpt2-124m", "resnet50-b128"];
/// At so many moments, at least, the profile holds the pool's own count.
const LEAST_CHECKED: u64 = 1000;
/// A page is no larger.
const MOST_PAGE_BYTES: usize = 6_000_000;
const GRAPHS: &str = "PLIMSOLL_CUDA_GRAPHS";
const VERIFY: &str = "PLIMSOLL_VERIFY";

/// A line per recipe, check and way to launch kernels.
pub fn checks() -> impl Iterator<Item = (&'static str, Outcome)> {
    let both = || [false, true].into_iter();
    let recorded = both().flat_map(|graphs| RUNS.map(|run| (run.0, recorded(run, graphs))));
    let predicted = both().flat_map(|graphs| RUNS.map(|run| (run.0, predicted(run, graphs))));
    let driven = both().flat_map(|graphs| DRIVEN.map(|name| (name, driven(name, graphs))));
    recorded.chain(predicted).chain(driven)
}

/// A temporary profile, which is gone when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("gpu-promises-{}-{name}.profile", std::process::id())))
    }

    fn read(&self) -> Result<Profile, String> {
        Profile::read(&self.0).map_err(|error| error.to_string())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Where it was not written there is nothing to remove.
        let _absent = std::fs::remove_file(&self.0);
    }
}

fn launched(with_graphs: bool) -> &'static str {
    if with_graphs { "with CUDA graphs" } else { "without CUDA graphs" }
}

/// The last event of a run that is recorded, or of one that is not.
fn run(words: &[&str], with_graphs: bool, verify: bool, path: Option<&Path>) -> Result<Value, String> {
    let switch = |is_on: bool| if is_on { "1" } else { "0" };
    let place = path.map(|path| path.display().to_string());
    let more: Vec<&str> = place.iter().flat_map(|place| ["--profile", place]).collect();
    event_with(&[words, &more].concat(), &[(GRAPHS, switch(with_graphs)), (VERIFY, switch(verify))])
}

fn recorded((recipe, precision, steps): (&str, &str, &str), with_graphs: bool) -> Outcome {
    let path = Temporary::new(recipe);
    let words = ["train", recipe, "--precision", precision, "--steps", steps, "--device", "cuda:0"];
    let plain = run(&words, with_graphs, false, None)?;
    let told = run(&words, with_graphs, false, Some(&path.0))?;
    for same in ["loss_bits", "parameters_sha256", "peak_bytes", "committed_bytes"] {
        if told[same] != plain[same] {
            return Err(format!("{same}: {} without a recording, {} with one", plain[same], told[same]));
        }
    }
    let profile = path.read()?;
    // Whoever reads it holds each of the pool's own counts against the blocks.
    let explanation = Explanation::of(&profile).map_err(|error| error.to_string())?;
    let (peak, committed) = (explanation.peak.in_use, explanation.peak_committed);
    if (peak, committed) != (number(&told, "peak_bytes"), number(&told, "committed_bytes")) {
        return Err(format!("the profile has a peak of {peak} B and {committed} B committed: {told}"));
    }
    if explanation.owners().total() != peak || explanation.n_checked < LEAST_CHECKED {
        return Err(format!("{} moments were held against the pool's count", explanation.n_checked));
    }
    if let Some(growth) = explanation.growth.first() {
        return Err(format!("a clean run is said to leak: {growth}"));
    }
    let page = Page::of(&profile).map_err(|error| error.to_string())?.to_html().len();
    if page > MOST_PAGE_BYTES {
        return Err(format!("a page of {page} B"));
    }
    let ms = |end: &Value| end["median_step_ms"].as_f64().unwrap_or(f64::NAN);
    Ok(format!(
        "{precision}, {}, same bits and bytes; rows are the pool's at {} moments; {:.3} ms a step, {:.3} recorded ({:.3}x, goal 1.02); \
         profile {} B, page {page} B",
        launched(with_graphs),
        explanation.n_checked,
        ms(&plain),
        ms(&told),
        ms(&told) / ms(&plain),
        std::fs::metadata(&path.0).map_or(0, |file| file.len()),
    ))
}

/// In the checking mode, where every value is taken from the pool and given back, a run and its dry run have the same bytes in use
/// event by event.
fn predicted((recipe, precision, _): (&str, &str, &str), with_graphs: bool) -> Outcome {
    let (measured, planned) = (Temporary::new("measured"), Temporary::new("planned"));
    let words = [recipe, "--precision", precision, "--steps", CHECKED_STEPS, "--device", "cuda:0"];
    run(&[&["train"], &words[..]].concat(), with_graphs, true, Some(&measured.0))?;
    run(&[&["plan"], &words[..], &["--as", "h200"]].concat(), with_graphs, false, Some(&planned.0))?;
    let agreement = Agreement::of(&measured.read()?, &planned.read()?).map_err(|error| error.to_string())?;
    match agreement.difference.is_none() && agreement.n_steps > 1 {
        true => Ok(format!("{precision}, {}, run and dry run: {agreement}", launched(with_graphs))),
        false => Err(format!("{}: {agreement}", launched(with_graphs))),
    }
}

/// The driver counts what the profile says is committed; with CUDA graphs besides it at most what their executables take.
fn driven(name: &'static str, with_graphs: bool) -> Outcome {
    let path = Temporary::new(name);
    let count = || -> Done<(u64, u64, Result<(), std::io::Error>)> {
        let device = Device::separate_cuda(0)?;
        device.set_cuda_graphs(with_graphs)?;
        let used =
            || Ok::<_, plimsoll::Error>(device.driver_memory()?.map_or((0, 0), |it| (it.used, it.graphs)));
        // What libraries load at their first use is no part of the comparison.
        Training::start(name, &device)?.steps(3)?;
        device.trim();
        let idle = used()?;
        let started = Profiler::start(device.pool(), &path.0, &json!({}));
        let mut training = Training::start(name, &device)?;
        training.steps(3)?;
        let (used, graphs) = used()?;
        Ok((used.saturating_sub(idle.0), graphs, started.and_then(Profiler::finish)))
    };
    let (used, graphs, written) = count().map_err(|error| error.to_string())?;
    written.map_err(|error| error.to_string())?;
    let committed = path.read()?.end().and_then(|end| end["committed"].as_u64()).unwrap_or(0);
    let beside = if with_graphs { graphs } else { 0 };
    match (committed..=committed + beside).contains(&used) {
        true => Ok(format!(
            "{}, the driver counts {used} B, the profile {committed} B; graphs may take {beside} B",
            launched(with_graphs)
        )),
        false => Err(format!(
            "{}, the driver counts {used} B, the profile {committed} B; graphs may take {beside} B",
            launched(with_graphs)
        )),
    }
}
