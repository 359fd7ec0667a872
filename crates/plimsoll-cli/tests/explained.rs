//! Every recipe is recorded and explained: what is in the profile is what the pool counts itself, at a thousand moments and more,
//! and a clean run has no leak. Small recipes are trained as they are, large ones in a small size, and as plans as they are.

mod small;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use plimsoll::nn::layers::{Dense, Sequential};
use plimsoll::nn::losses::MeanSquaredError;
use plimsoll::nn::{BuiltLayer, Layer};
use plimsoll::report::{Agreement, Explanation, Profile};
use plimsoll::{Shape, Tensor};
use plimsoll_cli::{Failure, Feature, Recipe, main_with, run};

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

/// In the checking mode every value is taken from the pool and given back; then a run has at every event the bytes that its dry run
/// has, in steps, evaluations and beside them. It does so when it is not checked, too, and under a limit.
#[test]
fn a_run_is_its_dry_run_event_by_event() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = |name: &str| folder.path().join(name);
    let text = path("text");
    std::fs::write(&text, "All's well. ".repeat(2000)).expect("there is room");
    let text = text.display().to_string();
    let (run, plan) = (path("run.profile"), path("plan.profile"));
    for (checks, arguments) in [
        ("1", &["digits", "--steps", "50"][..]),
        ("0", &["digits", "--steps", "50"]),
        ("1", &["dense", "--steps", "4", "--batch", "16"]),
        ("1", &["fashion", "--steps", "3", "--batch", "4", "--data", "random"]),
        ("1", &["chars", "--steps", "4", "--batch", "4", "--data", &text]),
        ("1", &["gpt-nano", "--steps", "3", "--batch", "1", "--data", &text]),
        ("1", &["gpt-nano", "--steps", "2", "--batch", "2", "--data", &text, "--limit", "62MiB"]),
    ] {
        for (word, path) in [("train", &run), ("plan", &plan)] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
            command.env("PLIMSOLL_ACTIONS_SECONDS", "0").env("PLIMSOLL_VERIFY", checks);
            let output = command.arg(word).args(arguments).arg("--profile").arg(path).output();
            let output = output.expect("the program starts");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let read = |path: &Path| Profile::read(path).expect("it was written");
        let agreement = Agreement::of(&read(&run), &read(&plan)).expect("both are whole");
        assert_eq!(agreement.difference, None, "{arguments:?}: {agreement}");
        assert!(agreement.n_steps > 1 && agreement.n_moments > 100, "{arguments:?}: {agreement}");
    }
}

/// A layer that keeps what it computes for ever.
struct Hoarder;

static HOARD: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());

impl Layer for Hoarder {
    fn name(&self) -> &str {
        "hoarder"
    }

    fn make(&self, input: &Shape) -> plimsoll::Result<BuiltLayer> {
        BuiltLayer::new(input, |x, _| {
            let y = x.sin()?;
            HOARD.lock().expect("nobody panics").push(y.clone());
            Ok(y)
        })
    }
}

/// The line that describes it.
const HOARDER: u32 = line!() + 4;

/// The recipe of somebody's own whose model leaks.
fn leaking() -> Recipe {
    let model = Sequential::new().add(Dense::new(8)).add(Hoarder).add(Dense::new(1));
    Recipe::new("leaking", model, Feature::floats([4]), Feature::floats([1]), MeanSquaredError)
}

/// Tells the program that it is the process that leaks, and where it records.
const LEAKS: &str = "PLIMSOLL_EXPLAINED_TEST_LEAKS";

/// The process that trains the recipe that leaks. It is no test of its own.
#[test]
fn the_process_that_leaks() {
    let Some(path) = std::env::var_os(LEAKS) else { return };
    let path = path.to_string_lossy();
    let words = [
        "plimsoll",
        "train",
        "leaking",
        "--steps",
        "11",
        "--batch",
        "4",
        "--limit",
        "none",
        "--profile",
        &path,
    ];
    // As the program does it, with the warnings of the log.
    assert_eq!(main_with([leaking()], words), ExitCode::SUCCESS);
}

/// `train` warns of a leak in one line at its end, with the layer and the line that describes it; so does the profile, after
/// ten steps.
#[test]
fn a_recipe_that_leaks_is_told_by_layer_and_line() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let this = std::env::current_exe().expect("this program has a name");
    let arguments = ["--exact", "the_process_that_leaks", "--nocapture"];
    let output = Command::new(this).args(arguments).env(LEAKS, &path).output().expect("the program starts");
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{warned}");
    let place = format!("hoarder sin ({}:{HOARDER})", file!());
    let lines: Vec<&str> = warned.lines().filter(|line| line.contains("memory grows")).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("1 block a step (512 B)") && lines[0].contains(&place),
        "{warned}"
    );
    let explanation = Explanation::of(&Profile::read(&path).expect("it was written")).expect("it is whole");
    let grown: Vec<String> = explanation.growth.iter().map(ToString::to_string).collect();
    assert!(
        grown.len() == 1 && grown[0].contains("1 block a step") && grown[0].contains(&place),
        "{grown:?}"
    );
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
