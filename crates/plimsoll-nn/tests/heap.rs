//! Nothing of tensor size lives outside the pool while a model is trained, saved, resumed and given weights: no single heap
//! allocation exceeds 64 KiB, and the live heap grows by less than 1 MiB.
//!
//! One test in a process of its own, because the heap belongs to the process.

use plimsoll_data::Dataset;
use plimsoll_nn::Layer;
use plimsoll_nn::layers::{Dense, Sequential};
use plimsoll_nn::losses::MeanSquaredError;
use plimsoll_nn::optimizers::{Adam, OptimizerConfig};
use plimsoll_nn::train::callbacks::{EarlyStopping, ModelCheckpoint};
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Activation, DType, Device, Result, Tensor};
use plimsoll_testkit::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// A model of two megabytes on examples of half a megabyte.
fn train(folder: &std::path::Path, until: Until) -> Result<Trainer> {
    let model = Sequential::new()
        .add(Dense::new(2048).activation(Activation::Tanh))
        .add(Dense::new(1))
        .build([256])?;
    let inputs = Tensor::uniform([512, 256], -1.0, 1.0, DType::F32)?;
    let labels = inputs.sum(1)?.reshape([512, 1])?;
    let data = Dataset::from_tensor_slices((inputs, labels))?.shuffle(512, 1).batch(100)?.prefetch(1);
    let mut trainer = Trainer::new(model, Adam::new(1e-3).build(), MeanSquaredError)
        .accumulate(2)
        .held_out(data.clone())
        .callback(EarlyStopping::new(3).restore_best_weights(folder.join("best")))
        .callback(ModelCheckpoint::new(folder).every_steps(2));
    if until != Until::Steps(3) {
        trainer.resume(folder)?;
    }
    trainer.fit(&data, until)?;
    Ok(trainer)
}

#[test]
fn training_and_saving_keep_tensors_in_the_pool() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("plimsoll-heap-{}", std::process::id()));
    let device = Device::separate_cpu();
    let _on = device.enter();
    // Threads, interned labels and tables are made once and kept.
    drop(train(&folder, Until::Steps(3))?);
    let live = HEAP.live_bytes();
    HEAP.forget_largest();
    let trainer = train(&folder, Until::Epochs(2))?;
    let weights = folder.join("weights.safetensors");
    trainer.model().save_weights(&weights)?;
    trainer.model().load_weights(&weights)?;
    drop(trainer);
    let largest = HEAP.largest_allocation();
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    assert!(largest <= 64 << 10, "a single allocation of {largest} B");
    let growth = HEAP.live_bytes().saturating_sub(live);
    assert!(growth < 1 << 20, "the live heap has grown by {growth} B");
    assert_eq!(device.stats().in_use, 0);
    Ok(())
}
