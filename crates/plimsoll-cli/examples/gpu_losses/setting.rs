//! What is trained, and in which precision.

use plimsoll::nn::layers::{Dense, LSTM, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::AdamW;
use plimsoll::nn::{Layer, Policy};
use plimsoll_cli::recipes::{Depth, Gpt, ResNet};
use plimsoll_cli::workloads::{Workload, all};
use plimsoll_cli::{Feature, Recipe};

/// A recipe, the model that it is in PyTorch, and its precision.
pub struct Setting {
    pub recipe: Recipe,
    /// The model's name in `peers/gpu_losses.py`, which takes its sizes from the weights.
    pub twin: &'static str,
    pub policy: Policy,
}

impl Setting {
    /// What its files are called.
    pub fn name(&self) -> String {
        format!("{}-{}", self.recipe.name(), self.policy)
    }
}

/// The workloads as they are measured beside PyTorch; float32 without TF32.
pub fn large() -> Vec<Setting> {
    let named = |name: &str| {
        let found = all().into_iter().find_map(|workload| match workload {
            Workload::Train(recipe) if recipe.name() == name => Some(recipe),
            _ => None,
        });
        found.unwrap_or_else(|| unreachable!("{name} is a workload"))
    };
    vec![
        Setting { recipe: named("lstm-b256"), twin: "lstm", policy: Policy::Float32 },
        Setting { recipe: named("gpt2-124m"), twin: "gpt", policy: Policy::MixedBfloat16 },
        Setting { recipe: named("resnet50-b128"), twin: "resnet50", policy: Policy::MixedBfloat16 },
    ]
}

/// The same models, small, and learning faster, so that 20 steps get somewhere.
pub fn small() -> Vec<Setting> {
    let both = [Policy::Float32, Policy::MixedBfloat16];
    let gpts = both.map(|policy| Setting { recipe: small_gpt(), twin: "gpt", policy });
    let resnets = both.map(|policy| Setting { recipe: small_resnet(), twin: "resnet50", policy });
    let lstm = Setting { recipe: small_lstm(), twin: "lstm", policy: Policy::Float32 };
    [lstm].into_iter().chain(gpts).chain(resnets).collect()
}

fn small_recipe(name: &str, model: impl Layer + 'static, inputs: Feature, labels: Feature) -> Recipe {
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new(name, model, inputs, labels, loss).optimizer(AdamW::new(1e-3).weight_decay(0.01)).batch(8)
}

/// Two blocks of two heads, which are as wide as GPT-2's.
fn small_gpt() -> Recipe {
    let model = Gpt { layers: 2, width: 128, heads: 2, vocabulary: 384, ..Gpt::SMALL };
    let tokens = || Feature::ids([32], 384);
    small_recipe("small-gpt", model, tokens(), tokens())
}

/// The whole depth, on images so small that its last stage sees 2×2 of them.
fn small_resnet() -> Recipe {
    let model = ResNet::new(Depth::Fifty);
    small_recipe("small-resnet50", model, Feature::floats([64, 64, 3]), Feature::ids([], 1000))
}

fn small_lstm() -> Recipe {
    let model = Sequential::new().add(LSTM::new(32)).add(Dense::new(10));
    small_recipe("small-lstm", model, Feature::floats([4, 16]), Feature::ids([], 10))
}
