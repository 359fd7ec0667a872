//! What would help: whoever takes an action that a profile lists gets the peak that it said, to the byte.

use std::process::{Command, Stdio};

use plimsoll::report::{Action, Advice, Explanation, Page, Profile};
use serde_json::Value;

/// The last JSON line of a command that succeeds.
#[track_caller]
fn last(arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    // All actions are tried, however slow the machine is.
    command.env("PLIMSOLL_ACTIONS_SECONDS", "3600");
    let output = command.args(arguments.split_whitespace()).arg("--json").stdin(Stdio::null()).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{arguments}\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// The profile of a command, and what it says would help.
#[track_caller]
fn profile_of(arguments: &str) -> (Profile, Vec<Action>) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    last(&format!("{arguments} --profile {}", path.display()));
    let profile = Profile::read(&path).expect("it was written");
    let actions = Action::listed(profile.about());
    (profile, actions)
}

/// Takes each action that is written as options, one by one, as plans. Lines of code are taken one by one in
/// `crates/plimsoll-nn/tests/explained.rs`.
#[track_caller]
fn check(arguments: &str) -> Vec<Action> {
    let before = last(&format!("plan {arguments}"))["peak_bytes"].as_u64().expect("bytes");
    let (_, actions) = profile_of(&format!("plan {arguments}"));
    assert!(!actions.is_empty(), "something helps {arguments}");
    for action in &actions {
        let Advice::Options(options) = &action.advice else { continue };
        // An option that is given twice is an error, so the action's takes its place.
        let words: Vec<&str> = options.split_whitespace().collect();
        assert!(!arguments.contains(words[0]), "{arguments} {options}");
        let peak = last(&format!("plan {arguments} {options}"))["peak_bytes"].as_u64();
        assert_eq!(peak, Some(action.peak_bytes), "{arguments} {options}");
        assert_eq!(before - action.peak_bytes, action.saved_bytes, "{arguments} {options}");
    }
    actions
}

#[test]
fn each_action_changes_the_peak_by_the_bytes_that_it_said() {
    let of = |actions: &[Action], start: &str| actions.iter().any(|a| a.advice.text().starts_with(start));
    let digits = check("digits --steps 3");
    assert!(of(&digits, "--optimizer"), "{digits:?}");
    let nano = check("gpt-nano --steps 2");
    for option in ["--batch", "--accumulate", "--optimizer", "--limit", "--spill . --limit"] {
        assert!(of(&nano, option), "{option}: {nano:?}");
    }
    let small = check("gpt-nano --steps 2 --accumulate 8 --optimizer sgd");
    assert!(of(&small, ".recompute() on the layer at crates/plimsoll-cli/src/recipes/gpt.rs:"), "{small:?}");
    check("dense --steps 2 --data random");
    check("chars --steps 2");
}

/// What a plan says of an action holds for the run, too.
#[test]
fn a_run_that_takes_an_action_has_its_peak() {
    let (profile, actions) = profile_of("train digits --steps 4");
    let is_optimizer = |action: &&Action| action.advice.text().starts_with("--optimizer");
    let action = actions.iter().find(is_optimizer).expect("one helps");
    let taken = last(&format!("train digits --steps 4 {}", action.advice.text()));
    assert_eq!(taken["peak_bytes"], action.peak_bytes);
    let text = Explanation::of(&profile).expect("it is whole").to_string();
    assert!(text.contains("what would help"), "{text}");
    assert!(text.contains(action.advice.text()), "{text}");
    assert!(Page::of(&profile).expect("it is whole").to_html().contains("What would help"));
}
