//! A limit, and a GPU that others use: errors that say who holds what, and nothing lost.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use plimsoll::nn::Policy;
use plimsoll::{Bytes, DType, Device, Result, Tensor};

use super::Outcome;
use super::workload::{Training, recipe};

/// A limit that no plan can keep: an error that lists the holders, model and pool as before, and a smaller step works.
pub fn below_the_least() -> Outcome {
    let run = || refused_then_smaller(&Device::separate_cuda(0)?.limit(Bytes::mib(2200))?);
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// The same when another process holds the memory.
pub fn beside_another() -> Outcome {
    let run = || -> Result<Outcome> {
        let natural = Device::separate_cuda(0)?;
        Training::start("gpt2-124m", &natural)?.steps(2)?;
        let peak = natural.stats().peak_in_use;
        natural.trim();
        let free = natural.gpu().map_or(Ok(0), |gpu| gpu.memory().map(|memory| memory.free))?;
        // Half the peak is left, and as much as the other process needs for itself.
        let held = free - peak / 2 - (1 << 30);
        let Some(mut other) = Other::start(held) else {
            return Ok(Err("the other process could not take the memory".to_owned()));
        };
        let outcome = refused_then_smaller(&Device::separate_cuda(0)?);
        other.end();
        outcome
    };
    run().unwrap_or_else(|error| Err(error.to_string()))
}

/// The whole batch does not fit: nothing has changed, and a batch of two works.
fn refused_then_smaller(device: &Device) -> Result<Outcome> {
    let recipe = recipe("gpt2-124m");
    let mut training = Training::of(&recipe, Policy::MixedBfloat16, 2, device)?;
    training.steps(1)?;
    let _on = device.enter();
    let before = (parameters(&training)?, device.stats().in_use);
    let small = training.batch.clone();
    let error = {
        let (inputs, labels) = (recipe.inputs().random(16)?, recipe.labels().random(16)?);
        match training.step_on(inputs, labels) {
            Ok(()) => return Ok(Err("the step succeeded".to_owned())),
            Err(error) => error,
        }
    };
    let text = error.to_string();
    training.batch = small;
    // The step that failed was counted by this program alone.
    training.n_steps -= 1;
    if !error.is_out_of_memory() || !text.contains("parameters") {
        return Ok(Err(format!("another error than one that lists the holders: {text}")));
    }
    let after = (parameters(&training)?, device.stats().in_use);
    if before != after {
        return Ok(Err(format!("{} bytes were in use before the step, {} after it", before.1, after.1)));
    }
    training.steps(1)?;
    Ok(Ok(format!("refused ({}), everything as before, a batch of 2 works", first_line(&text))))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

/// The bits of a few parameters, which a step would change.
fn parameters(training: &Training) -> Result<Vec<f64>> {
    let variables = training.trainer.model().trainable_variables();
    let mut values = Vec::new();
    for variable in variables.iter().step_by(16) {
        values.extend(variable.cast(DType::F32)?.sum(..)?.to_f64_vec()?);
    }
    Ok(values)
}

/// A process that holds memory of the GPU.
struct Other(std::process::Child);

impl Other {
    fn start(n_bytes: u64) -> Option<Other> {
        let program = std::env::current_exe().ok()?;
        let mut child = Command::new(program)
            .args(["hold", &n_bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        (line.trim() == "held").then_some(Other(child))
    }

    fn end(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // A process that is gone already needs no word.
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

/// Holds so many bytes until a line comes.
pub fn hold(n_bytes: usize) -> ExitCode {
    let held = Device::separate_cuda(0).and_then(|device| {
        let _on = device.enter();
        // On a GPU no extent is longer than 2^31 - 1.
        Tensor::zeros_of([n_bytes >> 20, 1 << 20], DType::U8)
    });
    if held.is_err() {
        return ExitCode::FAILURE;
    }
    println!("held");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    ExitCode::SUCCESS
}
