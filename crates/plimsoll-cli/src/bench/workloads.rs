//! The workloads: w1 to w7 with the shapes of the other frameworks' programs, and those meant for a GPU.

use plimsoll::nn::layers::{Conv2D, Dense, Flatten, LSTM, MaxPooling2D, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::{Adam, AdamW};
use plimsoll::nn::{Layer, Policy};
use plimsoll::{Activation, GradientTape, Result, Tensor, Variable};

use crate::data::Feature;
use crate::recipe::Recipe;
use crate::recipes::{Depth, Gpt, ResNet};

/// Something to measure.
pub enum Workload {
    /// Training steps of a recipe on one fixed random batch.
    Train(Recipe),
    /// A call that is repeated.
    Call {
        /// The name on the command line.
        name: &'static str,
        /// A line about it.
        about: &'static str,
        /// Makes what the call needs, and the call.
        make: fn() -> Result<Call>,
    },
}

/// A call that is repeated.
pub type Call = Box<dyn FnMut() -> Result<()>>;

impl Workload {
    /// The name on the command line.
    pub fn name(&self) -> &str {
        match self {
            Workload::Train(recipe) => recipe.name(),
            Workload::Call { name, .. } => name,
        }
    }

    /// A line about it.
    pub fn about(&self) -> &str {
        match self {
            Workload::Train(recipe) => recipe.description(),
            Workload::Call { about, .. } => about,
        }
    }
}

/// All workloads.
pub fn all() -> Vec<Workload> {
    let perceptrons = [("w1_mlp_b32", 32), ("w1_mlp_b128", 128), ("w1_mlp_b512", 512)];
    let mut all: Vec<Workload> = perceptrons.map(|(name, batch)| Workload::Train(w1(name, batch))).into();
    all.extend([w2_deep_mlp(), w3_cnn(), w4_lstm(), w5_gpt()].map(Workload::Train));
    all.extend(calls());
    all.extend(for_gpus().map(Workload::Train));
    all
}

/// A recipe that classifies floats by cross entropy.
fn classifier(name: &str, model: impl Layer + 'static, inputs: &[usize], classes: usize) -> Recipe {
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new(name, model, Feature::floats(inputs), Feature::ids([], classes), loss)
}

/// `n` layers of that width with relu, then one of ten outputs.
fn perceptron(n: usize, width: usize) -> Sequential {
    let mut model = Sequential::new();
    for _ in 0..n {
        model = model.add(Dense::new(width).activation(Activation::Relu));
    }
    model.add(Dense::new(10))
}

fn w1(name: &str, batch: usize) -> Recipe {
    classifier(name, perceptron(1, 1024), &[784], 10)
        .about(format!("784-1024-10, batch {batch}, Adam"))
        .optimizer(Adam::new(1e-3))
        .batch(batch)
}

/// Eight layers of 1024.
pub fn w2_deep_mlp() -> Recipe {
    classifier("w2_deep_mlp", perceptron(8, 1024), &[1024], 10)
        .about("1024, 8 times 1024, 10, batch 256, Adam")
        .optimizer(Adam::new(1e-3))
        .batch(256)
}

/// Two convolutions, a maximum, two dense layers.
pub fn w3_cnn() -> Recipe {
    let conv = |filters| Conv2D::new(filters, 3).same().activation(Activation::Relu);
    let model = Sequential::new()
        .add(conv(32))
        .add(conv(64))
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(128).activation(Activation::Relu))
        .add(Dense::new(10));
    classifier("w3_cnn", model, &[28, 28, 1], 10)
        .about("28×28, conv 32, conv 64, maxpool, 128, 10, batch 64, Adam")
        .optimizer(Adam::new(1e-3))
        .batch(64)
}

/// One LSTM over 64 steps.
pub fn w4_lstm() -> Recipe {
    classifier("w4_lstm", Sequential::new().add(LSTM::new(256)).add(Dense::new(10)), &[64, 64], 10)
        .about("an LSTM of 256 over 64 steps of 64, batch 32, Adam")
        .optimizer(Adam::new(1e-3))
        .batch(32)
}

/// A GPT of four blocks, without dropout.
pub fn w5_gpt() -> Recipe {
    let tokens = || Feature::ids([128], 1024);
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    Recipe::new("w5_gpt", Gpt { dropout: 0.0, ..Gpt::NANO }, tokens(), tokens(), loss)
        .about("4 blocks of 256, 4 heads, 128 tokens of 1024, batch 8, AdamW")
        .optimizer(AdamW::new(1e-3).weight_decay(0.01))
        .batch(8)
}

fn calls() -> [Workload; 5] {
    let call = |name, about, make| Workload::Call { name, about, make };
    [
        call("w6_matmul1024", "the product of two 1024×1024 matrices", || product(1024)),
        call("w6_matmul2048", "the product of two 2048×2048 matrices", || product(2048)),
        call("w6_add16m", "the sum of two tensors of 16 Mi elements", || {
            let (a, b) = (Tensor::randn([16 << 20])?, Tensor::randn([16 << 20])?);
            Ok(Box::new(move || a.add(&b).map(drop)))
        }),
        call("w7_eager", "1000 additions of 8 elements on a tape, and their gradient", || {
            let b = Tensor::randn([8])?;
            chain(move |y| y.add(&b))
        }),
        call("eager-ops", "1000 additions of a number to 8 elements on a tape, and their gradient", || {
            chain(|y| y.add(1.0))
        }),
    ]
}

/// An op a thousand times on a tape, one after the other, and the gradient of all.
fn chain(op: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Call> {
    let x = Variable::new(Tensor::randn([8])?);
    Ok(Box::new(move || {
        let tape = GradientTape::new();
        let sum = tape.record(|| {
            let mut y = op(&x)?;
            for _ in 1..1000 {
                y = op(&y)?;
            }
            y.sum(..)
        })?;
        tape.gradient(&sum, [&x]).map(drop)
    }))
}

fn product(n: usize) -> Result<Call> {
    let (a, b) = (Tensor::randn([n, n])?, Tensor::randn([n, n])?);
    Ok(Box::new(move || a.matmul(&b).map(drop)))
}

/// The workloads of the benchmark for GPUs; they run on the CPU too, if there is time. Precisions are those of the programs
/// that measure others, whose float32 is multiplied as TF32 (`--tf32`).
fn for_gpus() -> [Recipe; 5] {
    let tokens = || Feature::ids([1024], 50_257);
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let adamw = AdamW::new(1e-4).weight_decay(0.01);
    [
        classifier("mlp-784-1024-10-b512", perceptron(1, 1024), &[784], 10).batch(512),
        classifier("mlp-deep-b4096", perceptron(8, 4096), &[4096], 10)
            .batch(4096)
            .precision(Policy::MixedBfloat16),
        classifier("resnet50-b128", ResNet::new(Depth::Fifty), &[224, 224, 3], 1000)
            .batch(128)
            .precision(Policy::MixedBfloat16),
        classifier("lstm-b256", Sequential::new().add(LSTM::new(512)).add(Dense::new(10)), &[128, 256], 10)
            .batch(256),
        Recipe::new("gpt2-124m", Gpt::SMALL, tokens(), tokens(), loss)
            .batch(16)
            .precision(Policy::MixedBfloat16),
    ]
    .map(|recipe| recipe.about("of the benchmark for GPUs, AdamW").optimizer(adamw))
}
