//! Profiles of the ranks of one run, side by side.

#![forbid(unsafe_code)]

use plimsoll_memory::{GhostPages, Label, Owner, Pool, STEP, Site};
use plimsoll_report::{Explanation, Profile, Profiler, Ranks};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// What a rank records that holds so many MiB in the backward of its second step.
fn explained(about: &Value, mib: usize) -> Explanation {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("run.profile");
    let pool = Pool::new(GhostPages::new(1 << 40));
    let profiler = Profiler::start(&pool, &path, about).expect("it can be written");
    for step in [1, 2] {
        pool.mark(STEP, step);
        pool.mark("backward", 0);
        let label = Label::new(Owner::Gradients, Site::intern("src/model.rs", 1, "layer", "matmul"));
        drop(pool.acquire(step as usize * mib * MIB / 2, label).expect("a ghost has room"));
    }
    profiler.finish().expect("it can be written");
    Explanation::of(&Profile::read(&path).expect("it was written just now")).expect("it is whole")
}

fn about(rank: u64, recipe: &str, predicted: u64) -> Value {
    json!({ "recipe": recipe, "rank": rank, "ranks": 3, "predicted_peak_bytes": predicted })
}

#[test]
fn ranks_have_a_row_each_and_the_one_that_holds_most_is_named() {
    let all: Vec<Explanation> = [(2, 4, 4), (0, 8, 8), (1, 8, 7)]
        .map(|(rank, mib, predicted)| explained(&about(rank, "test", predicted << 20), mib))
        .into();
    let ranks = Ranks::of(&all).expect("they are of one run");
    assert_eq!(ranks.worst().map(|(rank, explanation)| (rank, explanation.peak.in_use)), Some((0, 8 << 20)));
    let text = ranks.to_string();
    let rows: Vec<&str> = text.lines().collect();
    for (row, [rank, bytes, predicted]) in rows[1..].iter().zip([
        ["    0  ", "8,388,608", "  as predicted"],
        ["    1  ", "8,388,608", "not as predicted"],
        ["    2  ", "4,194,304", "  as predicted"],
    ]) {
        let has_all = [rank, bytes, predicted, "step 2, backward"].into_iter().all(|part| row.contains(part));
        assert!(has_all, "{row}");
    }
    assert!(text.contains("rank 0 holds most, 4.00 MiB (4,194,304 B) more"), "{text}");
}

#[test]
fn profiles_of_other_runs_and_ranks_are_refused() {
    let first = || explained(&about(0, "test", 1), 1);
    for (other, reason) in [
        (explained(&about(1, "other", 1), 1), "its recipe differs"),
        (first(), "two profiles of rank 0"),
        (explained(&about(3, "test", 1), 1), "no such rank"),
        (explained(&json!({ "recipe": "test" }), 1), "which rank it is of"),
    ] {
        let error = Ranks::of(&[first(), other]).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}
