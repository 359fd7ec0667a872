//! `cargo xtask mpi --kills N`: one of four MPI processes that train together is killed, at random moments.
//!
//! Each time the job must end with a status that is not zero within half a minute, its output must say of a process that it died,
//! or of a rank that it had an error, and the checkpoint that it had saved last must be whole: two processes go on from it. Which process is named is the launcher's
//! business: MPICH's kills the others as soon as one dies, and names any of them.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::mpi::Mpi;

/// How long a job may take to end.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// The most that a process trains before it is killed.
const MOST_MS: u64 = 6000;

/// Kills so many times.
pub fn run(root: &Path, n_kills: &str) -> Outcome {
    let n_kills: u64 = n_kills.parse().map_err(|_| format!("`{n_kills}` is no number of kills"))?;
    let mpi = Mpi::find(root)?;
    let folder = root.join("target/mpi/kills");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let (mut n_resumed, mut longest) = (0, Duration::ZERO);
    for kill in 0..n_kills {
        _ = std::fs::remove_dir_all(&folder);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (victim, ms, stage) = ((random >> 60) as usize % 4, (random >> 33) % MOST_MS, kill % 4);
        let waited = kill_one(&mpi, &folder, (victim, ms), stage)?;
        longest = longest.max(waited);
        if is_saved(&folder) {
            resume(&mpi, &folder)?;
            n_resumed += 1;
        }
        println!("kill {kill}: rank {victim} after {ms} ms at stage {stage}, over after {waited:.1?}");
    }
    println!(
        "{n_kills} kills, {n_resumed} jobs resumed by two ranks, the longest was over after {longest:.1?}"
    );
    match n_resumed {
        0 if n_kills > 9 => Err("no job had saved anything before it was killed".to_owned()),
        _ => Ok(()),
    }
}

fn is_saved(folder: &Path) -> bool {
    let files = ["checkpoint.safetensors", "checkpoint.safetensors.index.json"];
    files.iter().any(|file| folder.join(file).exists())
}

/// Four ranks that train and save after each epoch, one of which is killed.
fn kill_one(mpi: &Mpi, folder: &Path, (victim, ms): (usize, u64), stage: u64) -> Result<Duration, String> {
    let stage = stage.to_string();
    let more = ["--epochs", "1000", "--zero", &stage];
    let mut job = start(mpi, "4", folder, &more)?;
    let Some(output) = job.stderr.take() else { return Err("the job has no output".to_owned()) };
    let mut output = BufReader::new(output);
    let mut text = String::new();
    // The first line says which process is which rank.
    output.read_line(&mut text).map_err(|error| error.to_string())?;
    let name = format!("rank {victim} is process ");
    let process = text.split(", ").find_map(|part| part.trim().strip_prefix(&name)).map(str::to_owned);
    let Some(process) = process else { return Err(format!("it does not say who rank {victim} is: {text}")) };
    std::thread::sleep(Duration::from_millis(ms));
    let killed = Command::new("kill").args(["-9", &process]).status().map_err(|error| error.to_string())?;
    let (started, mut ended) = (Instant::now(), None);
    while ended.is_none() && started.elapsed() < MOST_WAIT {
        ended = job.try_wait().map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let Some(status) = ended else {
        _ = job.kill();
        return Err(format!("rank {victim} was killed, and the job goes on: {text}"));
    };
    let waited = started.elapsed();
    output.read_to_string(&mut text).map_err(|error| error.to_string())?;
    // Some launchers say there who died.
    let said = std::fs::read(lines_of(folder)).map_err(|error| error.to_string())?;
    text.push_str(&String::from_utf8_lossy(&said));
    let processes = text.lines().next().unwrap_or_default().split(", ");
    let mut processes = processes.filter_map(|part| part.rsplit(' ').next()).map(str::to_owned);
    // A rank that was waiting for the dead one may have said so before it was ended itself.
    let is_named = processes.any(|process| text.matches(&process).count() > 1) || text.contains(": error: ");
    match (killed.success(), status.success()) {
        (true, false) if is_named => Ok(waited),
        (true, false) => Err(format!("process {process} was killed, and no process is named: {text}")),
        (_, _) => {
            Err(format!("rank {victim} was killed ({killed}), and the job ended with {status}: {text}"))
        }
    }
}

/// Two ranks go on from what four have saved, without ZeRO.
fn resume(mpi: &Mpi, folder: &Path) -> Outcome {
    let from = folder.to_string_lossy().into_owned();
    let job = start(mpi, "2", &PathBuf::from(format!("{from}-on")), &["--resume", &from, "--epochs", "1"])?;
    let output = job.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("it cannot be resumed: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Where the standard output of a job goes.
fn lines_of(folder: &Path) -> PathBuf {
    folder.with_extension("lines")
}

fn start(mpi: &Mpi, n_ranks: &str, folder: &Path, more: &[&str]) -> Result<Child, String> {
    let lines = std::fs::File::create(lines_of(folder)).map_err(|error| error.to_string())?;
    let folder = folder.to_string_lossy();
    // An epoch is four steps, after which is saved.
    let job = ["-n", n_ranks, &mpi.program, "train", "digits", "--batch", "400"];
    let words = [&job[..], &["--distributed", "--leaves", "4", "--json"]].concat();
    let mut command = Command::new(&mpi.launcher);
    command.args(words).args(["--save", &folder]).args(more).env("PLIMSOLL_MPI_LIBRARY", &mpi.library);
    let command = command.stdin(Stdio::null()).stdout(lines).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("{} cannot start: {error}", mpi.launcher))
}
