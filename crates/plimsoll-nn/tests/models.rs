//! What building layers promises: variables found and named by path, errors that name the layer, summaries to the
//! byte, recomputing and mixed precision.

use plimsoll_nn::layers::{
    Dense, Dropout, Embedding, Flatten, LayerNormalization, MultiHeadAttention, Residual, Sequential,
};
use plimsoll_nn::{Layer, Mode, Model, Policy, with_policy};
use plimsoll_tensor::{
    Activation, DType, Device, GradientTape, Result, Tensor, Unconnected, Variable, set_seed,
};

fn perceptron() -> Sequential {
    Sequential::new().add(Dense::new(1024).activation(Activation::Relu)).add(Dense::new(10))
}

fn names(model: &Model) -> Vec<String> {
    model.variables().iter().map(|variable| variable.name()).collect()
}

#[test]
fn variables_are_named_by_path() -> Result<()> {
    let block =
        Residual::new(Sequential::new().add(LayerNormalization::new()).add(Dense::new(4).named("up")));
    let model =
        Sequential::new().add(Dense::new(4)).add(block.named("block")).add(Dense::new(2)).build([3])?;
    assert_eq!(
        names(&model),
        [
            "dense.kernel",
            "dense.bias",
            "block.sequential.layer_norm.gamma",
            "block.sequential.layer_norm.beta",
            "block.sequential.up.kernel",
            "block.sequential.up.bias",
            "dense_1.kernel",
            "dense_1.bias"
        ]
    );
    assert_eq!(model.output_shape().dims(), [2]);
    Ok(())
}

#[test]
fn the_summary_tells_the_bytes_that_are_kept() -> Result<()> {
    let model = perceptron().build([784])?;
    let (one, many) = (model.summary(1)?, model.summary(100)?);
    assert_eq!(one.n_parameters, 814_090);
    // The input and the hidden activations, 784 + 1024 numbers for each example.
    assert_eq!(many.saved_bytes, 100 * (784 + 1024) * 4);
    assert_eq!(many.saved_bytes, 100 * one.saved_bytes);
    assert_eq!(many.rows.iter().map(|row| row.saved_bytes).sum::<usize>(), many.saved_bytes);
    let text = many.to_string();
    assert!(text.contains("814,090 parameters"), "{text}");
    Ok(())
}

#[test]
fn a_summary_leaves_the_device_alone() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let model = perceptron().build([784])?;
    let before = device.stats().in_use;
    model.summary(4096)?;
    assert_eq!((device.stats().in_use, device.stats().peak_in_use), (before, before));
    Ok(())
}

#[test]
fn errors_name_the_layer() -> Result<()> {
    let model = perceptron().build([784])?;
    let error = model.call(&Tensor::zeros([2, 700])?).unwrap_err().to_string();
    assert!(error.contains("in layer `dense`") && error.contains("700"), "{error}");
    let error =
        Sequential::new().add(Dense::new(6)).add(MultiHeadAttention::new(4)).build([5, 3]).unwrap_err();
    assert!(error.to_string().contains("in layer `attention`"), "{error}");
    assert!(error.to_string().contains("a width of 6"), "{error}");
    Ok(())
}

fn language_model(recomputed: bool) -> Result<Model> {
    let inner = Sequential::new()
        .add(LayerNormalization::new())
        .add(MultiHeadAttention::new(2).causal())
        .add(Dropout::new(0.2));
    let block = Residual::new(inner);
    let model = Sequential::new().add(Embedding::new(11, 8));
    let model = if recomputed { model.add(block.recompute()) } else { model.add(block) };
    set_seed(7);
    model.add(Flatten::new()).add(Dense::new(3)).build([6])
}

fn gradients(model: &Model) -> Result<Vec<Vec<f32>>> {
    set_seed(9);
    let ids = Tensor::from_vec((0..24i64).map(|id| id * 5 % 11).collect())?.reshape([4, 6])?;
    let tape = GradientTape::new();
    let loss = tape.record(|| model.forward(&ids, Mode::Train)?.square()?.sum(..))?;
    let variables = model.trainable_variables();
    let sources: Vec<&Tensor> = variables.iter().map(|variable| &**variable).collect();
    let gradients = tape.gradients(&[&loss], None, &sources, Unconnected::Zeros)?;
    gradients.into_iter().flatten().map(|gradient| gradient.cast(DType::F32)?.to_vec()).collect()
}

#[test]
fn recomputing_changes_bytes_and_no_bit() -> Result<()> {
    let (plain, recomputed) = (language_model(false)?, language_model(true)?);
    assert_eq!(gradients(&plain)?, gradients(&recomputed)?);
    assert!(recomputed.summary(4)?.saved_bytes < plain.summary(4)?.saved_bytes);
    Ok(())
}

#[test]
fn a_mixed_policy_computes_in_half_and_keeps_masters() -> Result<()> {
    set_seed(1);
    let full = perceptron().build([784])?;
    set_seed(1);
    let mixed = with_policy(Policy::MixedBfloat16, || perceptron().build([784]))?;
    let x = Tensor::randn([3, 784])?;
    let y = mixed.call(&x)?;
    assert_eq!(y.dtype(), DType::BF16);
    for (full, mixed) in full.variables().iter().zip(mixed.variables()) {
        let master = mixed.master().expect("a master");
        assert_eq!((mixed.dtype(), master.dtype()), (DType::BF16, DType::F32));
        assert_eq!(full.to_vec::<f32>()?, master.to_vec::<f32>()?);
    }
    let saved = |model: &Model| Ok::<_, plimsoll_tensor::Error>(model.summary(256)?.saved_bytes);
    assert_eq!(saved(&mixed)? * 2, saved(&full)?);
    assert_eq!(mixed.summary(1)?.parameter_bytes, 814_090 * 6);
    Ok(())
}

#[test]
fn assigning_to_a_mixed_variable_writes_master_and_copy() -> Result<()> {
    let variable = Variable::new(Tensor::zeros([2])?).mixed(DType::F16)?;
    variable.assign(&Tensor::from_vec(vec![0.1f32, 4097.0])?)?;
    assert_eq!(variable.master().expect("a master").to_vec::<f32>()?, [0.1, 4097.0]);
    assert_eq!(variable.cast(DType::F32)?.to_vec::<f32>()?, [0.099_975_586, 4096.0]);
    Ok(())
}

#[test]
fn frozen_layers_are_not_trained() -> Result<()> {
    let model = Sequential::new().add(Dense::new(4).frozen()).add(Dense::new(2)).build([3])?;
    let trained: Vec<String> = model.trainable_variables().iter().map(|variable| variable.name()).collect();
    assert_eq!(trained, ["dense_1.kernel", "dense_1.bias"]);
    assert_eq!(model.variables().len(), 4);
    Ok(())
}
