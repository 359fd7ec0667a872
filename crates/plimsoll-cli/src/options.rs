//! The command line: what can be requested, and nothing about how it is done.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use plimsoll::dist::Strategy;
use plimsoll::nn::Policy;

use crate::cluster::Cluster;
use crate::size::Size;

/// Trains models within a limit on memory, and shows where the bytes go.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a recipe, with a progress bar and a summary of the memory at the end
    Train(TrainOptions),
    /// Say what a run will need, by owner, without its arithmetic
    Plan(PlanOptions),
    /// Time and measure one workload of the benchmark, or one step of a recipe
    Bench(BenchOptions),
    /// Show a recorded profile
    Explain(ExplainOptions),
    /// List devices, their memory and the libraries found
    Devices(DevicesOptions),
}

/// What is common to runs that train.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Where to run: cpu, or cuda:N; the first GPU where one can be used, else the CPU
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// The most memory of the device: 512MiB, 8GiB, 8GB, 80%, a number of bytes, or none [default: what is free]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<Size>,
    /// The most memory of the host; on the CPU the smaller of both limits counts
    #[arg(long, value_name = "SIZE")]
    pub host_limit: Option<Size>,
    /// Examples of one optimizer step
    #[arg(long, value_name = "N")]
    pub batch: Option<NonZeroUsize>,
    /// How many optimizer steps to take; `bench` takes so many to warm up and in each of five repeats
    #[arg(long, value_name = "N")]
    pub steps: Option<NonZeroUsize>,
    /// How many times to go through the data; in `bench` as many steps as that is in `train`
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    pub epochs: Option<NonZeroUsize>,
    /// float32, float64, mixed_bfloat16 or mixed_float16 [default: the workload's, which is float32 for all but some of
    /// those for GPUs]
    #[arg(long, value_name = "POLICY")]
    pub precision: Option<Policy>,
    /// Multiply float32 as TF32 on a GPU: faster, with 10 bits after the point instead of 23
    #[arg(long)]
    pub tf32: bool,
    /// Let backward on a GPU add up in any order: some gradients come faster, and the last bits differ from run to run
    #[arg(long)]
    pub nondeterministic: bool,
    /// Work through each batch in so many parts
    #[arg(long, value_name = "N", default_value = "1")]
    pub accumulate: NonZeroUsize,
    /// Another optimizer than the recipe's, such as sgd or adamw
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// What weights, shuffles and dropout are drawn from
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Threads of the kernels [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Write one JSON object a line on stdout, and nothing else there
    #[arg(long)]
    pub json: bool,
    /// How many processes share the machine; none but this one unless ranks do.
    #[arg(skip)]
    pub n_sharing: Option<usize>,
}

/// The options of `train`.
#[derive(Args, Clone, Debug)]
pub struct TrainOptions {
    /// The recipe to train
    pub recipe: String,
    /// What is common to runs that train.
    #[command(flatten)]
    pub run: RunOptions,
    /// A file or folder with data of the recipe's kind, or `random`
    #[arg(long, value_name = "PATH|random")]
    pub data: Option<DataOption>,
    /// Save model, optimizer and position in this folder, at the end and after each epoch
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Go on from what was saved in this folder
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Record what happens to memory in this file, for `explain`
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Of a long run keep so many of the last steps in the profile; the first steps and the peak stay in any case [default: as
    /// many as fit into 4 MiB]
    #[arg(long, value_name = "N")]
    pub profile_steps: Option<NonZeroU64>,
    /// Write a page about the run's memory, to look at in a browser
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Serve the page while training, to a browser on this machine, on this port or any that is free
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0")]
    pub live: Option<u16>,
    /// Write loss, metrics and memory into this folder for TensorBoard
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// List the lines whose blocks become more from step to step at the end; a warning names the first in any case
    #[arg(long)]
    pub watch_growth: bool,
    /// Where profile and page of a run go that fails for lack of memory, or `off` [default: the present folder, or what
    /// PLIMSOLL_OOM_REPORT says]
    #[arg(long, value_name = "DIR|off")]
    pub oom_report: Option<PathBuf>,
    /// On the CPU: offload values to an unnamed file in this folder when memory is short
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Train together with the other processes that `mpirun` started: data parallel, the same bits for every number of them
    #[arg(long)]
    pub distributed: bool,
    /// Cut each batch into so many leaves, which ranks share out [default: those of --accumulate, or as many as ranks]
    #[arg(long, value_name = "L")]
    pub leaves: Option<NonZeroUsize>,
    /// Cut into shards, one for each process: 1 the optimizer's state, 2 gradients, too, 3 parameters, too (ZeRO)
    #[arg(long, value_name = "STAGE", default_value_t = 0, requires = "distributed",
          value_parser = clap::value_parser!(u8).range(0..=3))]
    pub zero: u8,
    /// The ranks that the run has joined.
    #[arg(skip)]
    pub strategy: Option<Strategy>,
}

impl TrainOptions {
    /// Whether this process reports and writes files: the first rank, or the only one.
    pub fn is_first(&self) -> bool {
        self.rank().0 == 0
    }

    /// The number of this rank, and how many there are.
    pub fn rank(&self) -> (usize, usize) {
        let ranks = self.strategy.as_ref().map(Strategy::communicator);
        ranks.map_or((0, 1), |communicator| (communicator.rank(), communicator.size()))
    }
}

/// The options of `plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanOptions {
    /// The recipe to plan
    pub recipe: String,
    /// What is common to runs that train.
    #[command(flatten)]
    pub run: RunOptions,
    /// A file or folder with data of the recipe's kind, or `random`
    #[arg(long, value_name = "PATH|random")]
    pub data: Option<DataOption>,
    /// On the CPU: plan a run that may offload values to an unnamed file in this folder; nothing is written there
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
    /// Find the largest batch that fits the limit
    #[arg(long, conflicts_with = "batch")]
    pub max_batch: bool,
    /// Plan for a GPU that is not there: h200, h100, a100-80, a100-40, rtx4090, t4, or a profile's file
    #[arg(long = "as", value_name = "MODEL")]
    pub planned_device: Option<String>,
    /// Record what would happen to memory in this file, for `explain`
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Write a page about the run's memory, to look at in a browser
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Plan the ranks of a cluster that is not there, such as 64xh100: so many devices of a model, a rank each
    #[arg(long, value_name = "NxMODEL", conflicts_with_all = ["planned_device", "device", "max_batch", "profile", "report"])]
    pub cluster: Option<Cluster>,
    /// With --cluster, cut into shards: 1 the optimizer's state, 2 gradients, too, 3 parameters, too (ZeRO)
    #[arg(long, value_name = "STAGE", default_value_t = 0, requires = "cluster",
          value_parser = clap::value_parser!(u8).range(0..=3))]
    pub zero: u8,
    /// With --cluster, cut each batch into so many leaves [default: those of --accumulate, or as many as ranks]
    #[arg(long, value_name = "L", requires = "cluster")]
    pub leaves: Option<NonZeroUsize>,
}

impl PlanOptions {
    /// The training run that is planned.
    pub fn training(&self) -> TrainOptions {
        TrainOptions {
            recipe: self.recipe.clone(),
            run: self.run.clone(),
            data: self.data.clone(),
            save: None,
            resume: None,
            profile: None,
            profile_steps: None,
            report: None,
            live: None,
            tensorboard: None,
            watch_growth: false,
            oom_report: None,
            spill: self.spill.clone(),
            distributed: false,
            leaves: None,
            zero: 0,
            strategy: None,
        }
    }
}

/// The options of `bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// A workload of the benchmark, or a recipe
    #[arg(required_unless_present = "list")]
    pub workload: Option<String>,
    /// List the workloads
    #[arg(long)]
    pub list: bool,
    /// What is common to runs that train.
    #[command(flatten)]
    pub run: RunOptions,
}

/// The options of `explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainOptions {
    /// A profile that `train --profile` or `plan --profile` recorded
    pub file: PathBuf,
    /// Another one, to compare both
    #[arg(value_name = "OTHER", conflicts_with = "compare")]
    pub other: Option<PathBuf>,
    /// The same as OTHER
    #[arg(long, value_name = "OTHER")]
    pub compare: Option<PathBuf>,
    /// Write a page to look at in a browser instead: one file that asks nobody for anything
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Write what PyTorch's memory viewer reads
    #[arg(long, value_name = "OUT")]
    pub pickle: Option<PathBuf>,
    /// Write a trace for Perfetto's viewer
    #[arg(long, value_name = "OUT")]
    pub perfetto: Option<PathBuf>,
    /// Write gauges in the text format of OpenMetrics
    #[arg(long, value_name = "OUT")]
    pub openmetrics: Option<PathBuf>,
    /// Write one of these formats as the ending says: .pickle, .pftrace or .prom
    #[arg(long, value_name = "OUT")]
    pub export: Option<PathBuf>,
}

/// The options of `devices`.
#[derive(Args, Clone, Debug)]
pub struct DevicesOptions {
    /// As one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Where a run's data come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataOption {
    /// Random numbers of the recipe's shapes.
    Random,
    /// A file or folder.
    Path(PathBuf),
}

impl FromStr for DataOption {
    type Err = String;

    fn from_str(text: &str) -> Result<DataOption, String> {
        Ok(match text {
            "random" => DataOption::Random,
            _ => DataOption::Path(PathBuf::from(text)),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn train(arguments: &str) -> Result<TrainOptions, String> {
        let words = ["plimsoll", "train", "digits"].into_iter().chain(arguments.split_whitespace());
        match Options::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Train(options) => Ok(options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() -> Result<(), String> {
        let options = train("")?;
        assert_eq!((options.run.seed, options.run.accumulate.get()), (0, 1));
        assert_eq!((options.run.precision, options.run.json, options.run.tf32), (None, false, false));
        assert_eq!((options.run.limit, options.data), (None, None));
        Ok(())
    }

    #[test]
    fn options_are_read() -> Result<(), String> {
        let options = train("--device cuda:1 --batch 7 --precision mixed_float16 --data random --limit 80%")?;
        assert_eq!(options.run.device.as_deref(), Some("cuda:1"));
        assert_eq!(options.run.batch.map(NonZeroUsize::get), Some(7));
        assert_eq!(options.run.precision, Some(Policy::MixedFloat16));
        assert_eq!((options.data, options.run.limit), (Some(DataOption::Random), Some(Size::Share(0.8))));
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, names) in [
            ("--batch 0", "--batch"),
            ("--steps -1", "'-1'"),
            ("--limit 8G", "`8G`"),
            ("--precision half", "\"half\""),
            ("--optimiser adam", "--optimizer"),
            ("--epochs 1 --steps 2", "--steps"),
            ("--seed x", "--seed"),
        ] {
            let error = train(arguments).expect_err(arguments);
            assert!(error.contains(names), "{error}");
        }
    }
}
