//! Milliseconds of the heavy ops, forward and with backward: `cargo bench -p plimsoll-tensor --bench heavy -- [name]`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use plimsoll_tensor::{
    Activation, AttentionConfig, Conv2dConfig, DType, GradientTape, GruWeights, RecurrentWeights, Result,
    Tensor,
};

/// How long each figure is measured.
const MEASURING_TIME: Duration = Duration::from_millis(600);

/// A function of tensors.
type Call = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

fn fastest(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < MEASURING_TIME {
        let start = Instant::now();
        f()?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64() * 1e3)
}

fn measure(name: &str, shapes: &[&[usize]], dtype: DType, call: &Call) -> Result<()> {
    let draw = |shape: &&[usize]| Tensor::normal(*shape, 0.0, 1.0, dtype);
    let inputs: Vec<Tensor> = shapes.iter().map(draw).collect::<Result<_>>()?;
    let forward = fastest(|| call(&inputs).map(drop))?;
    let both = fastest(|| {
        let tape = GradientTape::new();
        for input in &inputs {
            tape.watch(input)?;
        }
        let y = tape.record(|| call(&inputs))?;
        let sources: Vec<&Tensor> = inputs.iter().collect();
        tape.gradients(&[&y], Some(&[&y]), &sources, Default::default()).map(drop)
    })?;
    println!("{name:<40} {dtype:<9} forward {forward:>9.3} ms, with backward {both:>9.3} ms");
    Ok(())
}

fn attention(causal: bool) -> Call {
    Box::new(move |x| x[0].attention(&x[1], &x[2], &AttentionConfig { causal, ..Default::default() }))
}

fn linear(activation: Activation) -> Call {
    Box::new(move |x| x[0].linear(&x[1], Some(&x[2]), activation))
}

fn conv2d(config: Conv2dConfig) -> Call {
    Box::new(move |x| x[0].conv2d(&x[1], None, &config))
}

/// A cell over a sequence; what is measured are its hidden states, or the last one alone.
fn lstm(sequence: bool) -> Call {
    Box::new(move |x| {
        let weights = RecurrentWeights { kernel: &x[1], recurrent: &x[2], bias: Some(&x[3]) };
        match sequence {
            true => x[0].lstm(&weights, None).map(|(sequence, _)| sequence),
            false => x[0].lstm_state(&weights, None).map(|state| state.hidden),
        }
    })
}

fn gru() -> Call {
    Box::new(|x| {
        let weights = GruWeights { kernel: &x[1], recurrent: &x[2], biases: Some([&x[3], &x[4]]) };
        x[0].gru_state(&weights, None)
    })
}

fn simple_rnn() -> Call {
    Box::new(|x| {
        let weights = RecurrentWeights { kernel: &x[1], recurrent: &x[2], bias: Some(&x[3]) };
        x[0].simple_rnn_state(&weights, Activation::Tanh, None)
    })
}

fn main() -> Result<()> {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let run = |name: &str, shapes: &[&[usize]], dtype: DType, call: Call| match name.contains(&filter) {
        true => measure(name, shapes, dtype, &call),
        false => Ok(()),
    };
    let short: &[usize] = &[8, 4, 128, 64];
    let long: &[usize] = &[8, 1024, 64];
    run("attention, 8 x 4 heads, 128 long, causal", &[short; 3], DType::F32, attention(true))?;
    run("attention, 8 x 4 heads, 128 long", &[short; 3], DType::F32, attention(false))?;
    run("attention, 8 x 4 heads, 128 long", &[short; 3], DType::BF16, attention(false))?;
    run("attention, 8 heads, 1024 long, causal", &[long; 3], DType::F32, attention(true))?;
    let layer: &[&[usize]] = &[&[1024, 256], &[256, 1024], &[1024]];
    run("linear, 1024 x 256 x 1024", layer, DType::F32, linear(Activation::None))?;
    run("linear, 1024 x 256 x 1024, relu", layer, DType::F32, linear(Activation::Relu))?;
    let same = Conv2dConfig::new().padding([1, 1]);
    let image: &[usize] = &[32, 28, 28, 32];
    run("conv2d, 32 to 64 channels, 28 x 28", &[image, &[64, 3, 3, 32]], DType::F32, conv2d(same))?;
    run("conv2d, depthwise, 28 x 28", &[image, &[32, 3, 3, 1]], DType::F32, conv2d(same.groups(32)))?;
    let x: &[usize] = &[32, 64, 64];
    let weights: &[&[usize]] = &[x, &[64, 1024], &[256, 1024], &[1024]];
    run("lstm, 32 x 64 steps, 64 to 256", weights, DType::F32, lstm(false))?;
    run("lstm, 32 x 64 steps, 64 to 256, sequence", weights, DType::F32, lstm(true))?;
    run("lstm, 32 x 64 steps, 64 to 256", weights, DType::BF16, lstm(false))?;
    let one: &[&[usize]] = &[&[1, 64, 64], &[64, 1024], &[256, 1024], &[1024]];
    run("lstm, 1 x 64 steps, 64 to 256", one, DType::F32, lstm(false))?;
    let weights: &[&[usize]] = &[x, &[64, 768], &[256, 768], &[768], &[768]];
    run("gru, 32 x 64 steps, 64 to 256", weights, DType::F32, gru())?;
    let weights: &[&[usize]] = &[x, &[64, 256], &[256, 256], &[256]];
    run("simple_rnn, 32 x 64 steps, 64 to 256", weights, DType::F32, simple_rnn())
}
