//! The line as the operating system sees it: recipes under limits from just below what they take down to the least that
//! works, looked at from outside the process.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

const MIB: u64 = 1 << 20;

/// What a process may hold beside its pool: code, stacks and records.
const BESIDE: u64 = 24 * MIB;

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments.split_whitespace()).args(["--device", "cpu", "--json"]);
    command.env("PLIMSOLL_OOM_REPORT", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The last line of what a process wrote.
fn last(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

#[track_caller]
fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {event}"))
}

/// The anonymous memory of a process that is resident, in bytes; nothing when it has ended.
fn resident(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// Trains to the end; returns what the run says of itself, and the most memory that was ever seen.
fn watched(arguments: &str) -> (Value, u64) {
    // Whoever watches keeps a core busy, so one process is watched at a time.
    static WATCHING: Mutex<()> = Mutex::new(());
    let _alone = WATCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = command(arguments).spawn().expect("the program starts");
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
    assert!(status.success(), "{arguments}: {status}\n{text}");
    let end = last(&text);
    assert_eq!(end["event"], "end");
    (end, most)
}

/// Trains without a limit, at 95 % of what that takes and so on in steps of 5 % down to the least limit, and at that; returns how
/// many limits there were.
fn sweep(run: &str) -> usize {
    let planned = command(&format!("plan {run}")).output().expect("the program starts");
    let least = number(&last(&String::from_utf8_lossy(&planned.stdout)), "least_limit_bytes");
    let (natural, _) = watched(&format!("train {run} --limit none"));
    let mut above = natural.clone();
    let committed = number(&natural, "committed_bytes");
    let shares = (1..20).map(|step| committed * (100 - 5 * step) / 100);
    let limits: Vec<u64> = shares.take_while(|&limit| limit > least).chain([least]).collect();
    for &limit in &limits {
        let (end, most) = watched(&format!("train {run} --limit {limit}"));
        for same in ["loss_bits", "parameters_sha256"] {
            assert_eq!(end[same], natural[same], "{run}: {same} under {limit}");
        }
        for peak in ["peak_bytes", "committed_bytes"] {
            assert!(number(&end, peak) <= number(&above, peak), "{run}: {peak} under {limit}");
            assert_eq!(end[format!("predicted_{peak}")], end[peak], "{run} under {limit}");
        }
        assert!(number(&end, "committed_bytes") <= limit, "{run}: {end}");
        assert!(most <= limit + BESIDE, "{run}: {most} bytes resident under {limit}");
        assert!(most > limit / 2, "{run}: {most} bytes resident: the process was not watched");
        above = end;
    }
    assert!(number(&above, "recomputed_ops") > 0, "{run}: {above}");
    let refused = command(&format!("train {run} --limit {}", least - least * 3 / 100)).output();
    let refused = refused.expect("the program starts");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0), "{run}: {message}");
    assert!(message.contains(&format!("{}MiB", least / MIB)), "{run}: {least}\n{message}");
    limits.len()
}

#[test]
fn a_gpt_with_dropout_keeps_to_every_limit_that_works() {
    let n_limits = sweep("gpt-nano --batch 8 --steps 2 --seed 5 --data random");
    assert!(n_limits >= 6, "{n_limits}");
}

#[test]
fn a_network_with_batch_norm_keeps_to_every_limit_that_works() {
    let n_limits = sweep("fashion --batch 128 --steps 3 --seed 5 --data random");
    assert!(n_limits >= 8, "{n_limits}");
}

#[test]
fn an_lstm_keeps_to_the_least_limit() {
    // Nearly all of it are the states of one op, which it needs itself.
    sweep("chars --batch 128 --steps 2 --seed 5 --data random");
}
