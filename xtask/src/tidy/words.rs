//! The field's words: what PyTorch, JAX and TensorFlow have a name for is called so here.
//!
//! The first versions had a language of their own, which a newcomer had to learn. These are its words, each with the one that
//! took its place; nothing is named so again, no function, type or module, and no file, in Rust and in kernels for GPUs. Ordinary English is not meant: a
//! comment may say that something is done again.

use super::Finding;
use super::repo::Repo;
use super::source::Source;

/// Names that were given up, and what to say instead.
const RETIRED: &[(&[&str], &str)] = &[
    (&["journal", "Journal"], "`remat`, `StepLog`"),
    (&["again", "make_again"], "`recompute`"),
    (&["away", "Away"], "`offload`, `Offloaded`"),
    (&["Depot"], "`OffloadStore`"),
    (&["bring", "coming", "OnTheirWay"], "`reload`, `prefetching`, `InFlight`"),
    (&["Guard"], "`Evictor`, for that of memory"),
    (&["let_go"], "`evict` or `free`"),
    (&["Course", "on_course", "Following", "Due"], "`StepPlan`, `run_planned`, `PlanCursor`, `Actions`"),
    (
        &["Walk", "Way", "Family", "Member", "Played"],
        "`GreedyPlanner`, `Strategy`, `PlanSet`, `Candidate`, `Measured`",
    ),
    (
        &["trifles", "outbound", "excerpt", "waist"],
        "`min_gain`, `offload_schedule`, `block_slice`, `bottleneck`",
    ),
    (
        &["Lasting", "Passing", "alone_from", "gone_from"],
        "`Persistent`, `Transient`, `backward_only_from`, `dead_from`",
    ),
    (
        &["rehearsal", "Stage", "Rounds", "pass_over", "foresight", "Study"],
        "`dry_run`, `DryRun`, `CycleSkipper`, `skip`, `preflight`, `PeakTracker`",
    ),
    (&["judged", "verdict"], "`step_async`, `finite_loss`"),
    (&["tell_of_step", "take_up", "last_part"], "`report_step`, `resume`, `eval_partial_epoch`"),
    (&["keeps", "extras"], "`saved`, `aux_outputs`"),
    (&["give", "arrive", "walk", "step_back"], "`set_grad`, `accumulate`, `run_backward`, `backward_node`"),
    (&["slope", "derivative"], "`backward_kernel`, `backward_composite`"),
    (&["Ingredient"], "`RebuildInput`"),
    (&["Flow"], "`Deferred`, or a pass of the program"),
    (&["Method"], "`OptimizerConfig`"),
    (&["variable_apart", "Later"], "`buffer`, `PendingValue`"),
    (&["LineNorm"], "`LastAxisNorm`"),
    (&["attend", "think"], "`attn`, `mlp`"),
];

/// What stands before a name that is being given.
const DEFINES: &[&str] = &["fn", "struct", "enum", "trait", "mod", "type", "union"];

/// Reports definitions and files that have a retired name.
pub fn check(repo: &Repo) -> Vec<Finding> {
    repo.sources.iter().flat_map(in_source).chain(repo.kernels.iter().flat_map(in_kernel)).collect()
}

/// What a kernel's source defines: types as in Rust, and functions of the device after the type of what they return.
fn in_kernel(source: &Source) -> Vec<Finding> {
    let words: Vec<(usize, &str)> = source.words().collect();
    let functions = words.windows(3).filter(|three| three[0].1 == "DEVICE").map(|three| three[2]);
    let named = functions
        .filter_map(|(offset, name)| Some(finding(source, source.line_of(offset), name, replacement(name)?)));
    in_source(source).into_iter().chain(named).collect()
}

fn in_source(source: &Source) -> Vec<Finding> {
    let stem = source.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    let file = replacement(stem).map(|instead| finding(source, 1, stem, instead));
    let words: Vec<(usize, &str)> = source.words().collect();
    let names = words.windows(2).filter_map(|pair| {
        let [(_, keyword), (offset, name)] = pair else { return None };
        let instead = DEFINES.contains(keyword).then(|| replacement(name)).flatten()?;
        Some(finding(source, source.line_of(*offset), name, instead))
    });
    file.into_iter().chain(names).collect()
}

fn replacement(name: &str) -> Option<&'static str> {
    RETIRED.iter().find(|(retired, _)| retired.contains(&name)).map(|&(_, instead)| instead)
}

fn finding(source: &Source, line: usize, name: &str, instead: &str) -> Finding {
    let message = format!("`{name}` is a word that only this project would use: {instead}");
    Finding::failure(&source.path, line, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Repo::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn definitions_and_files_have_the_fields_words() {
        let text = "struct Depot;\nfn recompute() {}\npub(crate) fn make_again() {}\nlet again = 1; // fn again\nuse a::walk;\n";
        assert_eq!(lines("crates/plimsoll-nn/src/a.rs", text), [1, 3]);
        assert_eq!(lines("crates/plimsoll-nn/src/journal.rs", "fn f() {}\n"), [1]);
        let kernel =
            "DEVICE void load(T* x) {}\nstruct Depot { int n; };\nDEVICE void bring(T* x) { give(x); }\n";
        assert_eq!(lines("crates/plimsoll-tensor/src/ops/a.cu", kernel), [2, 3]);
    }
}
