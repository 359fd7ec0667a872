//! Milliseconds of products, attention, embeddings, convolutions and pooling on the first GPU, at the shapes of GPT-2 124M and
//! ResNet-50: `cargo bench -p plimsoll-tensor --bench gpu -- [name]`.
//!
//! Many calls are launched before the host waits, so that what is measured is the GPU's work and not the way to it.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use plimsoll_tensor::{
    Activation, AttentionConfig, Conv2dConfig, DType, Device, GradientTape, Pool2d, Result, Tensor,
};

/// The calls between two waits, and how often they are repeated; the best counts.
const N_CALLS: u32 = 10;
const N_ROUNDS: usize = 10;

/// A function of tensors.
type Call = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// Milliseconds of one call.
fn fastest(device: &Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = Duration::MAX;
    for _ in 0..=N_ROUNDS {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..N_CALLS {
            f()?;
        }
        device.synchronize()?;
        best = best.min(start.elapsed() / N_CALLS);
    }
    Ok(best.as_secs_f64() * 1e3)
}

/// Prints the times of a call, and the rate of forward's products: `gigaflops` is their work.
fn measure(device: &Device, name: &str, inputs: &[Tensor], gigaflops: f64, call: &Call) -> Result<()> {
    let forward = fastest(device, || call(inputs).map(drop))?;
    let gradient = call(inputs)?;
    let with_backward = || {
        let tape = GradientTape::new();
        for input in inputs {
            tape.watch(input)?;
        }
        let y = tape.record(|| call(inputs))?;
        let sources: Vec<&Tensor> = inputs.iter().collect();
        tape.gradients(&[&y], Some(&[&gradient]), &sources, Default::default()).map(drop)
    };
    let both = fastest(device, with_backward)?;
    device.set_deterministic(false);
    let unordered = fastest(device, with_backward)?;
    device.set_deterministic(true);
    let rate = gigaflops / forward;
    println!(
        "{name:<52} forward {forward:>8.4} ms ({rate:>6.1} TFLOP/s), with backward {both:>8.4} ms, in any order \
         {unordered:>8.4} ms"
    );
    Ok(())
}

/// Values drawn on the host, so that nothing but what is measured runs on the GPU.
fn draw(device: &Device, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let _on = Device::cpu().enter();
    Tensor::normal(shape, 0.0, 1.0, dtype)?.to_device(device)
}

fn attention(causal: bool) -> Call {
    Box::new(move |x| x[0].attention(&x[1], &x[2], &AttentionConfig { causal, ..Default::default() }))
}

fn linear(activation: Activation) -> Call {
    Box::new(move |x| x[0].linear(&x[1], Some(&x[2]), activation))
}

/// Queries, keys and values as a transformer has them: views of one projection.
fn heads(device: &Device, [batch, n_heads, len, depth]: [usize; 4], dtype: DType) -> Result<Vec<Tensor>> {
    let projected = draw(device, &[batch, len, 3, n_heads, depth], dtype)?.permute([2, 0, 3, 1, 4])?;
    (0..3).map(|idx| projected.narrow(0, idx, 1)?.squeeze(0)).collect()
}

/// What is measured: the first GPU, and whose names contain a word.
struct Bench {
    device: Device,
    filter: String,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn attention(&self, dtype: DType, sizes: [usize; 4], causal: bool) -> Result<()> {
        let name = format!("attention {sizes:?} {dtype}{}", if causal { " causal" } else { "" });
        if !self.wants(&name) {
            return Ok(());
        }
        let [batch, n_heads, len, depth] = sizes;
        let half = if causal { 0.5 } else { 1.0 };
        let gigaflops = half * 4e-9 * (batch * n_heads * len * len * depth) as f64;
        let inputs = heads(&self.device, sizes, dtype)?;
        measure(&self.device, &name, &inputs, gigaflops, &attention(causal))
    }

    fn linear(&self, [rows, k, n]: [usize; 3], activation: Activation) -> Result<()> {
        let name = format!("linear {rows} x {k} x {n} {activation:?}");
        if !self.wants(&name) {
            return Ok(());
        }
        let shapes: [&[usize]; 3] = [&[rows, k], &[k, n], &[n]];
        let inputs = shapes.iter().map(|shape| draw(&self.device, shape, DType::BF16));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        measure(&self.device, &name, &inputs, 2e-9 * (rows * k * n) as f64, &linear(activation))
    }

    fn conv2d(&self, extent: usize, [c_in, c_out]: [usize; 2], kernel: usize, stride: usize) -> Result<()> {
        let name = format!("conv2d {extent} x {extent}, {c_in} to {c_out}, {kernel} x {kernel} by {stride}");
        if !self.wants(&name) {
            return Ok(());
        }
        let config = Conv2dConfig::new().padding(kernel / 2).stride(stride);
        let x = draw(&self.device, &[128, extent, extent, c_in], DType::BF16)?;
        let weights = draw(&self.device, &[c_out, kernel, kernel, c_in], DType::BF16)?;
        let places = 128 * extent.div_ceil(stride) * extent.div_ceil(stride);
        let gigaflops = 2e-9 * (places * c_in * c_out * kernel * kernel) as f64;
        let call: Call = Box::new(move |x| x[0].conv2d(&x[1], None, &config));
        measure(&self.device, &name, &[x, weights], gigaflops, &call)
    }

    /// A vocabulary as large as GPT-2's, and as many words as its batch has.
    fn embedding(&self, dtype: DType) -> Result<()> {
        let name = format!("embedding 16384 of 50257 x 768 {dtype}");
        if !self.wants(&name) {
            return Ok(());
        }
        let ids: Vec<i64> = (0..16_384).map(|word: i64| word * 7919 % 50_257).collect();
        let ids = Tensor::from_slice(&ids, ids.len())?.to_device(&self.device)?;
        let table = draw(&self.device, &[50_257, 768], dtype)?;
        let call: Call = Box::new(move |x| x[0].embedding(&ids));
        measure(&self.device, &name, &[table], 0.0, &call)
    }

    fn max_pool2d(&self) -> Result<()> {
        let name = "max_pool2d 112 x 112, 64";
        if !self.wants(name) {
            return Ok(());
        }
        let x = draw(&self.device, &[128, 112, 112, 64], DType::BF16)?;
        let pool = Pool2d::new(3).stride(2).padding(1);
        let call: Call = Box::new(move |x| x[0].max_pool2d(pool));
        measure(&self.device, name, &[x], 0.0, &call)
    }
}

fn main() -> Result<()> {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let bench = Bench { device: Device::cuda(0)?, filter };
    bench.attention(DType::BF16, [16, 12, 1024, 64], true)?;
    bench.attention(DType::BF16, [16, 12, 1024, 64], false)?;
    bench.attention(DType::BF16, [8, 16, 2048, 128], true)?;
    bench.attention(DType::F16, [16, 12, 1024, 64], true)?;
    bench.attention(DType::F32, [4, 12, 1024, 64], true)?;
    bench.embedding(DType::F32)?;
    bench.embedding(DType::BF16)?;
    bench.linear([16_384, 768, 2304], Activation::None)?;
    bench.linear([16_384, 768, 768], Activation::None)?;
    bench.linear([16_384, 768, 3072], Activation::GeluTanh)?;
    bench.linear([16_384, 3072, 768], Activation::None)?;
    bench.linear([4096, 4096, 4096], Activation::Relu)?;
    bench.conv2d(224, [3, 64], 7, 2)?;
    bench.conv2d(56, [64, 64], 1, 1)?;
    bench.conv2d(56, [64, 64], 3, 1)?;
    bench.conv2d(56, [128, 128], 3, 2)?;
    bench.conv2d(28, [512, 128], 1, 1)?;
    bench.conv2d(14, [256, 256], 3, 1)?;
    bench.conv2d(7, [512, 512], 3, 1)?;
    bench.max_pool2d()
}
