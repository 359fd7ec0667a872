//! Profiles from outside: what `explain` tells of a run or a plan is what the run or the plan says of itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
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
        // What the pool has committed is the process's, too: the rest is code, stacks and libraries.
        let outside = profile.about()["outside_bytes"].as_u64().expect("the system tells");
        assert!((1..256 << 20).contains(&outside), "{arguments}: {outside} B outside");
    }
}

/// A file that may not grow any more stands for a disk without room.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_ends_the_recording_and_not_the_run() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let arguments = "train digits --steps 60 --json";
    let plain = last("train digits --steps 60");
    // Some KiB, and a write beyond them is an error instead of a signal.
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec {} {arguments} --profile {}",
        env!("CARGO_BIN_EXE_plimsoll"),
        path.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    let warned = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success() && warned.contains("the profile ends here"), "{warned}");
    let text = String::from_utf8(output.stdout).expect("text");
    let told: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    for field in ["parameters_sha256", "loss_bits", "peak_bytes", "committed_bytes"] {
        assert_eq!(told[field], plain[field], "{field}");
    }
    let profile = Profile::read(&path).expect("what there was room for");
    assert!(!profile.is_complete());
    profile.replay(|_| true).expect("what is there is right");
}

/// A process that is killed leaves all steps that it has told of.
#[test]
fn a_run_that_is_killed_leaves_its_finished_steps() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", "digits", "--steps", "1000000", "--json", "--profile"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut steps = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()?["step"].as_u64());
    let told = steps.find(|&step| step >= 20).expect("it gets so far");
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    let profile = Profile::read(&path).expect("it is readable");
    let explanation = Explanation::of(&profile).expect("what is there is right");
    let n_steps = explanation.steps.len() as u64;
    assert!(!profile.is_complete() && n_steps >= told, "{n_steps} of {told} steps");
}

#[test]
fn optimizer_state_is_named_by_the_layer_of_its_variable() {
    let plan = last("plan digits --steps 2");
    let holders = plan["holders"].as_array().expect("a list").iter();
    let states = holders.filter(|holder| holder["owner"] == "optimizer" && holder["op"] == "full");
    let layers: Vec<&Value> = states.map(|holder| &holder["layer"]).collect();
    assert_eq!(layers, ["dense_1", "dense", "dense_2"], "largest first");
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

/// The page of a run carries its profile; the page of a run that does not fit is written by itself.
#[test]
fn pages_are_written() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (page, profile) = (path("run.html"), path("run.profile"));
    last(&format!("train digits --steps 3 --report {page} --profile {profile}"));
    let html = std::fs::read_to_string(&page).expect("it was written");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<title>digits on cpu: memory</title>"));
    assert!(!html.contains("id=\"other\"></script>"), "the prediction is in it");
    last(&format!("plan digits --steps 3 --report {page}"));
    assert!(std::fs::read_to_string(&page).expect("it was written").contains("id=\"other\"></script>"));
    for arguments in
        [format!("explain {profile} --html {page}"), format!("explain {profile} {profile} --html {page}")]
    {
        assert!(run(&arguments).status.success(), "{arguments}");
    }
    let text = run(&format!("explain {profile} --compare {profile}")).stdout;
    assert!(String::from_utf8(text).expect("text").contains("the same lines hold the same bytes"));
    let output = run(&format!("explain {profile} --html {}/no/page.html", folder.path().display()));
    assert_eq!(output.status.code(), Some(4));
}

#[test]
fn a_run_that_does_not_fit_leaves_a_profile_and_a_page() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).expect("it is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().display().to_string()).collect();
        names.sort();
        names
    };
    let refused = |arguments: &str, variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(arguments.split_whitespace()).current_dir(folder.path()).stdin(Stdio::null());
        variable.map(|value| command.env("PLIMSOLL_OOM_REPORT", value));
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(3));
        String::from_utf8(output.stderr).expect("text")
    };
    let arguments = "train gpt-nano --steps 1 --batch 4 --limit 8MiB";
    refused(&format!("{arguments} --oom-report off"), None);
    refused(arguments, Some("off"));
    assert_eq!(names(), [""; 0], "switched off");
    let message = refused(arguments, None);
    assert_eq!(names(), ["plimsoll-gpt-nano-out-of-memory.html", "plimsoll-gpt-nano-out-of-memory.profile"]);
    assert!(names().iter().all(|name| message.contains(name)), "{message}");
    let profile = Profile::read(&folder.path().join(&names()[1])).expect("it was written");
    assert!(profile.about()["refused"].as_str().expect("text").contains("limit"));
    assert_eq!(profile.about()["limit_bytes"], 8 << 20);
    let needed = Explanation::of(&profile).expect("it is whole").peak.in_use;
    let planned = last("plan gpt-nano --steps 1 --batch 4 --limit none");
    assert_eq!(needed, planned["peak_bytes"], "what the run would take");
    std::fs::create_dir(folder.path().join("reports")).expect("there is room");
    let message = refused(&format!("{arguments} --oom-report reports"), Some("off"));
    assert!(message.contains("reports/plimsoll-gpt-nano-out-of-memory.html"), "{message}");
}

/// `cargo xtask exports` reads them with the tools' own readers.
#[test]
fn a_profile_is_exported() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (profile, board) = (path("run.profile"), path("board"));
    let told = last(&format!("train digits --steps 5 --profile {profile} --tensorboard {board}"));
    let written = |arguments: &str, name: &str| {
        let output = run(&format!("explain {profile} {arguments} {}", path(name)));
        assert!(output.status.success() && output.stdout.is_empty(), "{arguments}");
        std::fs::read(path(name)).expect("it was written")
    };
    for (option, ending, start) in [
        ("--pickle", "pickle", &b"\x80\x02}("[..]),
        ("--perfetto", "pftrace", &b"\x0a"[..]),
        ("--openmetrics", "prom", &b"# TYPE plimsoll_memory_peak_owner_bytes gauge\n"[..]),
    ] {
        let named = written(option, "named");
        assert!(named.starts_with(start), "{option}");
        assert_eq!(written("--export", &format!("run.{ending}")), named, "{option}");
    }
    let metrics = String::from_utf8(written("--openmetrics", "run.prom")).expect("text");
    let peak =
        format!("plimsoll_memory_peak_bytes{{recipe=\"digits\",device=\"cpu\"}} {}\n", told["peak_bytes"]);
    assert!(metrics.contains(&peak) && metrics.ends_with("# EOF\n"), "{metrics}");
    let events = std::fs::read_dir(&board).expect("it was made").next().expect("a file").expect("an entry");
    assert!(events.file_name().display().to_string().starts_with("events.out.tfevents."));
    let output = run(&format!("explain {profile} --export {}", path("run.unknown")));
    assert_eq!(output.status.code(), Some(2));
}

/// A clean run says nothing of growth, unless it is asked.
#[test]
fn growth_is_listed_on_demand() {
    let plain = run("train digits --steps 24");
    assert!(!String::from_utf8_lossy(&plain.stderr).contains("grows"));
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("growth:"));
    let asked = run("train digits --steps 24 --watch-growth");
    assert!(String::from_utf8_lossy(&asked.stdout).contains("growth: no line left blocks behind"));
}

/// The page of a run that goes on is served to whoever knows its address, and changes nothing of the run.
#[test]
fn a_run_is_served_while_it_trains() {
    let (plain, live) = (last("train digits --steps 20"), last("train digits --steps 20 --live"));
    for field in ["parameters_sha256", "loss_bits", "peak_bytes", "committed_bytes"] {
        assert_eq!(live[field], plain[field], "{field}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", "digits", "--steps", "1000000", "--live"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("text");
    let url = line.trim().strip_prefix("live: http://").expect("an address");
    let (host, path) = url.split_once('/').expect("a token");
    assert!(host.starts_with("127.0.0.1:"), "{host}");
    let mut page = String::new();
    let mut stream = TcpStream::connect(host).expect("it listens");
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("it reads");
    stream.read_to_string(&mut page).expect("text");
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("<title>digits on cpu: memory</title>"));
}
