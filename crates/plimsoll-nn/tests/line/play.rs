//! What a planner expects is what happens: a plan's peak against the one that the step reaches when it is played, for plans
//! at many targets. Computing again never raises the peak above the natural one.

use plimsoll_nn::losses::{Loss, SparseCategoricalCrossentropy};
use plimsoll_nn::optimizers::{Adam, Method, Optimizer};
use plimsoll_nn::train::Pair;
use plimsoll_nn::{Mode, Model};
use plimsoll_plan::{Weights, decide};
use plimsoll_tensor::{
    Course, Device, GradientTape, Result, Step, Tensor, Trace, Variable, set_seed, with_shadows,
};

use crate::models::{CNN, DENSENET, GPT, LSTM, RESNET, TREE, Task, UNET};
use crate::run::device;

/// A step that can be made on ghosts.
struct Rehearsed {
    model: Model,
    variables: Vec<Variable>,
    optimizer: Optimizer,
    pair: Pair,
}

impl Rehearsed {
    fn new(task: &Task) -> Result<Rehearsed> {
        set_seed(3);
        let model = (task.model)()?;
        let (variables, mut optimizer) = (model.trainable_variables(), Adam::new(1e-3).build());
        optimizer.prepare(&variables)?;
        Ok(Rehearsed { model, variables, optimizer, pair: task.batches()?.swap_remove(0) })
    }

    fn inside(&mut self, inputs: &Tensor, labels: &Tensor) -> Result<()> {
        let loss = SparseCategoricalCrossentropy::new().from_logits(true);
        let tape = GradientTape::new();
        let value = tape.record(|| loss.of(labels, self.model.prediction(inputs, Mode::Train)?))?;
        let gradients = tape.variable_gradients(&value, &self.variables)?;
        drop(tape);
        self.optimizer.apply_gradients(gradients, &self.variables)
    }

    /// Makes the step on a ghost; the most that was in use.
    fn on_ghost<T>(
        &mut self,
        device: &Device,
        step: impl FnOnce(&Device, &mut dyn FnMut() -> Result<()>) -> Result<T>,
    ) -> Result<(T, u64)> {
        let ghost = device.ghost();
        ghost.pool().reset_peaks();
        let mut variables = self.model.variables();
        variables.extend(self.optimizer.variables());
        let (inputs, labels) = (self.pair.inputs.shadow(&ghost)?, self.pair.labels.shadow(&ghost)?);
        let made = with_shadows(&variables, &ghost, || step(&ghost, &mut || self.inside(&inputs, &labels)))?;
        Ok((made, ghost.stats().peak_in_use))
    }

    fn observed(&mut self, device: &Device) -> Result<Trace> {
        Ok(self.on_ghost(device, |ghost, inside| Ok(Step::observed(ghost, inside)?.1))?.0)
    }

    fn played(&mut self, device: &Device, course: &Course) -> Result<u64> {
        Ok(self.on_ghost(device, |ghost, inside| Step::on_course(ghost, course, inside))?.1)
    }
}

fn plays(name: &str, task: &Task) -> Result<()> {
    let device = device();
    let _on = device.enter();
    let mut step = Rehearsed::new(task)?;
    let trace = step.observed(&device)?;
    let natural = step.played(&device, &Course::default())?;
    assert_eq!(trace.natural_peak(), natural, "{name}: observing a step changes nothing");
    let weights = Weights { patience: 0.5, moving: 1.0 };
    let (mut n_plans, mut worst, mut least) = (0, 0.0, natural);
    for percent in (4..100).step_by(4) {
        let Some(decisions) = decide(&trace, natural * percent / 100, weights) else { continue };
        let expected = decisions.expected_peak;
        assert!(expected <= natural * percent / 100, "{name}: {expected} at {percent} %");
        let played = step.played(&device, &Course { decisions: Some(decisions.into()), offsets: None })?;
        let ratio = played as f64 / expected as f64;
        assert!(played <= natural, "{name} at {percent} %: the peak rose from {natural} to {played}");
        (n_plans, worst, least) = (n_plans + 1, f64::max(worst, ratio), least.min(played));
    }
    eprintln!("{name}: {n_plans} plans, least {least} of {natural}, played / expected at most {worst:.4}");
    assert!(n_plans > 3, "{name}: {n_plans} plans");
    assert!(worst <= 1.0, "{name}: played {worst} times what was expected");
    Ok(())
}

#[test]
fn a_plan_is_played_as_expected() -> Result<()> {
    let tasks: [(&str, &Task); 7] = [
        ("gpt", &GPT),
        ("cnn", &CNN),
        ("lstm", &LSTM),
        ("resnet", &RESNET),
        ("unet", &UNET),
        ("densenet", &DENSENET),
        ("tree", &TREE),
    ];
    tasks.into_iter().try_for_each(|(name, task)| plays(name, task))
}
