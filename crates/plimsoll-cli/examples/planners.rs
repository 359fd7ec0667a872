//! What each planner gains on which networks: `planners [NAME …]` prints the table of `docs/planners.md`, all of it or the rows of
//! the networks of these names. Each network's step is recorded once; candidates of the greedy planner alone, of the chain
//! planner alone and of both are dry-run, and the fastest that fits a limit is told by its extra time, by the cost model.
//! Nothing is computed: it runs on ghosts.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use plimsoll::hardware::Profile;
use plimsoll::memory::{Peaks, PlanSet};
use plimsoll::prelude::*;
use plimsoll_cli::{Feature, Recipe, recipes};
use plimsoll_plan::Planner;
use plimsoll_tensor::Program;

/// Limits, as percent of what the step commits when everything is retained.
const PERCENT: [u64; 4] = [90, 75, 60, 50];

/// Batches of small networks at which activations are most of their memory, as they are of large ones at the recipe's own.
const BATCHES: [(&str, usize); 5] =
    [("digits", 4096), ("dense", 4096), ("fashion", 256), ("chars", 256), ("gpt-nano", 32)];

/// The planners whose plans are compared.
const COMPARED: [&[Planner]; 3] = [&[Planner::Greedy], &[Planner::Chain], &Planner::ALL];

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    println!("| network, batch | natural MiB | 90 % | 75 % | 60 % | 50 % | least MiB | at the least |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let cpu = || Ok(Device::ghost_cpu());
    let on_cpu = recipes::all().into_iter().chain(synthetic()).map(|recipe| (recipe, "", cpu as fn() -> _));
    let large = ["gpt2-124m", "resnet50"];
    let on_gpu = recipes::all().into_iter().filter(|recipe| large.contains(&recipe.name()));
    let on_gpu = on_gpu.map(|recipe| (recipe, ", H200 with offload", h200 as fn() -> _));
    for (recipe, place, device) in on_cpu.chain(on_gpu) {
        if names.is_empty() || names.iter().any(|name| name == recipe.name()) {
            row(&recipe, place, &device()?)?;
        }
    }
    Ok(())
}

fn h200() -> Result<Device> {
    let device = Device::ghost_cuda(Profile::h200());
    device.set_offload(Some(&plimsoll::Offload::Host(Bytes::mib(64 << 10))))?;
    Ok(device)
}

/// Prints a network's row: at each limit the extra time of the greedy planner, the chain planner, and of both.
fn row(recipe: &Recipe, place: &str, device: &Device) -> Result<()> {
    let _on = device.enter();
    let policy = if place.is_empty() { Policy::Float32 } else { Policy::MixedBfloat16 };
    let model = with_policy(policy, || recipe.model())?;
    let program = step(recipe, &model, device)?;
    let trace = program.trace(device, device.stats().in_use);
    let natural = program.placed(device)?.0;
    let natural = Peaks { peak: natural.peak, committed: natural.committed };
    let mut sets = Vec::new();
    for planners in COMPARED {
        sets.push(PlanSet::by(planners, &trace, natural, |decisions| {
            match program.rematerialised(&trace, decisions) {
                // A plan that the host's memory has no room for is none.
                Some(program) => Ok::<_, Error>(
                    program
                        .placed(device)
                        .ok()
                        .map(|(footprint, _)| Peaks { peak: footprint.peak, committed: footprint.committed }),
                ),
                None => Ok(None),
            }
        })?);
    }
    let least: Vec<u64> = sets.iter().map(PlanSet::least).collect();
    let at = |limit: u64| cells(&sets, |set| extra_time(set, limit));
    let limits = PERCENT.map(|percent| at(natural.committed / 100 * percent)).join(" | ");
    // The planners are compared at the least limit that all of them can keep.
    let common = least.iter().copied().max().unwrap_or(0);
    println!(
        "| {}, {}{place} | {} | {limits} | {} | {} |",
        recipe.name(),
        batch_of(recipe),
        mib(natural.committed),
        cells(&sets, |set| Some(mib(set.least()))),
        at(common)
    );
    Ok(())
}

fn batch_of(recipe: &Recipe) -> usize {
    let larger = BATCHES.iter().find(|(name, _)| *name == recipe.name());
    larger.map_or(recipe.default_batch(), |&(_, batch)| batch)
}

fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn cells(sets: &[PlanSet], cell: impl Fn(&PlanSet) -> Option<String>) -> String {
    let cells: Vec<String> = sets.iter().map(|set| cell(set).unwrap_or_else(|| "–".to_owned())).collect();
    cells.join(" / ")
}

/// The extra time of the plan that a limit takes, in percent of the step's.
fn extra_time(set: &PlanSet, limit: u64) -> Option<String> {
    let natural = set.candidates().last()?.time as f64;
    let taken = set.candidates()[set.within(limit)?].time as f64;
    Some(format!("{:.1}", 100.0 * (taken / natural - 1.0)))
}

/// A train step of a recipe.
fn step(recipe: &Recipe, model: &Model, device: &Device) -> Result<Program> {
    let n = batch_of(recipe);
    let (inputs, labels) = (recipe.inputs().random(n)?, recipe.labels().random(n)?);
    let (variables, loss) = (model.trainable_variables(), recipe.loss());
    let mut optimizer = recipe.make_optimizer(u64::MAX)?;
    optimizer.prepare(&variables)?;
    Program::record(device, &[&inputs, &labels], |batch| {
        let tape = GradientTape::new();
        let value = tape.record(|| loss.of(&batch[1], model.prediction(&batch[0], Mode::Train)?))?;
        let gradients = tape.variable_gradients(&value, &variables)?;
        drop(tape);
        optimizer.apply_gradients(gradients, &variables)?;
        Ok(vec![value])
    })
}

/// Networks of forms that no recipe has.
fn synthetic() -> Vec<Recipe> {
    vec![
        classifier("mlp of 48 layers", mlp(), &[512], 4096),
        classifier("unet", unet(), &[32, 32, 8], 64),
        classifier("densenet", densenet(), &[32, 32, 8], 64),
    ]
}

fn classifier(name: &str, model: impl Layer + 'static, shape: &[usize], batch: usize) -> Recipe {
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new(name, model, Feature::floats(shape), Feature::ids([], 10), loss).batch(batch)
}

/// Layers that are all alike.
fn mlp() -> Sequential {
    let hidden = |layers: Sequential| layers.add(Dense::new(512).activation(Activation::Gelu));
    (0..48).fold(Sequential::new(), |layers, _| hidden(layers)).add(Dense::new(10))
}

/// A path down and up again, joined at every size: no point between where one value is all that is saved.
fn unet() -> Functional {
    let convolved = |x: &Node, filters: usize| -> Result<Node> {
        let x = Conv2D::new(filters, 3).same().no_bias().apply(x)?;
        BatchNormalization::new().activation(Activation::Relu).apply(&x)
    };
    Functional::new(move |x: Node| {
        let (mut x, mut sides) = (x, Vec::new());
        for level in 0..3 {
            x = convolved(&convolved(&x, 16 << level)?, 16 << level)?;
            sides.push(x.clone());
            x = MaxPooling2D::new(2).apply(&x)?;
        }
        x = convolved(&x, 128)?;
        for (level, side) in sides.iter().enumerate().rev() {
            x = Conv2DTranspose::new(16 << level, 2).stride(2).apply(&x)?;
            x = convolved(&Concatenate::new(-1).apply((&x, side))?, 16 << level)?;
        }
        Dense::new(10).apply(&GlobalAveragePooling2D::new().apply(&x)?)
    })
}

/// Every layer reads all before it.
fn densenet() -> Functional {
    Functional::new(|x: Node| {
        let mut x = Conv2D::new(24, 3).same().apply(&x)?;
        for _ in 0..16 {
            let y = BatchNormalization::new().activation(Activation::Relu).apply(&x)?;
            x = Concatenate::new(-1).apply((&x, &Conv2D::new(12, 3).same().no_bias().apply(&y)?))?;
        }
        Dense::new(10).apply(&GlobalAveragePooling2D::new().apply(&x)?)
    })
}
