//! `cargo xtask page`: pages opened in Chromium, and held against the profiles that they were made from.
//!
//! The pages are a long one, a leaking one, one with hostile names, one of which steps are left out, a plan's, those of two runs, and
//! one with the dry run laid over it. `xtask/page/check.py` drives
//! the browser through Playwright and asks axe whether everybody can use them. Chromium and the Python packages are installed
//! where they are missing; where they cannot be had, the command says so.

use std::path::Path;

use crate::Outcome;
use crate::step::Step;

/// Under which names Chromium is found.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PACKAGES: [&str; 2] = ["playwright==1.65.2", "axe-playwright-python==0.1.8"];

/// What the recorded pages are about.
const RUNS: [(&str, &str); 3] = [
    ("digits", "train digits --steps 60"),
    ("nano", "train gpt-nano --steps 2 --batch 2 --data random --limit 62MiB"),
    ("plan", "plan gpt2-124m --as t4 --batch 2"),
];

/// A run whose page has its dry run, too, with an evaluation in between.
const PREDICTED: [&str; 4] = ["digits", "--steps", "60", "--json"];

/// How much to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Pages that are made up, for which little has to be built.
    MadeUp,
    /// Those of runs and a plan, too.
    Everything,
}

/// Makes the pages and looks at them.
///
/// # Errors
/// A tool that cannot be had; a page that shows what the profile does not say.
pub fn run(root: &Path, extent: Extent) -> Outcome {
    let Some(chromium) = chromium(root) else {
        return Err("Chromium is not installed, and apt-get could not install it".to_owned());
    };
    let python = python(root)?;
    let folder = root.join("target/pages");
    let _none_yet = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let folder = folder.display().to_string();
    let mut profiles = Vec::new();
    for (name, run) in RUNS.into_iter().filter(|_| extent == Extent::Everything) {
        let profile = format!("{folder}/{name}.profile");
        let words: Vec<&str> = ["run", "--quiet", "--package", "plimsoll-cli", "--"]
            .into_iter()
            .chain(run.split_whitespace())
            .chain(["--json", "--profile", &profile])
            .collect();
        Step::cargo(root, &words).read()?;
        profiles.push(profile);
    }
    if extent == Extent::Everything {
        let page = format!("{folder}/predicted.html");
        let words = ["run", "--quiet", "--package", "plimsoll-cli", "--", "train"];
        Step::cargo(root, &[&words, &PREDICTED[..], &["--report", &page]].concat()).read()?;
    }
    let mut words =
        vec!["run", "--quiet", "--package", "plimsoll-report", "--example", "pages", "--", &folder];
    words.extend(profiles.iter().map(String::as_str));
    Step::cargo(root, &words).run()?;
    Step::new(root, &python, &["xtask/page/check.py", &chromium, &folder]).run()
}

/// The quick part, for the tests of every day; where the tools cannot be had it says so.
///
/// # Errors
/// A page that shows what the profile does not say.
pub fn where_possible(root: &Path) -> Outcome {
    match chromium(root).is_some() && python(root).is_ok() {
        true => run(root, Extent::MadeUp),
        false => {
            println!("left out: pages, because Chromium or its Python packages cannot be installed");
            Ok(())
        }
    }
}

/// Chromium's name, once it is there.
fn chromium(root: &Path) -> Option<String> {
    let found = || BROWSERS.into_iter().find(|name| Step::new(root, name, &["--version"]).works());
    if found().is_none() {
        let install = ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"];
        let _refused = Step::new(root, "apt-get", &["update"]).run();
        let _refused = Step::new(root, "apt-get", &install).run();
    }
    let found = found()?;
    let path = Step::new(root, "which", &[found]).read().ok()?;
    Some(path.trim().to_owned())
}

/// The Python of an environment that has the packages.
fn python(root: &Path) -> Result<String, String> {
    let folder = root.join("target/page-python");
    let python = folder.join("bin/python").display().to_string();
    let imports = ["-c", "import playwright, axe_playwright_python"];
    if !Step::new(root, &python, &imports).works() {
        Step::new(root, "python3", &["-m", "venv", &folder.display().to_string()]).run()?;
        Step::new(root, &python, &[&["-m", "pip", "install", "--quiet"][..], &PACKAGES].concat()).run()?;
    }
    Ok(python)
}
