//! The promises on a real GPU: predicted, released, bounded, steady. `cargo xtask gpu-bundle` packs it.
//!
//! `gpu_promises` checks them on `cuda:0` and prints a line per check; the exit code is 0 if all hold. `gpu_promises ghost`
//! needs no GPU: it prints what each workload will need on an H200.

#![expect(clippy::print_stdout, reason = "a program that reports")]

mod bounded;
mod lengths;
mod released;
mod workload;

use std::process::ExitCode;

use plimsoll::{Device, Result};
use plimsoll_cuda::Profile;

use workload::{Training, WORKLOADS};

/// The outcome of a check: what was seen, or what was seen instead of what was promised.
pub type Outcome = Result<String, String>;

/// A check and what it shows.
type Check = (&'static str, fn() -> Outcome);

/// The steps of a run that is compared with its ghost: set-up, first step, steady steps.
const N_STEPS: u64 = 3;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("hold") {
        return bounded::hold();
    }
    if std::env::args().nth(1).as_deref() == Some("ghost") {
        for workload in WORKLOADS {
            match need(workload.name, &Device::ghost_cuda(Profile::h200())) {
                Ok(need) => println!("{need}"),
                Err(error) => println!("{}: {error}", workload.name),
            }
        }
        for outcome in [lengths::sixteen_on, lengths::all_on] {
            let (Ok(text) | Err(text)) = outcome(&Device::ghost_cuda(Profile::h200()));
            println!("lengths: {text}");
        }
        return ExitCode::SUCCESS;
    }
    let checks: [Check; 8] = [
        ("everything goes back to the driver, to the byte", released::after_each_model),
        ("the driver's used memory is the pool's committed and what lies outside", released::reconciled),
        ("giving 16 GiB back", released::time_of_trim),
        ("16 lengths: committed over in use, and no memory call once each was seen", lengths::sixteen),
        ("961 lengths: committed over in use", lengths::all),
        ("a limit of half the natural peak", bounded::half),
        ("another process holds the memory", bounded::beside_another),
        ("a steady step makes no memory call and does not wait", steady),
    ];
    let predicted = WORKLOADS.iter().map(|workload| (workload.name, predicted(workload.name)));
    let others = checks.iter().map(|(name, check)| (*name, check()));
    let mut n_failed = 0;
    for (name, outcome) in predicted.chain(others) {
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
