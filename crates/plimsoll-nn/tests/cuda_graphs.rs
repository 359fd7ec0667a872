//! Training with CUDA graphs: the losses and weights of launches, to the bit, and what a plan predicts.
//!
//! The GPU is the one that `PLIMSOLL_TEST_DEVICE` names, or else the emulated one.

use plimsoll_data::Dataset;
use plimsoll_nn::Layer;
use plimsoll_nn::layers::{
    BatchNormalization, Dense, Dropout, Embedding, LSTM, LayerNormalization, Sequential,
};
use plimsoll_nn::losses::SparseCategoricalCrossentropy;
use plimsoll_nn::optimizers::{AdamW, OptimizerConfig};
use plimsoll_nn::train::{Trainer, Until};
use plimsoll_tensor::{Activation, DType, Device, Result, Tensor, set_seed};
use plimsoll_testkit::device_under_test;

fn gpu() -> Result<Device> {
    match std::env::var("PLIMSOLL_TEST_DEVICE").is_ok_and(|name| name != "cpu") {
        true => Ok(device_under_test()),
        false => Device::emulated(),
    }
}

fn dense() -> Sequential {
    Sequential::new()
        .add(Dense::new(16).activation(Activation::Relu))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.1))
        .add(Dense::new(3))
}

fn recurrent() -> Sequential {
    Sequential::new()
        .add(Embedding::new(12, 8))
        .add(LSTM::new(8))
        .add(LayerNormalization::new())
        .add(Dropout::new(0.2))
        .add(Dense::new(3))
}

/// The bits of the weights after four epochs of eight steps, and how many runs were graphs.
fn train(device: &Device, layers: Sequential, inputs: &Tensor, with_graphs: bool) -> Result<(Vec<u64>, u64)> {
    device.set_cuda_graphs(with_graphs)?;
    let before = device.n_graph_launches();
    let data = {
        let _host = Device::cpu().enter();
        let labels = Tensor::from_vec((0..64i64).map(|idx| idx % 3).collect())?;
        Dataset::from_tensor_slices((inputs.clone(), labels))?.shuffle(64, 3).batch(8)?.prefetch(2)
    };
    let _on = device.enter();
    set_seed(5);
    let shape = &inputs.shape().dims()[1..];
    let loss = SparseCategoricalCrossentropy::new().from_logits(true);
    let mut trainer = Trainer::new(layers.build(shape)?, AdamW::new(1e-2).build(), loss);
    trainer.fit(&data, Until::Epochs(4))?;
    let mut bits = Vec::new();
    for variable in trainer.model().variables() {
        bits.extend(variable.value().cast(DType::F64)?.to_vec::<f64>()?.into_iter().map(f64::to_bits));
    }
    Ok((bits, device.n_graph_launches() - before))
}

#[test]
fn a_run_has_the_bits_of_launches() -> Result<()> {
    let (numbers, words) = {
        let _host = Device::cpu().enter();
        set_seed(11);
        (Tensor::randn([64, 6])?, Tensor::randint([64, 5], 0, 12, DType::I64)?)
    };
    for (layers, inputs) in [(dense as fn() -> Sequential, &numbers), (recurrent, &words)] {
        let device = gpu()?;
        let (launches, none) = train(&device, layers(), inputs, false)?;
        let (graphs, n_graphs) = train(&device, layers(), inputs, true)?;
        assert_eq!(graphs, launches);
        assert_eq!(none, 0);
        assert!(n_graphs >= 16, "{n_graphs} of 32 steps were graphs");
    }
    Ok(())
}
