//! `plimsoll explain`: a recorded profile, told in the terminal, as a page, or in formats of other tools.

use std::path::Path;

use plimsoll::report::{Agreement, Comparison, Explanation, Export, Page, Profile, Ranks};
use serde_json::Value;

use crate::failure::Failure;
use crate::options::ExplainOptions;
use crate::profile::of_rank;
use crate::terminal::Style;

/// The profiles of one run that are looked for at most.
const MOST_RANKS: u64 = 4096;

/// Explains a profile.
///
/// # Errors
/// A file that is not there, is no profile or is damaged; a page that cannot be written.
pub fn run(options: &ExplainOptions) -> Result<(), Failure> {
    let profile = read(&options.file)?;
    let other_path = options.other.as_ref().or(options.compare.as_ref());
    let other = other_path.map(|path| read(path)).transpose()?;
    let damaged = |error: std::io::Error| Failure::file(format!("{}: {error}", options.file.display()));
    if let Some(out) = &options.html {
        let page = Page::of(&profile).map_err(damaged)?;
        let page = match (&other, other_path) {
            (Some(other), Some(path)) => page
                .compared_with(other)
                .map_err(|error| Failure::file(format!("{}: {error}", path.display())))?,
            _ => page,
        };
        page.write(out).map_err(|error| Failure::file(format!("--html {}: {error}", out.display())))?;
    }
    let exports = exports(options)?;
    for (export, out) in &exports {
        let said = |error: std::io::Error| Failure::file(format!("{}: {error}", out.display()));
        export.write(&profile, out).map_err(said)?;
    }
    if options.html.is_some() || !exports.is_empty() {
        return Ok(());
    }
    let explanation = Explanation::of(&profile).map_err(damaged)?;
    let text = match other {
        Some(other) => {
            let explained = Explanation::of(&other).map_err(damaged)?;
            let text = Comparison { this: &explanation, other: &explained }.to_string();
            match predicted(&profile, &other) {
                Some((run, plan)) => format!("{text}\n{}", Agreement::of(run, plan).map_err(damaged)?),
                None => text,
            }
        }
        None => format!("{}{explanation}", ranks(&options.file, &profile)?),
    };
    Style::Text.say(text.trim_end())
}

/// The table of all ranks, where the profile is that of the first of several.
fn ranks(path: &Path, profile: &Profile) -> Result<String, Failure> {
    let number = |key: &str| profile.about().get(key).and_then(Value::as_u64);
    let n_ranks = number("ranks").filter(|_| number("rank") == Some(0)).unwrap_or(1);
    let (mut explanations, mut missing) = (Vec::new(), Vec::new());
    // Nothing in a file is trusted, its number of ranks neither.
    for rank in (0..n_ranks.min(MOST_RANKS) as usize).filter(|_| n_ranks > 1) {
        let path = of_rank(path, rank);
        if !path.exists() {
            missing.push(path.display().to_string());
            continue;
        }
        let explained = Explanation::of(&read(&path)?);
        explanations.push(explained.map_err(|error| Failure::file(format!("{}: {error}", path.display())))?);
    }
    if explanations.is_empty() {
        return Ok(String::new());
    }
    let ranks =
        Ranks::of(&explanations).map_err(|error| Failure::file(format!("{}: {error}", path.display())))?;
    let missing = match &missing[..] {
        [] => String::new(),
        [first, ..] => format!("the profiles of {} others are not there, such as {first}\n", missing.len()),
    };
    Ok(format!("{ranks}{missing}\nrank 0: "))
}

/// Which of two profiles is a run, and which a plan, if there is one of each.
fn predicted<'a>(one: &'a Profile, other: &'a Profile) -> Option<(&'a Profile, &'a Profile)> {
    let is_plan = |profile: &Profile| profile.about()["is_plan"] == true;
    match (is_plan(one), is_plan(other)) {
        (false, true) => Some((one, other)),
        (true, false) => Some((other, one)),
        _ => None,
    }
}

/// The formats of other tools that are asked for, and where they go.
fn exports(options: &ExplainOptions) -> Result<Vec<(Export, &Path)>, Failure> {
    let named = [
        (Export::Pickle, &options.pickle),
        (Export::Perfetto, &options.perfetto),
        (Export::OpenMetrics, &options.openmetrics),
    ];
    let mut all: Vec<(Export, &Path)> =
        named.into_iter().filter_map(|(export, out)| Some((export, out.as_deref()?))).collect();
    if let Some(out) = &options.export {
        let unknown = || {
            let out = out.display();
            Failure::options(format!("--export {out}: the name must end with .pickle, .pftrace or .prom"))
        };
        all.push((Export::of_path(out).ok_or_else(unknown)?, out));
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Profile, Failure> {
    Profile::read(path).map_err(|error| Failure::file(format!("{}: {error}", path.display())))
}
