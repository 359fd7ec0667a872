//! The memory plans of a workload's step: `line_table RECIPE|WORKLOAD [h200 [host]] [MIB]` prints what each commits and how
//! much longer it takes by the cost model, with values offloaded to the host's memory or without, and, for a limit in MiB,
//! what is evicted under it, with what each value saves and costs. Nothing is computed: it runs on a ghost.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]

use std::process::ExitCode;
use std::time::Instant;

use plimsoll::hardware::Profile;
use plimsoll::memory::PlanSet;
use plimsoll::nn::train::{Batch, Trainer};
use plimsoll::nn::{Policy, with_policy};
use plimsoll::{Bytes, Device, Error, Offload, Result};
use plimsoll_cli::workloads::{Workload, all};
use plimsoll_cli::{Recipe, recipes};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let limit = words.last().and_then(|word| word.parse().ok()).map(Bytes::mib);
    let names = &words[..words.len() - usize::from(limit.is_some())];
    let table = match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [name] => table(name, &Device::ghost_cpu(), Policy::Float32, limit),
        [name, "h200"] => on_gpu(name, None, limit),
        [name, "h200", "host"] => on_gpu(name, Some(&Offload::Host(Bytes::mib(64 << 10))), limit),
        _ => Err(Error::argument(
            "line_table",
            "give the name of a recipe or workload, `h200` for a GPU, with `host` if it may offload values, and a limit in MiB for its decisions",
        )),
    };
    match table {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn on_gpu(name: &str, offload: Option<&Offload>, limit: Option<Bytes>) -> Result<()> {
    let ghost = Device::ghost_cuda(Profile::h200());
    ghost.set_offload(offload)?;
    table(name, &ghost, Policy::MixedBfloat16, limit)
}

fn table(name: &str, device: &Device, policy: Policy, limit: Option<Bytes>) -> Result<()> {
    let recipe = recipe(name)?;
    let _on = device.enter();
    let model = with_policy(policy, || recipe.model())?;
    let batch = recipe.default_batch();
    let pair = Batch::new(recipe.inputs().random(batch)?, recipe.labels().random(batch)?);
    let mut trainer = Trainer::new(model, recipe.make_optimizer(u64::MAX)?, recipe.loss());
    let started = Instant::now();
    let plans = trainer.memory_plans(&pair)?;
    let planned_in = started.elapsed();
    let natural = plans.candidates().last().map_or(1, |candidate| candidate.time) as f64;
    println!("{name} on {device}, planned in {} ms", planned_in.as_millis());
    println!("{:>32} {:>32} {:>8} {:>8} {:>12}", "committed", "in use", "time", "evicted", "offload MiB");
    for candidate in plans.candidates() {
        let [committed, peak] =
            [candidate.peaks.committed, candidate.peaks.peak].map(|n| Bytes::new(n).to_string());
        let n_evicted = candidate.decisions.as_ref().map_or(0, |decisions| decisions.n_evicted());
        let offloaded = candidate.decisions.as_ref().map_or(0, |decisions| decisions.offloaded_bytes >> 20);
        let time = candidate.time as f64 / natural;
        println!("{committed:>32} {peak:>32} {time:>8.3} {n_evicted:>8} {offloaded:>12}");
    }
    if let Some(limit) = limit {
        decisions(&plans, limit);
    }
    Ok(())
}

/// What is evicted under a limit.
fn decisions(plans: &PlanSet, limit: Bytes) {
    let Some(number) = plans.within(limit.get()) else {
        println!("nothing keeps a step under {limit}; the least is {}", Bytes::new(plans.least()));
        return;
    };
    println!("under {limit}, evicted in forward:");
    println!("{:>16} {:>10}  {:<14} made by", "bytes", "ms", "strategy");
    for choice in plans.candidates()[number].decisions.iter().flat_map(|decisions| &decisions.choices) {
        let how = if choice.is_offloaded { "offload" } else { "recompute" };
        let site = choice.site.map_or_else(String::new, |site| format!("{} {}", site.scope(), site.op()));
        println!(
            "{:>16} {:>10.3}  {how:<14} {site}",
            Bytes::new(choice.bytes).grouped(),
            choice.time as f64 / 1e6
        );
    }
}

/// The recipe of that name, or of a workload.
fn recipe(name: &str) -> Result<Recipe> {
    let workloads = all().into_iter().filter_map(|workload| match workload {
        Workload::Train(recipe) => Some(recipe),
        _ => None,
    });
    let found = workloads.chain(recipes::all()).find(|recipe| recipe.name() == name);
    found.ok_or_else(|| {
        Error::argument("line_table", format!("{name:?} is no recipe and no workload that trains"))
    })
}
