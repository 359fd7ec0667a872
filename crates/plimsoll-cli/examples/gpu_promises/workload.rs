//! A workload of the benchmark as a training run.

use plimsoll::nn::train::{Batch, Until};
use plimsoll::nn::{Policy, Trainer, with_policy};
use plimsoll::{Device, Generator, Result, Tensor};
use plimsoll_cli::Recipe;
use plimsoll_cli::workloads::{Workload, all};

/// A workload and how it is run beside PyTorch.
pub struct Setting {
    pub name: &'static str,
    pub policy: Policy,
}

/// The workloads for GPUs.
pub const WORKLOADS: &[Setting] = &[
    Setting { name: "mlp-784-1024-10-b512", policy: Policy::Float32 },
    Setting { name: "mlp-deep-b4096", policy: Policy::MixedBfloat16 },
    Setting { name: "resnet50-b128", policy: Policy::MixedBfloat16 },
    Setting { name: "lstm-b256", policy: Policy::Float32 },
    Setting { name: "gpt2-124m", policy: Policy::MixedBfloat16 },
];

/// The recipe of a workload.
pub fn recipe(name: &str) -> Recipe {
    let found = all().into_iter().find_map(|workload| match workload {
        Workload::Train(recipe) if recipe.name() == name => Some(recipe),
        _ => None,
    });
    found.unwrap_or_else(|| unreachable!("{name} is a workload"))
}

/// A run on a device.
pub struct Training {
    pub device: Device,
    pub trainer: Trainer,
    pub batch: Vec<Batch>,
    pub n_steps: u64,
}

impl Training {
    /// The model, the optimizer and one batch of a workload.
    pub fn start(name: &'static str, device: &Device) -> Result<Training> {
        let setting = WORKLOADS.iter().find(|setting| setting.name == name);
        let policy = setting.map_or(Policy::Float32, |setting| setting.policy);
        let recipe = recipe(name);
        Training::of(&recipe, policy, recipe.default_batch(), device)
    }

    pub fn of(recipe: &Recipe, policy: Policy, batch: usize, device: &Device) -> Result<Training> {
        let _on = device.enter();
        Generator::new(0).make_current();
        let model = with_policy(policy, || recipe.model())?;
        let optimizer = recipe.make_optimizer(u64::MAX)?;
        let pair = Batch::new(recipe.inputs().random(batch)?, recipe.labels().random(batch)?);
        let trainer = Trainer::new(model, optimizer, recipe.loss());
        Ok(Training { device: device.clone(), trainer, batch: vec![pair], n_steps: 0 })
    }

    /// Takes steps on the batch.
    pub fn steps(&mut self, n: u64) -> Result<()> {
        let _on = self.device.enter();
        self.n_steps += n;
        self.trainer.fit(&self.batch, Until::Steps(self.n_steps)).map(drop)
    }

    /// Takes steps on another batch.
    pub fn step_on(&mut self, inputs: Tensor, labels: Tensor) -> Result<()> {
        self.batch = vec![Batch::new(inputs, labels)];
        self.steps(1)
    }
}
