//! Models of text: an LSTM and a small GPT on the shipped one, and the two sizes of GPT-2 on random tokens.

use plimsoll::nn::layers::{Dense, Embedding, LSTM, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll::nn::optimizers::{Adam, AdamW, OptimizerConfig, Schedule};

use super::Gpt;
use crate::data::{self, Feature};
use crate::recipe::Recipe;

/// The bytes of one example of `chars`.
const CHARS_WINDOW: usize = 64;
/// The tokens of one example of `gpt-nano`.
const NANO_WINDOW: usize = 128;
/// The highest learning rate of `gpt-nano`, reached after a twentieth of the steps; then it falls along half a cosine.
const NANO_RATE: f64 = 2e-3;
/// The tokens of one example of GPT-2.
const GPT2_WINDOW: usize = 1024;
/// The tokens of one example of GPT-3.
const GPT3_WINDOW: usize = 2048;

/// An LSTM that predicts the next letter of the shipped text.
pub fn chars() -> Recipe {
    let model = Sequential::new()
        .add(Embedding::new(256, 64))
        .add(LSTM::new(256).return_sequences())
        .add(Dense::new(256));
    let tokens = || Feature::ids([CHARS_WINDOW], 256);
    Recipe::new("chars", model, tokens(), tokens(), SparseCategoricalCrossentropy::new().from_logits(true))
        .about("an LSTM that predicts the next letter of the shipped text")
        .files(|path| data::text_windows(path, CHARS_WINDOW))
        .optimizer(Adam::new(2e-3))
        .batch(32)
        .epochs(3)
}

/// A small GPT on the bytes of the shipped text.
pub fn gpt_nano() -> Recipe {
    let tokens = || Feature::ids([NANO_WINDOW], 256);
    Recipe::new(
        "gpt-nano",
        Gpt::NANO,
        tokens(),
        tokens(),
        SparseCategoricalCrossentropy::new().from_logits(true),
    )
    .about("4 layers, 256 wide, 4 heads, 128 tokens, on the bytes of the shipped text")
    .files(|path| data::text_windows(path, NANO_WINDOW))
    .optimizer_with(|steps| {
        let rising = steps / 20;
        let schedule =
            Schedule::cosine_decay(NANO_RATE, 0.0, steps.saturating_sub(rising).max(1))?.warmed_up(rising);
        Ok(AdamW::new(NANO_RATE).beta_2(0.99).weight_decay(0.01).build().schedule(schedule))
    })
    .batch(8)
    .steps(500)
}

/// A size of GPT-2 on random tokens.
pub fn gpt2(name: &str, size: Gpt) -> Recipe {
    gpt(name, size, "GPT-2", GPT2_WINDOW)
}

/// A size of GPT-3 on random tokens.
pub fn gpt3(name: &str, (layers, width, heads): (usize, usize, usize)) -> Recipe {
    gpt(name, Gpt { layers, width, heads, ..Gpt::SMALL }, "GPT-3", GPT3_WINDOW)
}

fn gpt(name: &str, size: Gpt, family: &str, window: usize) -> Recipe {
    // The rows that only round the vocabulary up are never asked for.
    let tokens = || Feature::ids([window], 50_257);
    let about =
        format!("{family}: {} layers, {} wide, {window} tokens, on random tokens", size.layers, size.width);
    Recipe::new(name, size, tokens(), tokens(), SparseCategoricalCrossentropy::new().from_logits(true))
        .about(about)
        .optimizer(AdamW::new(1e-4).weight_decay(0.01))
        .batch(4)
        .steps(20)
}
