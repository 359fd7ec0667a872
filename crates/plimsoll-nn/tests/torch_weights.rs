//! Models that PyTorch has saved give PyTorch's outputs here. The files are written by `data/torch_weights.py`.

use std::path::PathBuf;

use plimsoll_nn::checkpoint::{Change, NameMap, read_tensors};
use plimsoll_nn::layers::{
    BatchNormalization, Conv1D, Conv2D, Conv2DTranspose, Dense, Embedding, Flatten, GRU, GroupNormalization,
    LSTM, LayerNormalization, MultiHeadAttention, Residual, Sequential, SimpleRNN,
};
use plimsoll_nn::{Layer, Model};
use plimsoll_tensor::{Activation, Device, Result, Tensor};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/torch_{name}.safetensors"))
}

/// Loads a model through a map, and compares its output with PyTorch's.
fn check(name: &str, model: &Model, map: NameMap) -> Result<()> {
    map.ignore("io.{tensor}").load(model, file(name))?;
    let tensors = read_tensors(file(name))?;
    let (x, expected): (&Tensor, &Tensor) = (&tensors["io.x"], &tensors["io.y"]);
    let outputs = model.infer(x)?;
    assert_eq!(outputs.shape(), expected.shape(), "{name}");
    // A few sums of at most some hundred products of numbers around one, in f32, in another order.
    let tolerance = 2e-5;
    for (ours, theirs) in outputs.to_vec::<f32>()?.into_iter().zip(expected.to_vec::<f32>()?) {
        assert!((ours - theirs).abs() <= tolerance * (1.0 + theirs.abs()), "{name}: {ours} and {theirs}");
    }
    Ok(())
}

fn perceptron() -> Result<Model> {
    Sequential::new()
        .add(Dense::new(7).activation(Activation::Relu).named("layer_0"))
        .add(Dense::new(4).activation(Activation::Relu).named("layer_1"))
        .add(Dense::new(3).no_bias().named("layer_2"))
        .build([5])
}

#[test]
fn linear_layers() -> Result<()> {
    let map = || NameMap::new().linear("layers.{n}", "layer_{n}");
    check("mlp", &perceptron()?, map())?;
    check("mlp_bf16", &perceptron()?, map())
}

#[test]
fn an_order_of_axes_may_count_from_the_end_and_is_refused_otherwise() -> Result<()> {
    let map = |order: &'static [isize]| {
        NameMap::new().rule("layers.{n}.weight", "layer_{n}.kernel", Change::Permute(order)).rule(
            "layers.{n}.bias",
            "layer_{n}.bias",
            Change::Nothing,
        )
    };
    check("mlp", &perceptron()?, map(&[-1, -2]))?;
    let orders: [&[isize]; 6] = [&[1, 2], &[1, -3], &[isize::MIN, 0], &[isize::MAX, 0], &[1, 1], &[1, 0, 2]];
    for order in orders {
        let refused = check("mlp", &perceptron()?, map(order)).unwrap_err().to_string();
        assert!(refused.contains(&format!("in the order {order:?} of its axes")), "{refused}");
    }
    Ok(())
}

#[test]
fn a_map_that_does_not_fit_says_what_is_left_over() -> Result<()> {
    let model = perceptron()?;
    let before: Vec<f32> = model.variables()[0].to_vec()?;
    let error =
        NameMap::new().linear("layers.{n}", "layer_{n}").load(&model, file("mlp")).unwrap_err().to_string();
    assert!(error.contains("nothing here takes its \"io.x\", \"io.y\""), "{error}");
    let error = NameMap::new().ignore("io.{tensor}").load(&model, file("mlp")).unwrap_err().to_string();
    assert!(
        error.contains("something for \"layer_2.kernel\"") && error.contains("\"layers.0.bias\""),
        "{error}"
    );
    let upright = NameMap::new()
        .rule("layers.{n}.weight", "layer_{n}.kernel", Change::Nothing)
        .linear("layers.{n}", "layer_{n}")
        .ignore("io.{tensor}");
    let error = upright.load(&model, file("mlp")).unwrap_err().to_string();
    assert!(
        error.contains("\"layers.0.weight\" is [7, 5] there, and \"layer_0.kernel\" is [5, 7]"),
        "{error}"
    );
    assert_eq!(model.variables()[0].to_vec::<f32>()?, before);
    Ok(())
}

#[test]
fn a_damaged_file_of_others_is_refused_or_read_and_nothing_else() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = perceptron()?;
    let values = || model.variables().iter().map(|v| v.to_vec::<f32>()).collect::<Result<Vec<_>>>();
    let map = NameMap::new().linear("layers.{n}", "layer_{n}").ignore("io.{tensor}");
    let whole = std::fs::read(file("mlp")).expect("read");
    let path = std::env::temp_dir().join(format!("plimsoll-damaged-{}.safetensors", std::process::id()));
    map.load(&model, file("mlp"))?;
    let before = (values()?, device.stats().in_use);
    let mut n_refused = 0;
    // Nothing but the header can be checked in a file without a checksum; its values are any numbers.
    for at in 0..whole.len() - 300 {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).expect("write");
        match map.load(&model, &path) {
            Ok(()) => map.load(&model, file("mlp"))?,
            Err(error) => {
                n_refused += 1;
                assert!(error.to_string().contains("plimsoll-damaged"), "byte {at}: {error}");
                assert_eq!(values()?, before.0, "byte {at}");
            }
        }
        assert_eq!(device.stats().in_use, before.1, "byte {at}");
    }
    std::fs::remove_file(&path).expect("remove");
    assert!(n_refused > 200, "{n_refused} of {} bytes matter", whole.len() - 300);
    Ok(())
}

#[test]
fn a_transformer() -> Result<()> {
    let block = Sequential::new().add(LayerNormalization::new()).add(MultiHeadAttention::new(2).causal());
    let model = Sequential::new()
        .add(Embedding::new(11, 8))
        .add(Residual::new(block).named("block"))
        .add(Dense::new(11))
        .build([6])?;
    let map = NameMap::new()
        .embedding("wte", "embedding")
        .norm("ln", "block.sequential.layer_norm")
        .attention("attn", "block.sequential.attention")
        .linear("head", "dense");
    check("transformer", &model, map)
}

#[test]
fn convolutions_and_what_is_flattened_after_them() -> Result<()> {
    let model = Sequential::new()
        .add(Conv2D::new(4, 3).padding(1).no_bias().named("conv"))
        .add(BatchNormalization::new().named("bn"))
        .add(plimsoll_nn::layers::ActivationLayer::new(Activation::Relu))
        .add(Conv2DTranspose::new(3, 2).stride(2).named("up"))
        .add(GroupNormalization::new(3).named("gn"))
        .add(Flatten::new())
        .add(Dense::new(5).named("fc"))
        .build([6, 6, 2])?;
    let map = NameMap::new()
        .conv2d("conv", "conv")
        .batch_norm("bn", "bn")
        .conv2d("up", "up")
        .norm("gn", "gn")
        .linear_after_flatten("fc", "fc", [3, 12, 12]);
    check("pictures", &model, map)
}

#[test]
fn recurrent_layers() -> Result<()> {
    let model = Sequential::new()
        .add(Conv1D::new(4, 3).padding(1).named("conv"))
        .add(LSTM::new(5).return_sequences().named("lstm_0"))
        .add(LSTM::new(5).return_sequences().named("lstm_1"))
        .add(GRU::new(4).return_sequences().named("gru"))
        .add(SimpleRNN::new(3).return_sequences().named("rnn"))
        .build([7, 3])?;
    let map = NameMap::new()
        .conv1d("conv", "conv")
        .lstm("lstm", 0, "lstm_0")
        .lstm("lstm", 1, "lstm_1")
        .gru("gru", 0, "gru")
        .lstm("rnn", 0, "rnn");
    check("sequence", &model, map)
}
