//! A process that saves again and again is killed two hundred times while it does. Each time a checkpoint that is whole
//! is there, never an earlier one than the time before, and the next process goes on from it.
//!
//! The program starts itself as the process that is killed. Moments are chosen by how much of the file has been
//! written, from its first bytes to its last, so they are spread over all that saving does; whichever moment is really
//! met, the same must hold, so nothing here depends on the clock.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use libtest_mimic::{Arguments, Failed, Trial};
use plimsoll_nn::checkpoint::{self, FILE_NAME, RunState};
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::{Initializer, Layer, Model, Policy};
use plimsoll_tensor::{Result, Tensor, Variable};

/// Tells the program that it is the process to be killed, and where to save.
const FOLDER: &str = "PLIMSOLL_KILL_TEST_FOLDER";
/// How often it is killed.
const KILLS: u64 = 200;
/// A process whose parent has gone ends by itself after so many saves.
const MOST_SAVES: u64 = 5_000;
const SIGKILL: i32 = 9;

fn main() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return save_for_long(Path::new(&folder)).expect("the process that is killed can save");
    }
    let trial = Trial::test("a_checkpoint_is_there_whenever_the_process_is_killed", test);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
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
    let folder = Folder::new();
    let run = Run::new()?;
    run.save(&folder.0, 1)?;
    let size = fs::metadata(folder.0.join(FILE_NAME))?.len();
    let mut step = 1;
    for kill in 0..KILLS {
        // What the process before left would be taken for what this one writes.
        run.save(&folder.0, step)?;
        let signal = Saver::start(&folder.0)?.kill_after(&folder.0, size * (kill + 1) / KILLS)?;
        assert_eq!(signal, SIGKILL);
        let found = run.load(&folder.0)?;
        assert!(found >= step, "step {step} was saved, and {found} is there");
        step = found;
    }
    run.save(&folder.0, step)?;
    assert_eq!(fs::read_dir(&folder.0)?.count(), 1, "nothing half-written is left");
    Ok(())
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-kill-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
