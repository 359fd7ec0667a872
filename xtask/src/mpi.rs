//! `cargo xtask mpi`: real MPI processes train with the same bits for every number of them, each with the memory that was planned.
//!
//! MPI comes as a package of Python's into an environment of its own below the target folder. The networks are small; where a limit
//! can save something, it is 85 % of what the run commits without.

use std::path::Path;

use crate::Outcome;
use crate::json::field;
use crate::step::Step;

/// The numbers of processes; there are four leaves.
const RANKS: [&str; 3] = ["1", "2", "4"];

/// What is trained, and whether under a limit, too: the step of the others is parameters and data for the most part.
const RUNS: [(&[&str], bool); 3] = [
    (&["digits", "--batch", "1400", "--steps", "5"], false),
    (&["fashion", "--data", "random", "--batch", "128", "--steps", "2"], false),
    (&["gpt-nano", "--data", "target/mpi/text.txt", "--batch", "32", "--steps", "2"], true),
];

/// Stages of ZeRO, for numbers of processes.
const STAGES: [(&str, &str); 4] = [("4", "1"), ("2", "2"), ("4", "2"), ("4", "3")];

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

/// Trains all networks with all numbers of processes and stages of ZeRO, and compares.
pub fn run(root: &Path) -> Outcome {
    let Mpi { launcher, library, program } = Mpi::find(root)?;
    // A text of a few windows: evaluating all of the shipped one takes far longer than two steps.
    let text = std::fs::read_to_string(root.join("crates/plimsoll-cli/data/austen.txt"));
    let text: String =
        text.map_err(|error| format!("the shipped text: {error}"))?.chars().take(6000).collect();
    std::fs::write(root.join("target/mpi/text.txt"), text).map_err(|error| format!("target/mpi: {error}"))?;
    let train = |ranks: &str, run: &[&str], more: &[&str]| -> Result<String, String> {
        let common = ["--distributed", "--leaves", "4", "--json"];
        let words = [&["-n", ranks, &program, "train"], run, &common, more].concat();
        let lines = Step::new(root, &launcher, &words).env("PLIMSOLL_MPI_LIBRARY", &library).read()?;
        lines.lines().last().map(str::to_owned).ok_or_else(|| "it says nothing".to_owned())
    };
    for (run, is_limited) in RUNS {
        let mut expected: Option<String> = None;
        for ranks in RANKS {
            let natural = train(ranks, run, &[])?;
            let committed = number(&natural, "committed_bytes")?;
            let limit = (committed * 85 / 100).to_string();
            let limited = if is_limited { Some(train(ranks, run, &["--limit", &limit])?) } else { None };
            for line in [Some(natural), limited].into_iter().flatten() {
                let digest = check(&line)?;
                println!("{}: {ranks} ranks, {committed} bytes: {digest}", run[0]);
                if *expected.get_or_insert_with(|| digest.clone()) != digest {
                    return Err(format!("{}: other weights with {ranks} ranks: {line}", run[0]));
                }
            }
        }
        for (ranks, stage) in STAGES {
            let line = train(ranks, run, &["--zero", stage])?;
            let (digest, committed) = (check(&line)?, number(&line, "committed_bytes")?);
            println!("{}: {ranks} ranks, ZeRO {stage}, {committed} bytes: {digest}", run[0]);
            if expected.as_ref() != Some(&digest) {
                return Err(format!("{}: other weights with {ranks} ranks and ZeRO {stage}: {line}", run[0]));
            }
        }
    }
    match train("3", RUNS[0].0, &[]) {
        Err(refusal) if refusal.contains("the next number that can is 6") => Ok(()),
        other => Err(format!("4 leaves on 3 ranks are not refused as they should be: {other:?}")),
    }
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
