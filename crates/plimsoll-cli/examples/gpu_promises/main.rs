//! The promises on a real GPU: predicted, released, bounded, steady. `cargo xtask gpu-bundle` packs it.
//!
//! `gpu_promises` checks them on `cuda:0` and prints a line per check; the exit code is 0 if all hold. `gpu_promises ghost`
//! needs no GPU: it prints what each workload will need on an H200, and checks there what a ghost can show.
//! `gpu_promises losses` writes the losses of a few workloads for a comparison with PyTorch's. `gpu_promises program` is the
//! program `plimsoll` itself, so that a bundle has to hold all of this only once.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

mod bounded;
mod explain;
mod lengths;
mod limits;
mod losses;
mod modes;
mod ranks;
mod recipes;
mod released;
mod workload;

use std::ffi::OsString;
use std::iter;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use plimsoll::hardware::Profile;
use plimsoll::{Device, Result};

use workload::{Training, WORKLOADS};

/// The outcome of a check: what was seen, or what was seen instead of what was promised.
pub type Outcome = Result<String, String>;

/// A check and what it shows.
type Check = (&'static str, fn() -> Outcome);

/// The steps of a run that is compared with its ghost: set-up, first step, steady steps.
const N_STEPS: u64 = 3;

/// The promises on a GPU: all of them, unless a part is named.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    part: Option<Section>,
}

#[derive(Subcommand)]
enum Section {
    /// What each workload needs on an H200, which need not be there.
    Ghost,
    /// gpt2-124m under limits: its time, its bits, and the driver's count of its bytes.
    Limits,
    /// Recipes eagerly and from programs, with and without passes and CUDA graphs: the same bits, and no more in use.
    Modes,
    /// Profiles of three recipes: the same bits and bytes, rows that are the pool's, and what recording costs.
    Explain,
    /// Recipes at their own size, through the program: planned, predicted and taken bytes.
    Recipes,
    /// Two and four ranks on one GPU, at every stage of ZeRO: their bits, their bytes, and the driver's count; and NCCL's of one.
    Ranks,
    /// Losses, weights and data of workloads, for `peers/gpu_losses.py`.
    Losses(losses::Options),
    /// The program `plimsoll`, with its own arguments.
    Program {
        /// A command and its options.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Holds memory of the GPU until a line comes: what the checks take for another process.
    #[command(hide = true)]
    Hold {
        /// How much.
        n_bytes: usize,
    },
}

fn main() -> ExitCode {
    match Options::parse().part {
        None => promises(),
        Some(Section::Ghost) => ghosts(),
        Some(Section::Limits) => report(limits::checks()),
        Some(Section::Modes) => report(modes::checks()),
        Some(Section::Explain) => report(explain::checks()),
        Some(Section::Recipes) => report(recipes::checks()),
        Some(Section::Ranks) => ranks::main(),
        Some(Section::Losses(options)) => losses::main(&options),
        Some(Section::Program { arguments }) => {
            let words = iter::once(OsString::from("plimsoll")).chain(arguments);
            plimsoll_cli::main_with(plimsoll_cli::recipes::all(), words)
        }
        Some(Section::Hold { n_bytes }) => bounded::hold(n_bytes),
    }
}

/// What each workload needs, and what holds on a ghost as on the GPU.
fn ghosts() -> ExitCode {
    let ghost = || Device::ghost_cuda(Profile::h200());
    for workload in WORKLOADS {
        match need(workload.name, &ghost()) {
            Ok(need) => println!("{need}"),
            Err(error) => println!("{}: {error}", workload.name),
        }
    }
    let outcomes = [("16 lengths", lengths::sixteen(&ghost())), ("961 lengths", lengths::all(&ghost()))];
    report(outcomes.into_iter())
}

/// Every promise, on the GPU.
fn promises() -> ExitCode {
    let checks: [Check; 9] = [
        ("everything goes back to the driver, to the byte", released::after_each_model),
        ("functions leave the driver's count as it was", released::after_each_function),
        ("the driver's used memory is the pool's committed and what lies outside", released::reconciled),
        ("giving 16 GiB back", released::time_of_trim),
        ("16 lengths: committed over in use, and no memory call once each was seen", || {
            on_gpu(lengths::sixteen)
        }),
        ("961 lengths: committed over in use", || on_gpu(lengths::all)),
        ("a limit that no plan can keep", bounded::below_the_least),
        ("another process holds the memory", bounded::beside_another),
        ("a steady step makes no memory call and does not wait", steady),
    ];
    let predicted = WORKLOADS.iter().map(|workload| (workload.name, predicted(workload.name)));
    let others = checks.iter().map(|(name, check)| (*name, check()));
    report(predicted.chain(others))
}

/// A check on a device of its own.
fn on_gpu(check: fn(&Device) -> Outcome) -> Outcome {
    check(&Device::separate_cuda(0).map_err(|error| error.to_string())?)
}

/// Prints a line per check as it ends.
fn report(outcomes: impl Iterator<Item = (&'static str, Outcome)>) -> ExitCode {
    let mut n_failed = 0;
    for (name, outcome) in outcomes {
        let (word, text) = match outcome {
            Ok(text) => ("PASS", text),
            Err(text) => {
                n_failed += 1;
                ("FAIL", text)
            }
        };
        println!("{word}  {name}: {text}");
    }
    println!("{n_failed} failed");
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a workload takes on a device: a line of JSON.
fn need(name: &'static str, device: &Device) -> Result<String> {
    let mut training = Training::start(name, device)?;
    training.steps(N_STEPS)?;
    let stats = device.stats();
    Ok(format!(
        "{{\"workload\":\"{name}\",\"peak_bytes\":{},\"committed_bytes\":{}}}",
        stats.peak_in_use, stats.peak_committed
    ))
}

/// The ghost of the model of GPU needs what the GPU does, to the byte.
fn predicted(name: &'static str) -> Outcome {
    let compare = || -> Result<Outcome> {
        let real = Device::separate_cuda(0)?;
        let profile = real.profile().cloned().unwrap_or_else(Profile::h200);
        let (run, ghost) = (need(name, &real)?, need(name, &Device::ghost_cuda(profile))?);
        Ok(if run == ghost { Ok(run) } else { Err(format!("the run took {run}, the ghost {ghost}")) })
    };
    compare().unwrap_or_else(|error| Err(error.to_string()))
}

/// Steps after the first few call neither the driver's memory functions nor wait for the device.
fn steady() -> Outcome {
    let run = || -> Result<Outcome> {
        let device = Device::separate_cuda(0)?;
        let mut training = Training::start("gpt2-124m", &device)?;
        // An epoch has more steps than are taken, since whoever ends an epoch asks for its loss.
        training.batch = vec![training.batch[0].clone(); 20];
        training.steps(3)?;
        let counts = || (device.stats().source.total(), device.gpu().map_or(0, |gpu| gpu.n_waits()));
        let before = counts();
        training.steps(8)?;
        let (calls, waits) = (counts().0 - before.0, counts().1 - before.1);
        // The end of a run is waited for once.
        Ok(if calls == 0 && waits <= 1 {
            Ok(format!("8 steps, no memory call, {waits} wait at their end"))
        } else {
            Err(format!("{calls} memory calls and {waits} waits in 8 steps"))
        })
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_sixteen_lengths_make_no_memory_call_once_each_was_seen() {
        lengths::sixteen(&Device::ghost_cuda(Profile::h200())).unwrap();
    }

    #[test]
    fn texts_of_any_length_do_not_fragment_the_pool() {
        lengths::all(&Device::ghost_cuda(Profile::h200())).unwrap();
    }
}
