//! The losses of w2, w3, w4 and w5 follow PyTorch's for 50 steps, from the same weights and data, in f32.
//!
//! Weights and data are a formula of (name, position), which `peers/losses.py` follows too; it recorded PyTorch's losses
//! in f32 and in f64. All of them learn one batch by heart, so the losses fall by orders of magnitude.

use std::collections::HashMap;

use plimsoll::nn::Model;
use plimsoll::nn::optimizers::Adam;
use plimsoll::nn::train::{Batch, Trainer, Until};
use plimsoll::{Result, Tensor, Variable};
use plimsoll_cli::{Recipe, workloads};

const RECORDED: &str = include_str!("../peers/losses.json");
const STEPS: usize = 50;

/// How many times PyTorch's own error in f32 ours may be, at every step: the running maximum of the distance between
/// its losses in f32 and in f64. Both are sums of the same products in another order, so that their errors are of one
/// size; but which of them is the larger at a step is chance, and training makes small differences grow.
const TIMES_ITS_OWN_ERROR: f64 = 10.0;
/// The least that is allowed, relative to the first loss: sixteen roundings of an f32.
const LEAST: f64 = 16.0 * f32::EPSILON as f64;

/// Whole numbers below 2^24 that depend on the name and their position alone.
fn hashed(name: &str, n: usize) -> impl Iterator<Item = u32> {
    let stream =
        name.bytes().fold(2_166_136_261u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    (0..n as u32).map(move |position| {
        let mut x = position.wrapping_mul(0x9e37_79b9).wrapping_add(stream);
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        (x ^ (x >> 16)) >> 8
    })
}

/// Floats from -limit to limit; every operation but the last is exact.
fn uniform(name: &str, shape: &[usize], limit: f64) -> Result<Tensor> {
    let values = hashed(name, shape.iter().product())
        .map(|whole| (whole as f32 * 2f32.powi(-23) - 1.0) * limit as f32)
        .collect();
    Tensor::from_vec::<f32>(values)?.reshape(shape)
}

fn ids(name: &str, shape: &[usize], below: u32) -> Result<Tensor> {
    let values = hashed(name, shape.iter().product()).map(|whole| i64::from(whole % below)).collect();
    Tensor::from_vec::<i64>(values)?.reshape(shape)
}

/// The name that the formula goes by: without the layers that only hold others together.
fn plain_name(name: &str) -> String {
    let left_out = ["trunk", "attn", "mlp", "sequential", "attention", "embeddings"];
    name.split('.').filter(|part| !left_out.contains(part)).collect::<Vec<_>>().join(".")
}

/// How many numbers are summed up for one output of the layer that a kernel belongs to.
fn fan_in(kernel: &Variable) -> usize {
    match *kernel.shape().dims() {
        [_, height, width, inputs] => height * width * inputs,
        [inputs, ..] => inputs,
        [] => 1,
    }
}

/// Gives every variable its formula, kernels `gain` times as large; the scales and shifts of norms stay one and zero.
fn set_weights(model: &Model, gain: f64) -> Result<()> {
    let variables = model.variables();
    let fans: HashMap<String, usize> = variables
        .iter()
        .filter_map(|variable| Some((variable.name().strip_suffix(".kernel")?.to_owned(), fan_in(variable))))
        .collect();
    for variable in &variables {
        let name = variable.name();
        let (layer, part) = name.rsplit_once('.').unwrap_or(("", &name));
        let limit = match part {
            "gamma" | "beta" => continue,
            "embeddings" => 0.05,
            // Gates sum up what the hidden state gives, too; PyTorch's formula for an LSTM knows it alone.
            _ if layer.ends_with("lstm") => 256f64.powf(-0.5),
            "kernel" => gain * (fans[layer] as f64).powf(-0.5),
            _ => (fans[layer] as f64).powf(-0.5),
        };
        variable.assign(&uniform(&plain_name(&name), variable.shape().dims(), limit)?)?;
    }
    Ok(())
}

fn losses(recipe: &Recipe, gain: f64, inputs: &Tensor, labels: &Tensor) -> Result<Vec<f64>> {
    let model = recipe.model()?;
    set_weights(&model, gain)?;
    let batch = vec![Batch::new(inputs.clone(), labels.clone())];
    let mut trainer = Trainer::new(model, recipe.make_optimizer(STEPS as u64)?, recipe.loss());
    let mut step = |number| Ok(trainer.fit(&batch, Until::Steps(number))?.loss.unwrap_or(f64::NAN));
    (1..=STEPS as u64).map(&mut step).collect()
}

fn check(recipe: &Recipe, gain: f64, inputs: &Tensor, labels: &Tensor) -> Result<()> {
    let name = recipe.name();
    let recorded: serde_json::Value = serde_json::from_str(RECORDED).expect("the recorded file is JSON");
    let of = |dtype: &str| -> Vec<f64> {
        let list = recorded[name][dtype].as_array().expect("recorded for every workload");
        list.iter().map(|loss| loss.as_f64().expect("a number")).collect()
    };
    let (theirs, exact) = (of("float32"), of("float64"));
    let ours = losses(recipe, gain, inputs, labels)?;
    assert_eq!(ours.len(), theirs.len());
    let mut own_error = LEAST * theirs[0];
    for (step, ((ours, theirs), exact)) in ours.iter().zip(&theirs).zip(&exact).enumerate() {
        own_error = own_error.max((theirs - exact).abs());
        let error = (ours - exact).abs();
        assert!(
            error <= TIMES_ITS_OWN_ERROR * own_error,
            "{name}, step {step}: {ours} is {error:e} from {exact}, PyTorch's {theirs} at most {own_error:e} so far"
        );
    }
    assert!(ours[STEPS - 1] < ours[0], "{name} learns: {ours:?}");
    Ok(())
}

/// With weights that keep the size of signals and a tenth of the benchmark's learning rate: see `peers/losses.py`.
#[test]
fn w2_deep_mlp() -> Result<()> {
    let recipe = workloads::w2_deep_mlp().optimizer(Adam::new(1e-4));
    check(&recipe, 6f64.sqrt(), &uniform("inputs", &[256, 1024], 1.0)?, &ids("labels", &[256], 10)?)
}

#[test]
fn w3_cnn() -> Result<()> {
    check(&workloads::w3_cnn(), 1.0, &uniform("inputs", &[64, 28, 28, 1], 1.0)?, &ids("labels", &[64], 10)?)
}

#[test]
fn w4_lstm() -> Result<()> {
    check(&workloads::w4_lstm(), 1.0, &uniform("inputs", &[32, 64, 64], 1.0)?, &ids("labels", &[32], 10)?)
}

#[test]
fn w5_gpt() -> Result<()> {
    check(&workloads::w5_gpt(), 1.0, &ids("inputs", &[8, 128], 1024)?, &ids("labels", &[8, 128], 1024)?)
}
