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
