//! The kernels of the shipped recipes, compiled for GPUs that are not there: `recipe_kernels [RECIPE..]`.
//!
//! A step of each recipe is recorded on a ghost in each precision, and its calls are dry-run on GPUs of 2020 and 2022 (sm_80 and
//! sm_90). Every kernel that they ask for, those that were made for the program among them, must be compiled by NVRTC as for a real
//! run. Nothing is computed. NVRTC is looked for where CUDA's libraries are (`PLIMSOLL_CUDA_LIBRARIES`).

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll::hardware::Profile;
use plimsoll::nn::train::{Batch, Trainer};
use plimsoll::nn::{Policy, with_policy};
use plimsoll::{Device, Error, Result};
use plimsoll_cli::{Recipe, recipes};
use plimsoll_cuda::KernelText;

/// The models that stand for their architectures.
const MODELS: [&str; 2] = ["a100-80", "h200"];
const POLICIES: [Policy; 3] = [Policy::Float32, Policy::MixedBfloat16, Policy::MixedFloat16];

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    match check(&names) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(n_refused) => {
            eprintln!("{n_refused} kernels were refused");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles the kernels of the recipes of these names, or of all; how many were refused.
fn check(names: &[String]) -> Result<usize> {
    let all = recipes::all();
    if let Some(unknown) = names.iter().find(|&name| all.iter().all(|recipe| recipe.name() != name)) {
        return Err(Error::argument("recipe_kernels", format!("there is no recipe {unknown}")));
    }
    let (mut known, mut n_refused) = (HashSet::new(), 0);
    println!(
        "{:<12} {:<16} {:<8} {:>8} {:>10} {:>8}",
        "recipe", "precision", "model", "kernels", "generated", "new"
    );
    for recipe in
        all.iter().filter(|recipe| names.is_empty() || names.iter().any(|name| name == recipe.name()))
    {
        for policy in POLICIES {
            for model in MODELS {
                let profile = Profile::named(model).unwrap_or_else(|| unreachable!("a shipped profile"));
                let texts = kernels(recipe, policy, &profile)?;
                let n_generated = texts.iter().filter(|text| text.entry().starts_with("fused")).count();
                let new: Vec<&KernelText> =
                    texts.iter().filter(|text| known.insert((model, text.source().to_owned()))).collect();
                println!(
                    "{:<12} {:<16} {model:<8} {:>8} {n_generated:>10} {:>8}",
                    recipe.name(),
                    format!("{policy:?}"),
                    texts.len(),
                    new.len()
                );
                n_refused += refused(&new, profile.architecture);
            }
        }
    }
    println!("{} kernels, {n_refused} refused", known.len());
    Ok(n_refused)
}

/// The kernels that a step of a recipe asks of a model of GPU.
fn kernels(recipe: &Recipe, policy: Policy, profile: &Profile) -> Result<Vec<KernelText>> {
    let _on = Device::ghost_cuda(profile.clone()).enter();
    let model = with_policy(policy, || recipe.model())?;
    let batch = recipe.default_batch();
    let pair = Batch::new(recipe.inputs().random(batch)?, recipe.labels().random(batch)?);
    let mut trainer = Trainer::new(model, recipe.make_optimizer(u64::MAX)?, recipe.loss());
    Ok(trainer.step_program(&pair)?.kernel_texts(profile))
}

/// Compiles kernels by all cores; how many were refused, each of which is told.
fn refused(texts: &[&KernelText], architecture: u32) -> usize {
    let (next, n_refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = plimsoll_cuda::compile(text.source(), text.entry(), architecture) {
                println!("{error}");
                n_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| _ = scope.spawn(work));
    });
    n_refused.into_inner()
}
