//! The line as the operating system sees it: the memory of a run under a limit, looked at from outside the process.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::Value;

const MIB: u64 = 1 << 20;

/// What a process may hold beside its pool: code, stacks, records and the input file's text.
const BESIDE: u64 = 24 * MIB;

/// A run of the smallest GPT, long enough for the pool to be as full as it gets.
const RUN: &str = "train gpt-nano --batch 8 --steps 4 --seed 5 --json";

/// A short text, so that little is held out and evaluated.
fn text() -> String {
    let path = format!("{}/line-{}.txt", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    fs::write(&path, "All's well that ends well. ".repeat(1000)).expect("a file can be written");
    path
}

fn command(limit: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(RUN.split_whitespace()).args(["--limit", limit, "--data", &text()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The anonymous memory of a process that is resident, in bytes; nothing when it has ended.
fn resident(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Runs under a limit to the end; returns what the run says of itself, and the most memory that was ever seen.
fn watched(limit: &str) -> (Value, u64) {
    let mut child = command(limit).spawn().expect("the program starts");
    let mut most = 0;
    let status = loop {
        most = most.max(resident(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("the process is ours") {
            break status;
        }
        std::thread::yield_now();
    };
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    assert!(status.success(), "--limit {limit}: {status}\n{text}");
    let end: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(end["event"], "end");
    (end, most)
}

/// The exit code and the message of a run that is refused.
fn refused(limit: &str) -> (Option<i32>, String) {
    let output = command(limit).output().expect("the program starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn the_process_of_a_limited_run_stays_under_the_limit_and_computes_the_same() {
    let (natural, _) = watched("none");
    let committed = natural["committed_bytes"].as_u64().expect("a number") / MIB;
    let (code, message) = refused(&format!("{}MiB", committed / 2));
    assert_eq!(code, Some(3), "{message}");
    let named = message.trim_end().rsplit_once("--limit ").and_then(|(_, limit)| limit.strip_suffix("MiB"));
    let least: u64 = named.and_then(|limit| limit.parse().ok()).expect(&message);
    assert!(least < committed, "{least} MiB, and {committed} with everything kept");
    for limit in [(least + committed) / 2, least] {
        let (end, most) = watched(&format!("{limit}MiB"));
        for what in ["loss_bits", "parameters_sha256"] {
            assert_eq!(end[what], natural[what], "{what} under {limit} MiB");
        }
        assert!(end["committed_bytes"].as_u64().is_some_and(|bytes| bytes <= limit * MIB), "{end}");
        assert!(most <= limit * MIB + BESIDE, "{most} bytes resident under {limit} MiB");
        assert!(most > limit * MIB / 2, "{most} bytes resident: the process was not watched");
    }
    let (code, message) = refused(&format!("{}MiB", least - (least * 3 / 100).max(2)));
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains(&format!("{least}MiB")), "{message}");
}
