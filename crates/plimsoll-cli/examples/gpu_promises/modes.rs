//! The ways to run a step: eagerly, and from its program with and without passes and CUDA graphs. All have the same bits, and no
//! program has more in use than eager code.
//!
//! Eager code runs inside a [`Step`], so that what it changes is staged until the end, as it is in a program.

use std::sync::{Mutex, PoisonError};

use plimsoll::nn::losses::Loss;
use plimsoll::nn::{Mode, Policy, with_policy};
use plimsoll::{Device, Function, Generator, GradientTape, Result, Step, Tensor, Variable};
use plimsoll_cli::Recipe;
use sha2::{Digest, Sha256};

use super::Outcome;

/// The recipes that train here, at their own batch. gpt2-355m is gpt2-124m with more of the same layers.
const RECIPES: [&str; 8] =
    ["digits", "dense", "fashion", "chars", "gpt-nano", "resnet18", "resnet50", "gpt2-124m"];
const POLICIES: [Policy; 2] = [Policy::Float32, Policy::MixedBfloat16];

/// The first run of a program makes its kernels, the second one notes its launches, later ones are graphs.
const N_STEPS: usize = 5;

/// How a step is run.
#[derive(Clone, Copy)]
enum RunMode {
    Eager,
    Program { has_passes: bool, has_graphs: bool },
}

const PROGRAMS: [RunMode; 4] = [
    RunMode::Program { has_passes: false, has_graphs: false },
    RunMode::Program { has_passes: true, has_graphs: false },
    RunMode::Program { has_passes: false, has_graphs: true },
    RunMode::Program { has_passes: true, has_graphs: true },
];

/// What a few steps left.
struct Ran {
    losses: Vec<Vec<u64>>,
    /// Over the bytes of all that the model and the optimizer hold.
    state: [u8; 32],
    peak: u64,
    n_graphs: u64,
}

/// One line per recipe and policy.
pub fn checks() -> impl Iterator<Item = (&'static str, Outcome)> {
    let settings = RECIPES.into_iter().flat_map(|recipe| POLICIES.map(|policy| (recipe, policy)));
    settings.map(|(name, policy)| (name, check(name, policy).unwrap_or_else(|error| Err(error.to_string()))))
}

fn check(name: &str, policy: Policy) -> Result<Outcome> {
    let recipes = plimsoll_cli::recipes::all();
    let Some(recipe) = recipes.iter().find(|recipe| recipe.name() == name) else {
        return Ok(Err("there is no such recipe".to_owned()));
    };
    let eager = run(recipe, policy, RunMode::Eager)?;
    let mut peaks = Vec::new();
    for mode in PROGRAMS {
        let RunMode::Program { has_passes, has_graphs } = mode else { continue };
        let ran = run(recipe, policy, mode)?;
        let text = format!("{policy:?}, passes {has_passes}, graphs {has_graphs}");
        if (&ran.losses, ran.state) != (&eager.losses, eager.state) {
            return Ok(Err(format!("{text}: other bits than eager code")));
        }
        if ran.peak > eager.peak {
            return Ok(Err(format!("{text}: {} B in use, eager {} B", ran.peak, eager.peak)));
        }
        if (ran.n_graphs > 0) != has_graphs {
            return Ok(Err(format!("{text}: {} of {N_STEPS} runs were graphs", ran.n_graphs)));
        }
        peaks.push(ran.peak);
    }
    Ok(Ok(format!(
        "{policy:?}: the same bits in all five; eager {} B in use, programs {peaks:?}",
        eager.peak
    )))
}

fn run(recipe: &Recipe, policy: Policy, mode: RunMode) -> Result<Ran> {
    let device = Device::separate_cuda(0)?;
    device.set_cuda_graphs(matches!(mode, RunMode::Program { has_graphs: true, .. }))?;
    let _on = device.enter();
    Generator::new(0).make_current();
    let model = with_policy(policy, || recipe.model())?;
    let mut optimizer = recipe.make_optimizer(u64::MAX)?;
    let variables = model.trainable_variables();
    optimizer.prepare(&variables)?;
    let state: Vec<Variable> = model.variables().into_iter().chain(optimizer.variables()).collect();
    let batch = recipe.default_batch();
    let (inputs, labels) = (recipe.inputs().random(batch)?, recipe.labels().random(batch)?);
    let (loss, optimizer) = (recipe.loss(), Mutex::new(optimizer));
    let step = Function::new(move |(inputs, labels): (Tensor, Tensor)| {
        let tape = GradientTape::new();
        let value = tape.record(|| loss.of(&labels, model.prediction(&inputs, Mode::Train)?)?.mean(..))?;
        let gradients = tape.variable_gradients(&value, &variables)?;
        drop(tape);
        let mut optimizer = optimizer.lock().unwrap_or_else(PoisonError::into_inner);
        optimizer.apply_gradients(gradients, &variables)?;
        Ok(value.stop_gradient())
    });
    let step = match mode {
        RunMode::Eager => step.run_eagerly(true),
        RunMode::Program { has_passes, .. } => step.passes(has_passes),
    };
    Generator::new(1).make_current();
    device.pool().reset_peaks();
    // All devices of a GPU count together.
    let graphs_before = device.n_graph_launches();
    let mut losses = Vec::new();
    for _ in 0..N_STEPS {
        let call = || step.call((inputs.clone(), labels.clone()));
        let value = match mode {
            RunMode::Eager => Step::run(&device, call)?,
            RunMode::Program { .. } => call()?,
        };
        losses.push(value.to_f64_vec()?.into_iter().map(f64::to_bits).collect());
    }
    let (peak, n_graphs) = (device.stats().peak_in_use, device.n_graph_launches() - graphs_before);
    let mut sum = Sha256::new();
    for variable in &state {
        variable.master().unwrap_or(variable).value().with_bytes(|bytes| sum.update(bytes))?;
    }
    Ok(Ran { losses, state: sum.finalize().into(), peak, n_graphs })
}
