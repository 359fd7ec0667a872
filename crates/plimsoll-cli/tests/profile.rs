//! Profiles from outside: what `explain` tells of a run or a plan is what the run or the plan says of itself.

use std::process::{Command, Output, Stdio};

use plimsoll::report::{Explanation, Profile};
use serde_json::Value;

fn run(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).output().expect("the program starts")
}

/// The last JSON line of a run that succeeds.
#[track_caller]
fn last(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

/// Recipes with an evaluation, accumulation, mixed precision and limits that make steps recompute and offload values.
#[test]
fn a_profile_is_the_run_to_the_byte() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let spill = folder.path().display();
    for arguments in [
        "train digits --epochs 2".to_owned(),
        "train digits --steps 12 --accumulate 3 --precision mixed_float16".to_owned(),
        "train gpt-nano --steps 1 --batch 2 --limit 62MiB".to_owned(),
        format!("train gpt-nano --steps 1 --batch 2 --limit 62MiB --spill {spill}"),
    ] {
        let plain = last(&arguments);
        let told = last(&format!("{arguments} --profile {}", path.display()));
        for field in ["parameters_sha256", "loss_bits", "peak_bytes", "committed_bytes", "recomputed_ops"] {
            assert_eq!(told[field], plain[field], "recording changes nothing: {arguments}, {field}");
        }
        let profile = Profile::read(&path).expect("it was written");
        let explanation = Explanation::of(&profile).expect("it is whole");
        assert_eq!(explanation.peak.in_use, told["peak_bytes"], "{arguments}");
        assert_eq!(explanation.peak_committed, told["committed_bytes"], "{arguments}");
        assert_eq!(explanation.owners().iter().map(|(_, bytes)| bytes).sum::<u64>(), explanation.peak.in_use);
        assert_eq!(explanation.steps.len() as u64, told["steps"], "{arguments}");
        assert_eq!(explanation.growth, [], "a clean run has no leak: {arguments}");
        assert_eq!(profile.about()["predicted_peak_bytes"], told["peak_bytes"], "{arguments}");
        assert!(profile.is_complete());
    }
}

#[test]
fn a_plan_has_the_same_profile_without_its_arithmetic() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.profile");
    for arguments in [
        "plan digits --epochs 2",
        "plan gpt2-124m --as t4 --batch 2 --limit 5GiB",
        "plan resnet18 --as h200 --batch 8",
    ] {
        let told = last(&format!("{arguments} --profile {}", path.display()));
        let profile = Profile::read(&path).expect("it was written");
        let explanation = Explanation::of(&profile).expect("it is whole");
        assert_eq!(explanation.peak.in_use, told["peak_bytes"], "{arguments}");
        assert_eq!(explanation.peak_committed, told["committed_bytes"], "{arguments}");
        let at = &told["peak_at"];
        assert_eq!(
            (explanation.peak.step, &*explanation.peak.phase),
            (at["step"].as_u64().unwrap(), at["phase"].as_str().unwrap())
        );
    }
}

#[test]
fn explain_tells_it_in_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let told = last(&format!("train digits --steps 20 --profile {}", path.display()));
    let output = run(&format!("explain {}", path.display()));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let peak = told["peak_bytes"].as_u64().expect("a number").to_string();
    let digits: String =
        text.lines().nth(2).expect("three lines").chars().filter(char::is_ascii_digit).collect();
    assert!(digits.contains(&peak), "{text}");
    for part in
        ["digits on cpu, batch 32", "20 steps", "as predicted", "dense_1 matmul (", "nothing has grown"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    for (arguments, part) in [
        (format!("explain {}", folder.path().join("none").display()), "none"),
        (format!("explain {}", env!("CARGO_MANIFEST_DIR").to_owned() + "/Cargo.toml"), "no profile"),
        (format!("train digits --profile {}/no/folder", folder.path().display()), "--profile"),
    ] {
        let output = run(&arguments);
        let message = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(4) && message.contains(part), "{arguments}: {message}");
    }
}
