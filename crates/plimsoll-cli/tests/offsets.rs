//! A planned step needs little more than is alive in it, for every recipe, on the CPU and on a GPU that is not there.

use plimsoll::hardware::Profile;
use plimsoll::nn::train::{Batch, Trainer, Until};
use plimsoll::nn::{Policy, with_policy};
use plimsoll::{Device, Result};
use plimsoll_cli::{Recipe, recipes};
use plimsoll_plan::plan_offsets;

/// The most that the plan of a step may need, divided by what is alive in it at one moment.
const MOST: f64 = 1.02;

/// Trains on ghosts: two steps so that all state is there, one that is planned from, and one that follows the plan.
/// Returns the plan's bytes and its lower bound.
fn planned_step(recipe: &Recipe, device: &Device, policy: Policy) -> Result<(u64, u64)> {
    let _on = device.enter();
    let model = with_policy(policy, || recipe.model())?;
    let batch = recipe.default_batch();
    let data = vec![Batch::new(recipe.inputs().random(batch)?, recipe.labels().random(batch)?)];
    let mut trainer = Trainer::new(model, recipe.make_optimizer(1000)?, recipe.loss());
    trainer.fit(&data, Until::Steps(2))?;

    let pool = device.pool();
    pool.start_trace();
    trainer.fit(&data, Until::Steps(3))?;
    let planned = plan_offsets(&pool.take_trace());

    let step = pool.begin_planned_step(&planned.plan);
    trainer.fit(&data, Until::Steps(4))?;
    assert!(step.on_plan(), "{}: the step is like the one before", recipe.name());
    Ok((planned.bytes, planned.lower_bound))
}

#[test]
fn the_steps_of_every_recipe_are_packed_closely() -> Result<()> {
    for recipe in recipes::all() {
        let devices = [
            (Device::ghost_cpu(), Policy::Float32),
            (Device::ghost_cuda(Profile::h200()), Policy::MixedBfloat16),
        ];
        for (device, policy) in devices {
            let (bytes, lower_bound) = planned_step(&recipe, &device, policy)?;
            let ratio = bytes as f64 / lower_bound as f64;
            println!(
                "{} on {device}: {} KiB planned, {ratio:.4} of the lower bound",
                recipe.name(),
                bytes >> 10
            );
            assert!(ratio <= MOST, "{}: {ratio}", recipe.name());
        }
    }
    Ok(())
}
