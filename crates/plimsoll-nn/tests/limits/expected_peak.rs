//! What a planner expects is what happens: a plan's peak against the one that the step reaches in a dry run, for plans
//! at many targets. Recomputing never raises the peak above the natural one.

use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::{Mode, Model};
use plimsoll_plan::{Weights, decide};
use plimsoll_tensor::{Device, GradientTape, Program, Result, set_seed};

use crate::models::{CNN, DENSENET, GPT, LSTM, RESNET, TREE, Task, UNET};
use crate::run::device;

/// A step of a task as a program, with the model whose variables it updates.
fn step(device: &Device, task: &Task) -> Result<(Program, Model)> {
    set_seed(3);
    let model = (task.model)()?;
    let (variables, mut optimizer) = (model.trainable_variables(), Adam::new(1e-3).build());
    optimizer.prepare(&variables)?;
    let (inputs, labels) = task.batches()?.swap_remove(0).input_and_label()?;
    let program = Program::record(device, &[&inputs, &labels], |batch| {
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let tape = GradientTape::new();
        let value = tape.record(|| loss.of(&batch[1], model.prediction(&batch[0], Mode::Train)?))?;
        let gradients = tape.variable_gradients(&value, &variables)?;
        drop(tape);
        optimizer.apply_gradients(gradients, &variables)?;
        Ok(Vec::new())
    })?;
    Ok((program, model))
}

fn check_peaks(name: &str, task: &Task) -> Result<()> {
    let device = device();
    let _on = device.enter();
    let (program, _model) = step(&device, task)?;
    let trace = program.trace(&device, device.stats().in_use);
    let natural = program.footprint(&device, None)?.peak;
    assert_eq!(trace.natural_peak(), natural, "{name}: a planner is told what happens");
    let weights = Weights { distance_weight: 0.5, offload_weight: 1.0 };
    let (mut n_plans, mut worst, mut least) = (0, 0.0, natural);
    for percent in (4..100).step_by(4) {
        let Some(decisions) = decide(&trace, natural * percent / 100, weights) else { continue };
        let expected = decisions.expected_peak;
        assert!(expected <= natural * percent / 100, "{name}: {expected} at {percent} %");
        let planned = program.rematerialised(&trace, &decisions).expect("it can be recomputed");
        let peak = planned.footprint(&device, None)?.peak;
        let ratio = peak as f64 / expected as f64;
        assert!(peak <= natural, "{name} at {percent} %: the peak rose from {natural} to {peak}");
        (n_plans, worst, least) = (n_plans + 1, f64::max(worst, ratio), least.min(peak));
    }
    eprintln!("{name}: {n_plans} plans, least {least} of {natural}, peak / expected at most {worst:.4}");
    assert!(n_plans > 3, "{name}: {n_plans} plans");
    assert!(worst <= 1.0, "{name}: the peak is {worst} times what was expected");
    Ok(())
}

#[test]
fn the_peak_of_a_plan_is_as_expected() -> Result<()> {
    let tasks: [(&str, &Task); 7] = [
        ("gpt", &GPT),
        ("cnn", &CNN),
        ("lstm", &LSTM),
        ("resnet", &RESNET),
        ("unet", &UNET),
        ("densenet", &DENSENET),
        ("tree", &TREE),
    ];
    tasks.into_iter().try_for_each(|(name, task)| check_peaks(name, task))
}
