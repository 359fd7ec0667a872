//! The recipes that are large, in a small size: as deep as these, so that they have as many variables.

use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll_cli::recipes::{Depth, Gpt, ResNet};
use plimsoll_cli::{Feature, Recipe};

pub fn recipes() -> Vec<Recipe> {
    let loss = || SparseCategoricalCrossentropy::new().from_logits(true);
    let gpt = |size| Gpt { width: 32, heads: 2, vocabulary: 300, ..size };
    let tokens = || Feature::ids([64], 300);
    let language = |name, size| Recipe::new(name, gpt(size), tokens(), tokens(), loss());
    let images = || Feature::floats([64, 64, 3]);
    let resnet =
        |name, depth| Recipe::new(name, ResNet::new(depth), images(), Feature::ids([], 1000), loss());
    vec![
        language("small-gpt2-124m", Gpt::SMALL),
        language("small-gpt2-355m", Gpt::MEDIUM),
        resnet("small-resnet18", Depth::Eighteen),
        resnet("small-resnet50", Depth::Fifty),
    ]
}
