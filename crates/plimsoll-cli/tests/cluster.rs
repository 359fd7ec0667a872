//! Plans of clusters from outside: `plan --cluster`.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).output().expect("the program starts")
}

/// The JSON line of a plan, which must succeed.
fn planned(arguments: &str) -> Value {
    let output = run(&format!("plan {arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

#[test]
fn ranks_of_a_cluster_need_less_from_stage_to_stage() {
    let mut before = u64::MAX;
    for zero in 0..4 {
        let plan =
            planned(&format!("gpt-nano --cluster 8xcpu --batch 8 --steps 2 --data random --zero {zero}"));
        assert_eq!((&plan["cluster"], &plan["zero"]), (&"8xcpu".into(), &zero.into()));
        let ranks = plan["ranks"].as_array().expect("ranks");
        // The first rank has the smallest shards here; the other is that with the largest.
        assert_eq!(ranks.len(), if zero == 0 { 1 } else { 2 }, "{ranks:?}");
        assert_eq!(ranks[0]["rank"], 0);
        for rank in ranks {
            let owners = rank["owners"].as_object().expect("owners");
            assert_eq!(owners.values().map(number).sum::<u64>(), number(&rank["peak_bytes"]));
            assert!(rank["fits"].as_bool().expect("a bool"));
            assert!(number(&rank["least_limit_bytes"]) <= number(&rank["committed_bytes"]));
        }
        let most = ranks.iter().map(|rank| number(&rank["peak_bytes"])).max().expect("a rank");
        assert_eq!(most, number(&plan["peak_bytes"]), "the rank that needs most is the one that is shown");
        assert!(most < before, "stage {zero} needs {most}, the one before {before}");
        before = most;
    }
}

#[test]
fn published_sizes_are_planned_for_gpus_that_are_not_there() {
    let plan = planned("gpt3-125m --cluster 64xh100 --zero 3 --steps 1 --precision mixed_bfloat16");
    assert_eq!(plan["batch"], 256);
    assert_eq!(plan["fits"], true);
    // Parameters in bf16 travel for forward and for backward, six rounds at 0.8 of 50 GB/s each, and gradients in float32 up the tree
    // and to their owners.
    let n_parameters = 125e6;
    let ms = n_parameters * (2.0 * 2.0 * 6.0 + 4.0 * 7.0) / (0.8 * 50e9) * 1e3;
    let rank = &plan["ranks"][0];
    let predicted = rank["predicted_transfer_ms"].as_f64().expect("rates are known");
    assert!((0.9 * ms..1.4 * ms).contains(&predicted), "{predicted} ms, about {ms}");
    assert_eq!(rank["communicator_bytes"], 512 << 20);
    let (total, outside) = (85_520_809_984u64, 1u64 << 30);
    assert_eq!(plan["limit_bytes"], total - outside - (512 << 20), "a communicator needs its room");
    let output = run("plan gpt3-125m");
    assert_eq!(output.status.code(), Some(2), "one device has recipes of its own");
    let output = run("plan digits --cluster 64h100");
    assert!(String::from_utf8_lossy(&output.stderr).contains("64xh100"));
    assert_eq!(run("plan digits --zero 2").status.code(), Some(2), "without a cluster there are no ranks");
}
