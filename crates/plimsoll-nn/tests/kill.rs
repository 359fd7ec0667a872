//! A process that saves again and again is killed two hundred times while it does. Each time a checkpoint that is whole
//! is there, never an earlier one than the time before, and the next process goes on from it.
//!
//! The program starts itself as the process that is killed. Moments are chosen by how much of the file has been
//! written, from its first bytes to its last, so they are spread over all that saving does; whichever moment is really
//! met, the same must hold, so nothing here depends on the clock.
//!
//! Then four processes save into one folder, and one after the other is killed at a step of saving that is aimed at: what
//! the system shows of its open files tells where it is. `cargo xtask kills` does so a thousand times.

#![allow(clippy::print_stdout, reason = "the processes that are killed tell what they have saved")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use libtest_mimic::{Arguments, Failed, Trial};
use plimsoll_nn::checkpoint::{self, FILE_NAME, RunState};
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::{Initializer, Layer, Model, Policy};
use plimsoll_tensor::{Result, Tensor, Variable};
use plimsoll_testkit::Folder;

/// Tells the program that it is the process to be killed, and where to save.
const FOLDER: &str = "PLIMSOLL_KILL_TEST_FOLDER";
/// Which of several processes it is, and the number of its first save.
const MEMBER: &str = "PLIMSOLL_KILL_TEST_MEMBER";
/// How often one of several is killed, if not fifty times.
const KILLS_OF_SEVERAL: &str = "PLIMSOLL_KILLS";
/// How often the one process is killed.
const KILLS: u64 = 200;
/// The processes that save into one folder.
const MEMBERS: u64 = 4;
/// A process whose parent has gone ends by itself after so many saves.
const MOST_SAVES: u64 = 5_000;
const SIGKILL: i32 = 9;

fn main() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let saved = match std::env::var(MEMBER) {
            Ok(member) => save_as_member(Path::new(&folder), &member),
            Err(_) => save_for_long(Path::new(&folder)),
        };
        return saved.expect("the process that is killed can save");
    }
    let trials = vec![
        Trial::test("a_checkpoint_is_there_whenever_the_process_is_killed", test),
        Trial::test("four_savers_of_one_folder_do_not_disturb_each_other_whoever_is_killed", test_of_several),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A model of a quarter of a megabyte in many tensors, and a variable of an optimizer's.
struct Run {
    model: Model,
    optimizer: Vec<Variable>,
}

impl Run {
    fn new() -> Result<Run> {
        let layer = || Dense::new(64).kernel_initializer(Initializer::Zeros);
        let model = (0..16).fold(Sequential::new(), |model, _| model.add(layer())).build([64])?;
        let optimizer = vec![Variable::new(Tensor::zeros([1000])?).named("optimizer.m")];
        Ok(Run { model, optimizer })
    }

    fn variables(&self) -> Vec<Variable> {
        self.model.variables().into_iter().chain(self.optimizer.iter().cloned()).collect()
    }

    /// Saves a state in which every number is the step.
    fn save(&self, folder: &Path, step: u64) -> Result<()> {
        for variable in self.variables() {
            variable.assign(&Tensor::full(*variable.shape(), step as f64)?)?;
        }
        let state = RunState { step, ..RunState::start(Policy::Float32) };
        checkpoint::save(folder, &self.model, &self.optimizer, &state)
    }

    /// Loads what is there and returns its step, with which every number must agree.
    fn load(&self, folder: &Path) -> Result<u64> {
        let step = checkpoint::load(folder, &self.model, &self.optimizer)?.step;
        for variable in self.variables() {
            let values = variable.to_vec::<f32>()?;
            assert!(values.iter().all(|&value| value == step as f32), "{} at step {step}", variable.name());
        }
        Ok(step)
    }
}

/// Goes on from the checkpoint that is there, and saves after each of its steps.
fn save_for_long(folder: &Path) -> Result<()> {
    let run = Run::new()?;
    let first = run.load(folder)? + 1;
    (first..first + MOST_SAVES).try_for_each(|step| run.save(folder, step))
}

/// Saves again and again beside others. Steps tell who saved what: the number of the save, then that of the process.
fn save_as_member(folder: &Path, member: &str) -> Result<()> {
    let numbers: Vec<u64> = member.split(' ').map(|number| number.parse().expect("a number")).collect();
    let run = Run::new()?;
    for save in numbers[1]..numbers[1] + MOST_SAVES {
        run.save(folder, save * MEMBERS + numbers[0])?;
        println!("{save}");
    }
    Ok(())
}

/// The steps of saving at which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// The temporary file is there, and nothing is in it.
    Created,
    /// So many bytes are in it.
    Written(u64),
    /// The file has its name, and the folder is not on the disk yet.
    Renamed,
    /// The folder is being brought to the disk.
    Syncing,
}

impl Moment {
    /// As many moments as there are kills, for files of that size.
    fn of(kill: u64, size: u64) -> Moment {
        match kill % 8 {
            0 => Moment::Created,
            6 => Moment::Renamed,
            7 => Moment::Syncing,
            part => Moment::Written(1 + (size - 1) * (part - 1) / 4),
        }
    }

    /// Whether a process is there, by the files that it has open.
    fn is_met(self, process: u32, folder: &Path) -> bool {
        let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|file| {
            let is_temporary =
                file.parent() == Some(folder) && file.extension().is_some_and(|end| end == "tmp");
            let size = || fs::metadata(&file).map_or(0, |metadata| metadata.len());
            match self {
                Moment::Created => is_temporary && size() == 0,
                Moment::Written(wanted) => is_temporary && size() >= wanted,
                Moment::Renamed => file == folder.join(FILE_NAME),
                Moment::Syncing => file == folder,
            }
        })
    }
}

/// One of several processes that save into one folder.
struct SavingProcess {
    process: Saver,
    /// The last save that it has told of, and who listens.
    told: Arc<AtomicU64>,
    listener: Option<JoinHandle<()>>,
}

impl SavingProcess {
    /// A process whose saves before it began are known up to `told`.
    fn start(folder: &Path, number: u64, told: u64) -> std::io::Result<SavingProcess> {
        // One more than was told of may have been saved.
        let first = told + 2;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(FOLDER, folder).env(MEMBER, format!("{number} {first}")).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let told = Arc::new(AtomicU64::new(told));
        let (lines, heard) = (process.stdout.take().map(BufReader::new), told.clone());
        let listener = std::thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufRead::lines).map_while(std::io::Result::ok) {
                heard.store(line.parse().unwrap_or(0), Ordering::SeqCst);
            }
        });
        Ok(SavingProcess { process: Saver(process), told, listener: Some(listener) })
    }

    /// Waits until it is at a moment, and kills it; says whether the moment was met.
    fn kill_at(&mut self, moment: Moment, folder: &Path) -> std::io::Result<bool> {
        // A moment can be too short to be seen; then any other will do.
        const LOOKS: usize = 20_000;
        let process = self.process.0.id();
        let is_met = (0..LOOKS).any(|_| moment.is_met(process, folder));
        self.process.0.kill()?;
        let signal = self.process.0.wait()?.signal();
        assert_eq!(signal, Some(SIGKILL), "at {moment:?}: it ended by itself");
        self.listener.take().into_iter().for_each(|listener| listener.join().expect("it only listens"));
        Ok(is_met)
    }
}

fn test_of_several() -> std::result::Result<(), Failed> {
    let folder = Folder::new("several");
    let folder_path = fs::canonicalize(folder.path())?;
    let n_kills = std::env::var(KILLS_OF_SEVERAL).map_or(Ok(50), |n| n.parse())?;
    let run = Run::new()?;
    run.save(&folder_path, 0)?;
    let size = fs::metadata(folder_path.join(FILE_NAME))?.len();
    let mut members = (0..MEMBERS)
        .map(|number| SavingProcess::start(&folder_path, number, 0))
        .collect::<std::io::Result<Vec<_>>>()?;
    let mut n_met = 0;
    for kill in 0..n_kills {
        let number = kill % MEMBERS;
        // Each moment comes to each process.
        let is_met = members[number as usize].kill_at(Moment::of(kill / MEMBERS, size), &folder_path)?;
        n_met += u64::from(is_met);
        let told: Vec<u64> = members.iter().map(|member| member.told.load(Ordering::SeqCst)).collect();
        let step = run.load(&folder_path)?;
        let (save, saver) = (step / MEMBERS, (step % MEMBERS) as usize);
        assert!(save >= told[saver], "{saver} had saved {}, and {save} is there", told[saver]);
        for (other, member) in members.iter_mut().enumerate().filter(|(other, _)| *other as u64 != number) {
            let ended = member.process.0.try_wait()?;
            assert!(ended.is_none(), "kill {kill} of {number} ended {other}: {ended:?}");
        }
        members[number as usize] = SavingProcess::start(&folder_path, number, told[number as usize])?;
    }
    println!("{n_kills} processes killed, {n_met} of them at the moment that was aimed at");
    drop(members);
    run.save(&folder_path, MEMBERS)?;
    assert_eq!(fs::read_dir(&folder_path)?.count(), 1, "nothing half-written is left");
    Ok(())
}

/// A process that is killed when nobody wants it any more.
struct Saver(Child);

impl Saver {
    fn start(folder: &Path) -> std::io::Result<Saver> {
        Ok(Saver(Command::new(std::env::current_exe()?).env(FOLDER, folder).spawn()?))
    }

    /// Waits until `wanted` bytes of a file lie under a temporary name, and kills the process.
    fn kill_after(mut self, folder: &Path, wanted: u64) -> std::io::Result<i32> {
        while written(folder) < wanted {
            if let Some(status) = self.0.try_wait()? {
                return Err(std::io::Error::other(format!("the process ended by itself: {status}")));
            }
        }
        self.0.kill()?;
        Ok(self.0.wait()?.signal().unwrap_or_default())
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The size of the largest file that is being written.
fn written(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let temporary = entries.filter(|entry| entry.file_name() != FILE_NAME);
    temporary.filter_map(|entry| Some(entry.metadata().ok()?.len())).max().unwrap_or(0)
}

fn test() -> std::result::Result<(), Failed> {
    let folder = Folder::new("kill");
    let run = Run::new()?;
    run.save(folder.path(), 1)?;
    let size = fs::metadata(folder.path().join(FILE_NAME))?.len();
    let mut step = 1;
    for kill in 0..KILLS {
        // What the process before left would be taken for what this one writes.
        run.save(folder.path(), step)?;
        let signal = Saver::start(folder.path())?.kill_after(folder.path(), size * (kill + 1) / KILLS)?;
        assert_eq!(signal, SIGKILL);
        let found = run.load(folder.path())?;
        assert!(found >= step, "step {step} was saved, and {found} is there");
        step = found;
    }
    run.save(folder.path(), step)?;
    assert_eq!(fs::read_dir(folder.path())?.count(), 1, "nothing half-written is left");
    Ok(())
}
