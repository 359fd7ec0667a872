//! Profiles of three recipes: recording changes neither bits nor bytes, what is recorded adds up to what the pool counts itself,
//! a clean run has no leak, and what recording costs.

use plimsoll::report::{Explanation, Page, Profile};

use super::Outcome;
use super::recipes::{event, number};

/// A recipe, its precision, and how many steps it makes.
const RUNS: [(&str, &str, &str); 3] = [
    ("digits", "float32", "200"),
    ("gpt2-124m", "mixed_bfloat16", "40"),
    ("resnet50", "mixed_bfloat16", "40"),
];
/// At so many moments, at least, the profile holds the pool's own count.
const LEAST_CHECKED: u64 = 1000;
/// A page is no larger.
const MOST_PAGE_BYTES: usize = 6_000_000;

/// One line per recipe.
pub fn checks() -> impl Iterator<Item = (&'static str, Outcome)> {
    RUNS.into_iter().map(|(recipe, precision, steps)| (recipe, check(recipe, precision, steps)))
}

fn check(recipe: &str, precision: &str, steps: &str) -> Outcome {
    let path = std::env::temp_dir().join(format!("gpu-promises-{}-{recipe}.profile", std::process::id()));
    let outcome = check_at(recipe, precision, steps, &path);
    // Where it was not written there is nothing to remove.
    let _absent = std::fs::remove_file(&path);
    outcome
}

fn check_at(recipe: &str, precision: &str, steps: &str, path: &std::path::Path) -> Outcome {
    let words = ["train", recipe, "--precision", precision, "--steps", steps, "--device", "cuda:0"];
    let place = path.display().to_string();
    let plain = event(&words)?;
    let told = event(&[&words[..], &["--profile", &place]].concat())?;
    for same in ["loss_bits", "parameters_sha256", "peak_bytes", "committed_bytes"] {
        if told[same] != plain[same] {
            return Err(format!("{same}: {} without a recording, {} with one", plain[same], told[same]));
        }
    }
    let profile = Profile::read(path).map_err(|error| error.to_string())?;
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
    let ms = |end: &serde_json::Value| end["median_step_ms"].as_f64().unwrap_or(f64::NAN);
    Ok(format!(
        "{precision}, same bits and bytes; rows are the pool's at {} moments; {:.3} ms a step, {:.3} recorded ({:.3}x, goal 1.02); \
         profile {} B, page {page} B",
        explanation.n_checked,
        ms(&plain),
        ms(&told),
        ms(&told) / ms(&plain),
        std::fs::metadata(path).map_or(0, |file| file.len()),
    ))
}
