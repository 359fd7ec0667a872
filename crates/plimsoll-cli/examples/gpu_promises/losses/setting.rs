//! What is trained, and in which precision.

use plimsoll::nn::layers::{Dense, LSTM, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::AdamW;
use plimsoll::nn::{Layer, Policy};
use plimsoll_cli::recipes::{Depth, Gpt, ResNet};
use plimsoll_cli::{Feature, Recipe};

use crate::workload::recipe;

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
    vec![
        Setting { recipe: recipe("lstm-b256"), twin: "lstm", policy: Policy::Float32 },
        Setting { recipe: recipe("gpt2-124m"), twin: "gpt", policy: Policy::MixedBfloat16 },
        Setting { recipe: recipe("resnet50-b128"), twin: "resnet50", policy: Policy::MixedBfloat16 },
    ]
}

/// The same models, small, in several precisions: in float64 rounding is so small that whatever the two programs do not do
/// alike stands out. A ResNet is not among those in bfloat16: on so few points its batch norms make the first loss differ
/// by a thirtieth between two right answers, and there is nothing to compare.
pub fn small() -> Vec<Setting> {
    let wide = [Policy::Float64, Policy::Float32];
    let lstms = wide.map(|policy| Setting { recipe: small_lstm(), twin: "lstm", policy });
    let resnets = wide.map(|policy| Setting { recipe: small_resnet(), twin: "resnet50", policy });
    let all = [Policy::Float64, Policy::Float32, Policy::MixedBfloat16];
    let gpts = all.map(|policy| Setting { recipe: small_gpt(), twin: "gpt", policy });
    lstms.into_iter().chain(gpts).chain(resnets).collect()
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

/// The whole depth, on images so small that its last stage sees one point of each. It learns slowly, since it soon knows
/// so few of them by heart.
fn small_resnet() -> Recipe {
    let model = ResNet::new(Depth::Fifty);
    small_recipe("small-resnet50", model, Feature::floats([32, 32, 3]), Feature::ids([], 1000))
        .optimizer(AdamW::new(1e-5).weight_decay(0.01))
        .batch(16)
}

fn small_lstm() -> Recipe {
    let model = Sequential::new().add(LSTM::new(32)).add(Dense::new(10));
    small_recipe("small-lstm", model, Feature::floats([4, 16]), Feature::ids([], 10))
}
