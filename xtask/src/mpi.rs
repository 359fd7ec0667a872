//! `cargo xtask mpi`: real MPI processes train with the same bits for every number of them and every stage of ZeRO, each with the memory
//! that was planned.
//!
//! MPI comes as a package of Python's into an environment of its own below the target folder. The networks are small. A limit is
//! 85 % of what the run commits without; a network that is mostly parameters and data cannot keep it, and then all ranks must be refused
//! together, with the least limit that works. `--matrix` goes through all combinations.

use std::path::Path;

use crate::Outcome;
use crate::json::field;
use crate::step::Step;

/// The leaves of a batch: as many as the most processes.
const N_LEAVES: &str = "8";

/// What is trained.
const RECIPES: [&[&str]; 3] = [
    &["digits", "--batch", "1400", "--steps", "5"],
    &["fashion", "--data", "random", "--batch", "128", "--steps", "2"],
    &["gpt-nano", "--data", "target/mpi/text.txt", "--batch", "32", "--steps", "2"],
];

/// A number of processes, a stage of ZeRO, and whether the run is made once more under a limit.
type Setting = (u32, u32, bool);

/// The settings of every day, by recipe: 20 runs. What one process does without ZeRO is what the others must do. The limits can be
/// kept.
const DAILY: [&[Setting]; 3] = [
    &[(1, 0, false), (2, 1, false), (4, 2, false), (8, 3, false)],
    &[(1, 0, false), (2, 3, false), (4, 1, false), (8, 2, false)],
    &[
        (1, 0, false),
        (2, 0, false),
        (4, 0, false),
        (8, 0, false),
        (8, 1, false),
        (4, 2, true),
        (2, 3, true),
        (4, 3, true),
        (8, 3, false),
    ],
];

/// All settings: one process has everything at every stage.
fn matrix() -> Vec<Setting> {
    let several = [2, 4, 8].into_iter().flat_map(|ranks| (0..4).map(move |stage| (ranks, stage, true)));
    std::iter::once((1, 0, true)).chain(several).collect()
}

/// What processes are started with, and the program that the tests have built.
pub struct Mpi {
    pub launcher: String,
    pub library: String,
    pub program: String,
}

impl Mpi {
    /// Looks for them, and installs MPI if it is not there yet.
    pub fn find(root: &Path) -> Result<Mpi, String> {
        let launcher = launcher(root)?;
        let library = root.join("target/mpi/lib/libmpi_abi.so.1").to_string_lossy().into_owned();
        let own =
            std::env::current_exe().map_err(|error| format!("cannot tell where programs are: {error}"))?;
        let program = own.with_file_name("plimsoll").to_string_lossy().into_owned();
        Ok(Mpi { launcher, library, program })
    }
}

/// Trains the networks in the settings of every day, or in all of them, and compares.
pub fn run(root: &Path, is_matrix: bool) -> Outcome {
    let mpi = Mpi::find(root)?;
    // A text of a few windows: evaluating all of the shipped one takes far longer than two steps.
    let text = std::fs::read_to_string(root.join("crates/plimsoll-cli/data/austen.txt"));
    let text: String =
        text.map_err(|error| format!("the shipped text: {error}"))?.chars().take(6000).collect();
    std::fs::write(root.join("target/mpi/text.txt"), text).map_err(|error| format!("target/mpi: {error}"))?;
    let (all, mut n_runs) = (matrix(), 0);
    for (recipe, daily) in RECIPES.into_iter().zip(DAILY) {
        let mut expected: Option<String> = None;
        for &(ranks, stage, is_limited) in if is_matrix { &all[..] } else { daily } {
            let line = mpi.train(root, ranks, recipe, stage, &[])?;
            let committed = number(&line, "committed_bytes")?;
            let what = format!("{}: {ranks} ranks, ZeRO {stage}", recipe[0]);
            n_runs += 1;
            compare(&mut expected, &line, &format!("{what}, {committed} bytes"))?;
            if !is_limited {
                continue;
            }
            let limit = (committed * 85 / 100).to_string();
            n_runs += 1;
            match mpi.train(root, ranks, recipe, stage, &["--limit", &limit]) {
                Ok(line) => {
                    let committed = number(&line, "committed_bytes")?;
                    compare(&mut expected, &line, &format!("{what}, limit {limit}, {committed} bytes"))?;
                }
                Err(refusal) => {
                    let said = refused(&refusal).filter(|_| is_matrix).ok_or_else(|| refusal.clone())?;
                    println!("{what}, limit {limit}: refused, {said}");
                }
            }
        }
    }
    println!("{n_runs} runs, equal weights for each recipe, memory as planned on each rank");
    mpi.profile(root)?;
    match mpi.train(root, 3, RECIPES[0], 0, &[]) {
        Err(refusal) if refusal.contains("the next number that can is 9") => Ok(()),
        other => Err(format!("{N_LEAVES} leaves on 3 ranks are not refused as they should be: {other:?}")),
    }
}

impl Mpi {
    /// A run of two processes that each write a profile, which are explained together.
    fn profile(&self, root: &Path) -> Outcome {
        let path = root.join("target/mpi/run.profile").to_string_lossy().into_owned();
        self.train(root, 2, RECIPES[0], 2, &["--profile", &path])?;
        let text = Step::new(root, &self.program, &["explain", &path]).read()?;
        let is_row =
            |line: &str, rank: &str| line.trim_start().starts_with(rank) && line.contains("  as predicted");
        let rows = ["0 ", "1 "].map(|rank| text.lines().take(3).any(|line| is_row(line, rank)));
        if rows != [true; 2] || !text.starts_with("2 ranks") {
            return Err(format!("explain does not show both ranks as predicted: {text}"));
        }
        println!("explain: a row for each of two ranks, as predicted");
        Ok(())
    }

    /// A run by so many processes; its last line.
    fn train(
        &self,
        root: &Path,
        ranks: u32,
        recipe: &[&str],
        stage: u32,
        more: &[&str],
    ) -> Result<String, String> {
        let (ranks, stage) = (ranks.to_string(), stage.to_string());
        let common = ["--distributed", "--leaves", N_LEAVES, "--zero", &stage, "--json"];
        let words = [&["-n", &ranks, &self.program, "train"], recipe, &common, more].concat();
        let run = Step::new(root, &self.launcher, &words).env("PLIMSOLL_MPI_LIBRARY", &self.library);
        let lines = run.read()?;
        lines.lines().last().map(str::to_owned).ok_or_else(|| "it says nothing".to_owned())
    }
}

/// Checks a run, and compares its weights with those that were expected, or expects these from now on.
fn compare(expected: &mut Option<String>, line: &str, what: &str) -> Outcome {
    let digest = check(line)?;
    println!("{what}: {digest}");
    match expected.get_or_insert_with(|| digest.clone()) == &digest {
        true => Ok(()),
        false => Err(format!("{what}: other weights: {line}")),
    }
}

/// What a run says of a limit that it cannot keep, if that is how it ended. A rank whose process MPI ends at once may not be heard.
fn refused(text: &str) -> Option<&str> {
    if !text.contains("ended with exit status: 3:") {
        return None;
    }
    let says = text.find("the least limit that works").map(|at| &text[at..]);
    let says = says.and_then(|says| says.split_once(", or --limit")).map(|(says, _)| says);
    Some(says.unwrap_or("by a process whose words were lost when it ended"))
}

/// Looks whether every rank of a run has the memory that was planned; returns the digest of the weights.
fn check(line: &str) -> Result<String, String> {
    let ranks = line.split_once("\"ranks\":[").ok_or("the last line has no ranks")?.1;
    for rank in ranks.split("},{") {
        for what in ["peak_bytes", "committed_bytes"] {
            let (planned, measured) = (number(rank, &format!("predicted_{what}"))?, number(rank, what)?);
            if planned != measured {
                return Err(format!("{what}: {planned} were planned, and {measured} measured: {rank}"));
            }
        }
    }
    field(line, "parameters_sha256").map(str::to_owned).ok_or_else(|| format!("no digest in {line}"))
}

fn number(line: &str, name: &str) -> Result<u64, String> {
    field(line, name).and_then(|digits| digits.parse().ok()).ok_or_else(|| format!("no {name} in {line}"))
}

/// The program that starts MPI's processes, installed below the target folder if it is not there yet.
fn launcher(root: &Path) -> Result<String, String> {
    let home = root.join("target/mpi");
    let program = |name: &str| home.join("bin").join(name).to_string_lossy().into_owned();
    if !Step::new(root, &program("mpirun"), &["--version"]).works() {
        Step::new(root, "python3", &["-m", "venv", "--clear", &home.to_string_lossy()]).run()?;
        Step::new(root, &program("pip"), &["install", "--quiet", "mpich>=5.0,<6"]).run()?;
    }
    Ok(program("mpirun"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_the_least_limit() {
        let text = "`mpirun` ended with exit status: 3: rank 1: no\n  the least limit that works: 14 MiB (14,680,064 B), or --limit 14MiB\n";
        assert_eq!(refused(text), Some("the least limit that works: 14 MiB (14,680,064 B)"));
        assert!(refused("`mpirun` ended with exit status: 3: ").is_some_and(|says| says.contains("lost")));
        assert_eq!(refused("`mpirun` ended with exit status: 1: rank 1: no MPI"), None);
    }

    #[test]
    fn a_rank_with_other_memory_than_planned_is_found() {
        let rank = |planned: u64, measured: u64| {
            format!(
                r#"{{"rank":0,"predicted_peak_bytes":{planned},"predicted_committed_bytes":8,"peak_bytes":{measured},"committed_bytes":8}}"#
            )
        };
        let line =
            |second: &str| format!(r#"{{"parameters_sha256":"ab","ranks":[{},{second}]}}"#, rank(5, 5));
        assert_eq!(check(&line(&rank(6, 6))).as_deref(), Ok("\"ab\""));
        assert!(check(&line(&rank(6, 7))).unwrap_err().contains("6 were planned, and 7 measured"));
        assert!(check("{}").is_err());
    }
}
