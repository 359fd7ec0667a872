//! Every recipe is recorded and explained: what is in the profile is what the pool counts itself, at a thousand moments and more,
//! and a clean run has no leak. Small recipes are trained as they are, large ones in a small size, and as plans as they are.

mod small;

use std::path::Path;
use std::process::Command;

use plimsoll::report::{Explanation, Profile};
use plimsoll_cli::{Failure, run};

/// At so many moments, at least, a profile is held against the pool's own count. They are drawn when it is recorded.
const LEAST_CHECKED: u64 = 1000;

/// Reads a profile; reading holds each of the pool's own counts against the blocks, and one that differs is an error.
fn checked(name: &str, path: &Path) -> Explanation {
    let profile = Profile::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let explanation = Explanation::of(&profile).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(explanation.n_checked >= LEAST_CHECKED, "{name}: {} moments", explanation.n_checked);
    assert_eq!(explanation.owners().total(), explanation.peak.in_use, "{name}: rows of the peak");
    let sum: u64 = explanation.holders.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, explanation.peak.in_use, "{name}: who holds them");
    assert_eq!(explanation.growth, [], "{name}: a clean run has no leak");
    explanation
}

/// Runs the program, which need not say what would help: that is another test's.
fn program(arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let output = command.env("PLIMSOLL_ACTIONS_SECONDS", "0").args(arguments).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A run of so many steps, in which somebody was asked at the end who holds what.
fn checked_run(name: &str, steps: &str, path: &Path) {
    let explanation = checked(name, path);
    assert_eq!(explanation.steps.len().to_string(), steps, "{name}");
    let named = explanation.holders.iter().filter(|row| row.held.is_some()).count();
    assert!(named > 0, "{name}: {explanation}");
}

#[test]
fn shipped_recipes_add_up_and_do_not_leak() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let (profile, text) = (path.display().to_string(), folder.path().join("text"));
    std::fs::write(&text, "All's well. ".repeat(2000)).expect("there is room");
    let text = text.display().to_string();
    for (name, steps, more) in [
        ("digits", "120", &["--batch", "32"][..]),
        ("dense", "150", &["--batch", "16"]),
        ("fashion", "40", &["--batch", "8", "--data", "random"]),
        ("chars", "60", &["--batch", "4", "--data", &text]),
        ("gpt-nano", "12", &["--batch", "1", "--data", &text]),
    ] {
        program(&[&["train", name, "--steps", steps, "--profile", &profile], more].concat());
        checked_run(name, steps, &path);
    }
}

#[test]
fn large_recipes_in_a_small_size_add_up_and_do_not_leak() -> Result<(), Failure> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let profile = path.display().to_string();
    for (name, more) in [
        ("small-gpt2-124m", &[][..]),
        ("small-gpt2-355m", &["--precision", "mixed_float16"]),
        ("small-resnet18", &[]),
        ("small-resnet50", &[]),
    ] {
        let words = ["plimsoll", "train", name, "--steps", "12", "--batch", "2", "--profile", &profile];
        run(&small::recipes(), [&words[..], more].concat())?;
        checked_run(name, "12", &path);
    }
    Ok(())
}

#[test]
fn recipes_that_are_planned_add_up() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.profile");
    let profile = path.display().to_string();
    for name in ["resnet18", "resnet50", "gpt2-124m", "gpt2-355m"] {
        program(&["plan", name, "--as", "h200", "--batch", "8", "--json", "--profile", &profile]);
        checked(name, &path);
    }
}
