//! Nothing of tensor size lives outside the pool, for every recipe: each is trained for a few steps, with evaluation and
//! saving, and goes on from what it saved, under an allocator that counts. After set-up no single heap allocation exceeds
//! 64 KiB, and the live heap grows by less than 1 MiB.
//!
//! One test in a process of its own, because the heap belongs to the process. The large recipes are run in small sizes
//! of the same models, as deep as these, so that they have as many variables.

mod small;

use plimsoll::Activation;
use plimsoll::nn::layers::{Dense, Sequential};
use plimsoll::nn::losses::SparseCategoricalCrossentropy;
use plimsoll_cli::{Failure, Feature, Recipe, recipes, run};
use plimsoll_testkit::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Threads, interned labels and tables that are made once and kept.
fn set_up() -> Result<(), Failure> {
    let model = Sequential::new().add(Dense::new(512).activation(Activation::Relu)).add(Dense::new(10));
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let recipe = Recipe::new("set-up", model, Feature::floats([512]), Feature::ids([], 10), loss);
    run(&[recipe], ["plimsoll", "train", "set-up", "--steps", "2", "--batch", "512"])
}

#[test]
fn every_recipe_keeps_its_bytes_in_the_pool() -> Result<(), Failure> {
    set_up()?;
    let folder = format!("{}/heap-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let small = small::recipes();
    let shipped = recipes::all();
    let random = ["--data", "random"];
    // A short text, so that little is held out.
    let text = format!("{folder}/text");
    let written =
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&text, "All's well. ".repeat(2000)));
    written.map_err(|error| Failure::other(error.to_string()))?;
    let text = ["--data", &text];
    let tiny: [(&[Recipe], &str, &str, &[&str]); 10] = [
        (&shipped, "digits", "64", &[]),
        (&shipped, "dense", "256", &[]),
        (&shipped, "fashion", "16", &random),
        (&shipped, "chars", "8", &text),
        (&shipped, "gpt-nano", "2", &text),
        (&small, "small-gpt2-124m", "2", &[]),
        (&small, "small-gpt2-355m", "2", &[]),
        (&small, "small-gpt2-355m", "2", &["--precision", "mixed_float16"]),
        (&small, "small-resnet18", "2", &[]),
        (&small, "small-resnet50", "2", &[]),
    ];
    for (recipes, name, batch, more) in tiny {
        let common = ["plimsoll", "train", name, "--batch", batch];
        let live = HEAP.live_bytes();
        for rest in [["--steps", "2", "--save", &folder], ["--steps", "3", "--resume", &folder]] {
            HEAP.forget_largest();
            run(recipes, [&common[..], &rest, more].concat())?;
            let largest = HEAP.largest_allocation();
            assert!(largest <= 64 << 10, "{name} {rest:?}: a single allocation of {largest} B");
        }
        let growth = HEAP.live_bytes().saturating_sub(live);
        assert!(growth < 1 << 20, "{name}: the live heap has grown by {growth} B");
    }
    std::fs::remove_dir_all(&folder).map_err(|error| Failure::other(error.to_string()))
}
