//! The losses of the GPU's workloads, with all that another framework needs to follow them.
//!
//! `gpu_promises losses FOLDER` trains gpt2-124m, resnet50-b128 and lstm-b256 on `cuda:0` for 20 steps of one batch. For each it
//! leaves the weights before the first step, the batch, and the losses in the folder, which `peers/gpu_losses.py` goes
//! through with PyTorch. `--small` takes models of the same make that a CPU trains in seconds, in several precisions: what
//! the two programs disagree about, such as the order of a kernel's axes, shows there, too.

mod setting;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use plimsoll::nn::checkpoint::write_tensors;
use plimsoll::nn::train::{Batch, Until};
use plimsoll::nn::{Trainer, with_policy};
use plimsoll::{Device, Generator, Result};

use setting::{Setting, large, small};

/// What is to be trained, and where its files go.
#[derive(clap::Args)]
pub struct Options {
    /// Where the files go; made if it is not there.
    folder: PathBuf,
    /// Where to train: cuda:0, cpu, or emulated.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Models that a CPU trains in seconds.
    #[arg(long)]
    small: bool,
    /// One workload alone.
    #[arg(long)]
    only: Option<String>,
    /// Steps to train.
    #[arg(long, default_value_t = 20)]
    steps: u64,
    /// Another learning rate than the workload's.
    #[arg(long)]
    learning_rate: Option<f64>,
}

/// Trains and writes; what went wrong is told on stderr.
pub fn main(options: &Options) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = match options.device.as_str() {
        "emulated" => Device::emulated()?,
        name => Device::named(name)?,
    };
    // Products of float32 are compared as such.
    device.set_tf32(false);
    fs::create_dir_all(&options.folder)?;
    let mut settings = if options.small { small() } else { large() };
    if let Some(only) = &options.only {
        settings.retain(|setting| setting.recipe.name() == only);
    }
    if settings.is_empty() {
        return Err("no workload has the name that --only gives".into());
    }
    for setting in &settings {
        let text = losses(setting, &device, options)?.to_string();
        println!("{text}");
        fs::write(options.folder.join(format!("{}.json", setting.name())), text + "\n")?;
    }
    Ok(())
}

/// Writes the weights and the batch of a run, then takes its steps.
fn losses(setting: &Setting, device: &Device, options: &Options) -> Result<serde_json::Value> {
    let _on = device.enter();
    Generator::new(0).make_current();
    let recipe = &setting.recipe;
    let model = with_policy(setting.policy, || recipe.model())?;
    let n = recipe.default_batch();
    let batch = Batch::new(recipe.inputs().random(n)?, recipe.labels().random(n)?);
    let file = |part: &str| options.folder.join(format!("{}.{part}.safetensors", setting.name()));
    model.save_weights(file("weights"))?;
    save_batch(&file("batch"), &batch)?;

    let mut optimizer = recipe.make_optimizer(options.steps)?;
    if let Some(rate) = options.learning_rate {
        optimizer.set_learning_rate(rate)?;
    }
    let mut trainer = Trainer::new(model, optimizer, recipe.loss());
    let data = vec![batch];
    let mut step = |number| Ok(trainer.fit(&data, Until::Steps(number))?.loss.unwrap_or(f64::NAN));
    let losses: Vec<f64> = (1..=options.steps).map(&mut step).collect::<Result<_>>()?;
    Ok(serde_json::json!({
        "name": setting.name(),
        "twin": setting.twin,
        "policy": setting.policy.name(),
        "device": device.name(),
        "learning_rate": trainer.optimizer().learning_rate()?,
        "losses": losses,
    }))
}

fn save_batch(path: &Path, batch: &Batch) -> Result<()> {
    let (inputs, labels) = batch.input_and_label()?;
    write_tensors(path, BTreeMap::from([("inputs".to_owned(), inputs), ("labels".to_owned(), labels)]))
}
