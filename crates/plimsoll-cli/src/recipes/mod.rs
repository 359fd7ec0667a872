//! The recipes that the program ships, a kind of model per file.

mod digits;
mod fashion;
mod gpt;
mod resnet;
mod text;

pub use gpt::Gpt;
pub use resnet::{Depth, ResNet};

use plimsoll::nn::{BuiltLayer, Layer, current_policy};
use plimsoll::{DType, Result, Shape};

use crate::recipe::Recipe;

/// All of them.
pub fn all() -> Vec<Recipe> {
    vec![
        digits::digits(),
        digits::dense(),
        fashion::fashion(),
        text::chars(),
        text::gpt_nano(),
        text::gpt2("gpt2-124m", Gpt::SMALL),
        text::gpt2("gpt2-355m", Gpt::MEDIUM),
        resnet::resnet("resnet18", Depth::Eighteen),
        resnet::resnet("resnet50", Depth::Fifty),
    ]
}

/// The sizes of GPT-3 (arXiv 2005.14165, table 2.1), to be planned for clusters. The heads of 1.3B are 16, and 13B is 5120 wide: the
/// table's 24 and 5140 do not go together with its other numbers.
pub fn published() -> Vec<Recipe> {
    let sizes = [
        ("gpt3-125m", (12, 768, 12)),
        ("gpt3-350m", (24, 1024, 16)),
        ("gpt3-760m", (24, 1536, 16)),
        ("gpt3-1.3b", (24, 2048, 16)),
        ("gpt3-2.7b", (32, 2560, 32)),
        ("gpt3-6.7b", (32, 4096, 32)),
        ("gpt3-13b", (40, 5120, 40)),
        ("gpt3-175b", (96, 12_288, 96)),
    ];
    sizes.into_iter().map(|(name, size)| text::gpt3(name, size)).collect()
}

/// Bytes as floats from 0 to 1: grey values divided by the largest.
#[derive(Clone, Copy, Debug)]
struct Greys {
    largest: f64,
}

impl Layer for Greys {
    fn name(&self) -> &str {
        "greys"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let (scale, dtype) = (1.0 / self.largest, current_policy().compute_dtype());
        Ok(BuiltLayer::new(input, move |x, _| x.cast(dtype)?.into_affine(scale, 0.0))?.takes(DType::U8))
    }
}

/// Pictures with one channel, as convolutions take them: `[height, width]` to `[height, width, 1]`.
#[derive(Clone, Copy, Debug)]
struct Channel;

impl Layer for Channel {
    fn name(&self) -> &str {
        "channel"
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn make(&self, input: &Shape) -> Result<BuiltLayer> {
        let output = [input.dims(), &[1]].concat();
        BuiltLayer::new(output, |x, _| x.unsqueeze(-1))
    }
}
