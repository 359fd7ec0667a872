//! Several ranks on one GPU, each with a pool and a thread of its own: the bits of one rank at every stage of ZeRO, each rank's bytes as
//! planned, and a driver that counts what the ranks have committed, to the byte. Programs run launch by launch here: what the driver takes for
//! CUDA graphs is known as a bound alone.
//!
//! Of one rank with a communicator of NCCL: the same, and what NCCL takes is a row of its own.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use plimsoll::dist::nccl::Nccl;
use plimsoll::dist::{Communicator, Strategy, local};
use plimsoll::nn::plan::plan_of_ranks;
use plimsoll::nn::train::{Batch, Until};
use plimsoll::nn::{Policy, Trainer, with_policy, with_strategy};
use plimsoll::{Device, Error, Generator, Owner, Result};
use plimsoll_cli::recipes;
use sha2::{Digest, Sha256};

/// The leaves of each batch, which four ranks divide.
const N_LEAVES: usize = 4;
/// Steps: the first, and steady ones.
const N_STEPS: u64 = 3;

/// A run.
#[derive(Clone, Copy)]
struct Setting {
    recipe: &'static str,
    policy: Policy,
    batch: usize,
    n_ranks: usize,
    stage: usize,
    with_nccl: bool,
}

/// What a rank says of its run.
struct RankRun {
    /// The checksum of the loss and all parameters.
    bits: String,
    n_parameters: usize,
    planned: [u64; 2],
    taken: [u64; 2],
    /// Parameters and the optimizer's state between steps.
    states: u64,
    /// What all ranks have committed, what their transports have taken, and what the driver has free, at the same time.
    committed: u64,
    outside: u64,
    free: u64,
    ms: f64,
}

/// A run of all ranks.
struct Run {
    ranks: Vec<RankRun>,
    /// What the driver counted beyond what it counts when all is dropped.
    driver: u64,
}

/// Makes all runs, and prints a line for each and the table last.
pub fn main() -> ExitCode {
    let (nano, small) = (("gpt-nano", Policy::Float32, 32), ("gpt2-124m", Policy::MixedBfloat16, 8));
    let mut rows = Vec::new();
    let mut is_all_well = true;
    for (recipe, policy, batch) in [nano, small] {
        let setting =
            |n_ranks, stage, with_nccl| Setting { recipe, policy, batch, n_ranks, stage, with_nccl };
        let mut settings = vec![setting(1, 0, false), setting(1, 0, true)];
        settings.extend(
            [2, 4].into_iter().flat_map(|n_ranks| (0..4).map(move |stage| setting(n_ranks, stage, false))),
        );
        // Kernels and libraries that are loaded here stay, so that later runs are counted without them.
        if let Err(error) = run(setting(1, 0, false)) {
            println!("FAIL  {recipe}: {error}");
            is_all_well = false;
        }
        let mut bits = None;
        for setting in settings {
            let (row, is_well) = row(setting, &mut bits);
            println!("{row}");
            rows.push(row);
            is_all_well &= is_well;
        }
    }
    let medium = Setting {
        recipe: "gpt2-355m",
        policy: Policy::MixedBfloat16,
        batch: N_LEAVES,
        n_ranks: 4,
        stage: 3,
        with_nccl: false,
    };
    let (row, is_well) = row(medium, &mut None);
    rows.push(row);
    println!("\n{HEAD}\n{}", rows.join("\n"));
    let word = if is_all_well && is_well { "PASS  all of" } else { "FAIL  some of" };
    println!("{word} {} runs: equal bits, bytes as planned, and a driver that counts no others", rows.len());
    if is_all_well && is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const HEAD: &str = "      recipe     ranks ZeRO  bits             planned = taken  committed of each rank, MiB   sum, MiB  \
                    driver - sum, B  transport, B  states, MiB  16 Ψ / N, MiB      ms";

/// A run as a row of the table; `expected` are the bits of the first run.
fn row(setting: Setting, expected: &mut Option<String>) -> (String, bool) {
    let Setting { recipe, n_ranks, stage, with_nccl, .. } = setting;
    let name = format!(
        "{recipe:10} {n_ranks:5} {:>5}",
        if with_nccl { "nccl".to_owned() } else { stage.to_string() }
    );
    let run = match run(setting) {
        Ok(run) => run,
        // A machine without the library is told so; it is no failure of ours.
        Err(error) if with_nccl && error.to_string().contains("NCCL was not found") => {
            return (format!("----  {name}  {error}"), true);
        }
        Err(error) => return (format!("FAIL  {name}  {error}"), false),
    };
    let first = &run.ranks[0];
    let bits = expected.get_or_insert_with(|| first.bits.clone());
    let has_bits = run.ranks.iter().all(|rank| rank.bits == *bits);
    let is_planned = run.ranks.iter().all(|rank| rank.planned == rank.taken);
    let outside: u64 = run.ranks.iter().map(|rank| rank.outside).sum();
    let beyond = run.driver as i64 - first.committed as i64;
    let is_counted = beyond == outside as i64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let committed: Vec<String> = run.ranks.iter().map(|rank| format!("{:.0}", mib(rank.taken[1]))).collect();
    let states = run.ranks.iter().map(|rank| rank.states).max().unwrap_or(0);
    let formula = 16.0 * first.n_parameters as f64 / n_ranks as f64 / f64::from(1 << 20);
    let is_well = has_bits && is_planned && is_counted;
    let word = if is_well { "PASS" } else { "FAIL" };
    let text = format!(
        "{word}  {name}  {:16} {:15} {:>28} {:10.0} {beyond:16} {outside:13} {:12.1} {formula:14.1} {:7.1}",
        first.bits,
        if is_planned { "to the byte" } else { "no" },
        committed.join(" "),
        mib(first.committed),
        mib(states),
        first.ms
    );
    let unplanned = run.ranks.iter().find(|rank| rank.planned != rank.taken);
    let why = unplanned.map_or_else(String::new, |rank| {
        format!("\n      planned {:?}, taken {:?}", rank.planned, rank.taken)
    });
    (text + &why + if has_bits { "" } else { "\n      other bits than those of the first run" }, is_well)
}

/// Trains with as many virtual ranks on the first GPU.
fn run(setting: Setting) -> Result<Run> {
    let devices: Vec<Device> =
        (0..setting.n_ranks).map(|_| Device::separate_cuda(0)).collect::<Result<_>>()?;
    devices.iter().try_for_each(|device| device.set_cuda_graphs(false))?;
    let Some(gpu) = devices[0].gpu() else { return Err(Error::device("ranks", "it is no GPU")) };
    let before = gpu.memory()?.free;
    let on_rank = move |communicator: Arc<dyn Communicator>| {
        let communicator: Arc<dyn Communicator> = match setting.with_nccl {
            true => Arc::new(Nccl::join(communicator, &Device::current())?),
            false => communicator,
        };
        of_rank(setting, &communicator)
    };
    let ranks = local::mirrored(&devices, on_rank)?;
    // Models and optimizers are gone, and so is what the pools had committed.
    let after = gpu.memory()?.free + devices.iter().map(|device| device.stats().committed).sum::<u64>();
    // A first run loads kernels and libraries, which stay. NCCL keeps some of what it took for the next communicator.
    let idle = if setting.with_nccl { before } else { after };
    let driver = idle.saturating_sub(ranks[0].free);
    Ok(Run { ranks, driver })
}

fn trainer(setting: Setting, communicator: &Arc<dyn Communicator>) -> Result<(Trainer, Vec<Batch>)> {
    let all = recipes::all();
    let Some(recipe) = all.iter().find(|recipe| recipe.name() == setting.recipe) else {
        return Err(Error::argument("ranks", format!("there is no recipe {}", setting.recipe)));
    };
    Generator::new(0).make_current();
    let strategy = Strategy::data_parallel(communicator.clone()).leaves(N_LEAVES).zero(setting.stage);
    let model = with_strategy(&strategy, || with_policy(setting.policy, || recipe.model()))?;
    let optimizer = recipe.make_optimizer(u64::MAX)?;
    let batch = Batch::new(recipe.inputs().random(setting.batch)?, recipe.labels().random(setting.batch)?);
    Ok((Trainer::new(model, optimizer, recipe.loss()).strategy(strategy), vec![batch]))
}

/// A rank's run, on the current device.
fn of_rank(setting: Setting, communicator: &Arc<dyn Communicator>) -> Result<RankRun> {
    let device = Device::current();
    let plan = plan_of_ranks(communicator, &device, || {
        let (mut trainer, batch) = trainer(setting, communicator)?;
        trainer.fit(&batch, Until::Steps(N_STEPS)).map(drop)
    })?;
    let (mut trainer, batch) = trainer(setting, communicator)?;
    trainer.fit(&batch, Until::Steps(N_STEPS - 1))?;
    device.synchronize()?;
    communicator.barrier()?;
    let before = Instant::now();
    let history = trainer.fit(&batch, Until::Steps(N_STEPS))?;
    device.synchronize()?;
    let ms = before.elapsed().as_secs_f64() * 1e3;
    let stats = device.stats();
    let all = communicator.all_gather(&stats.committed.to_le_bytes())?;
    let committed =
        all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap_or_default())).sum();
    let free = device.gpu().map_or(Ok(0), |gpu| gpu.memory().map(|memory| memory.free))?;
    communicator.barrier()?;
    let mut sum = Sha256::new();
    sum.update(history.loss.unwrap_or(f64::NAN).to_le_bytes());
    let variables = trainer.model().variables();
    for variable in &variables {
        trainer.with_bytes_of(variable, |bytes| sum.update(bytes))?;
    }
    Ok(RankRun {
        bits: sum.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
        n_parameters: variables.iter().map(|variable| variable.n_elems()).sum(),
        planned: [plan.peak_bytes, plan.committed_bytes],
        taken: [stats.peak_in_use, stats.peak_committed],
        states: stats.rows().get(Owner::Parameters) + stats.rows().get(Owner::Optimizer),
        committed,
        outside: communicator.outside_bytes(),
        free,
        ms,
    })
}
